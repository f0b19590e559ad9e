"""A report on several experiments: one HTML file, one Markdown file and pictures."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from trainact.lab.analysis.answers import Answers, Difference, Summary, summarise_runs
from trainact.lab.analysis.speedups import SpeedUp
from trainact.lab.analysis.studies import Damage, find_studies
from trainact.lab.files import write_atomically
from trainact.lab.paper.values import Key, Value
from trainact.lab.recipes.arms import PLAIN, Arm
from trainact.lab.report.chapters import BulletList, Chapter, ChapterId, Picture, list_pictures
from trainact.lab.report.curves import draw_pictures
from trainact.lab.report.experiment_page import ExperimentPage, make_page
from trainact.lab.report.grid import Grid, escape_markdown
from trainact.lab.report.html_parts import render_part
from trainact.lab.report.paper_comparison import judge_claims, measure_study
from trainact.lab.report.render import (
    render_html_chapter,
    render_html_document,
    render_markdown_chapter,
)
from trainact.lab.report.wording import (
    SMOKE_WARNING,
    format_accuracy,
    format_difference,
    format_speed_up,
)
from trainact.lab.text import count

__all__ = [
    "OverviewRow",
    "Report",
    "list_overview",
    "make_overview_grid",
    "read_report",
    "render_html_report",
    "render_markdown_report",
    "write_report",
]

TITLE = "TrAct compared with plain training"


@dataclass(frozen=True)
class Report:
    """All experiments of a report, and the damaged files that were skipped."""

    pages: tuple[ExperimentPage, ...]
    damages: tuple[Damage, ...]

    @property
    def full(self) -> list[ExperimentPage]:
        """Return the experiments with full runs."""
        return [page for page in self.pages if page.study.kind == "full"]

    @property
    def smoke(self) -> list[ExperimentPage]:
        """Return the experiments with smoke runs."""
        return [page for page in self.pages if page.study.kind == "smoke"]

    @property
    def description(self) -> str:
        """Return the sentence below the title."""
        finished = sum(len(page.study.records) for page in self.full)
        text = f"{count(len(self.full), 'experiment')}, {count(finished, 'finished run')}"
        if self.smoke:
            text += f"; {count(len(self.smoke), 'smoke experiment')} at the bottom"
        return f"{text}."


class OverviewRow(NamedTuple):
    """An arm of an experiment at the largest budget with several runs, else at its largest.

    ``plain`` and ``compared`` are of the seeds that the difference compares; without a difference
    they are None, and so is ``arm``, all runs of the arm, if the experiment has no statistics.
    """

    experiment: str
    arm: Summary | None = None
    difference: Difference | None = None
    plain: Summary | None = None
    compared: Summary | None = None
    speed_up: SpeedUp | None = None


def read_report(results: Sequence[Path]) -> Report:
    """Return the report on all records below some folders.

    Raises:
        TrActValueError: a folder does not exist, or there are no runs in any.
    """
    studies, damages = find_studies(results)
    return Report(tuple(map(make_page, studies)), tuple(damages))


def list_overview(pages: Sequence[ExperimentPage]) -> list[OverviewRow]:
    """Return a row for each arm but plain of each experiment."""
    rows = []
    for page in pages:
        name = page.study.key
        if page.answers is None:
            rows.append(OverviewRow(name))
            continue
        speed_ups = {(f.arm, f.budget): f for f in page.answers.speed_ups}
        differences = {(d.arm, d.budget): d for d in page.answers.differences}
        for arm in page.answers.arms:
            if arm == PLAIN:
                continue
            budget = page.answers.find_budget(arm)
            summary = page.answers.find_summary(arm, budget)
            found = differences.get((arm, budget))
            if found is None:
                rows.append(OverviewRow(name, summary))
                continue
            plain, one = (_summarise_pairs(page.answers, found, a) for a in (PLAIN, arm))
            speed_up = speed_ups.get((arm, budget))
            rows.append(OverviewRow(name, summary, found, plain, one, speed_up))
    return rows


def _summarise_pairs(answers: Answers, difference: Difference, arm: Arm) -> Summary:
    """Return the accuracy of an arm over the seeds of a difference."""
    runs = [run for run in answers.runs if (run.arm, run.budget) == (arm, difference.budget)]
    return summarise_runs([run for run in runs if run.seed in difference.seeds])


def make_overview_grid(rows: Sequence[OverviewRow]) -> Grid:
    """Return the table of these rows."""
    cells = []
    for row in rows:
        if row.arm is None:
            cells.append((row.experiment, "-", "-", "-", "-", "-", "no result yet", "-"))
            continue
        shown = row.compared or row.arm
        cells.append(
            (
                row.experiment,
                row.arm.arm.title,
                str(row.arm.budget),
                str(shown.n),
                "-" if row.plain is None else format_accuracy(row.plain),
                format_accuracy(shown, row.arm.diverged),
                format_difference(row.difference),
                "-" if row.speed_up is None else format_speed_up(row.speed_up),
            )
        )
    head = ("experiment", "arm", "epochs", "n", "plain, %", "arm, %", "difference", "speed-up")
    return Grid("Test accuracy at the largest budget", head, tuple(cells), text_columns=2)


def write_report(report: Report, folder: Path) -> list[Path]:
    """Write report.html, report.md and a folder of pictures for each experiment.

    The same records give the same bytes.

    Raises:
        StorageError: the disk is full or the folder is not writable.
    """
    files: dict[str, bytes] = {}
    for page in report.pages:
        pictures = list_pictures(page.chapters)
        if page.answers is not None:
            drawn = draw_pictures(page.answers, pictures)
            files |= {f"{page.study.key}/{name}": content for name, content in drawn.items()}
        for picture in set(Picture) - set(pictures):  # left by an earlier report
            (folder / page.study.key / picture.file).unlink(missing_ok=True)
    files["report.md"] = render_markdown_report(report).encode()
    files["report.html"] = render_html_report(report).encode()
    for name, content in files.items():
        write_atomically(folder / name, content)
    return [folder / name for name in files]


def render_html_report(report: Report) -> str:
    """Return the report as one file that needs no other."""
    overview, *others = _make_common_chapters(report)
    parts = [
        _render_contents(report, overview, others),
        _render_common_chapter(overview),
        *map(_render_page, report.full),
        *map(_render_common_chapter, others),
        *map(_render_page, report.smoke),
    ]
    return render_html_document(TITLE, report.description, parts)


def render_markdown_report(report: Report) -> str:
    """Return the report as Markdown; each experiment has a folder of pictures."""
    overview, *others = _make_common_chapters(report)
    blocks = [f"# {TITLE}", report.description, *render_markdown_chapter(overview)]
    for page in report.full:
        blocks += _render_markdown_page(page)
    for chapter in others:
        blocks += render_markdown_chapter(chapter)
    for page in report.smoke:
        blocks += [f"# {SMOKE_WARNING}", *_render_markdown_page(page)]
    return "\n\n".join(blocks) + "\n"


def _make_common_chapters(report: Report) -> list[Chapter]:
    """Return the chapters on all experiments: the overview, then those that follow the pages."""
    overview = make_overview_grid(list_overview(report.full))
    empty = "No result yet." if report.full else "There are no full runs yet."
    values: dict[Key, Value] = {}
    for page in report.full:
        values |= measure_study(page.study)
    chapters = [
        Chapter(ChapterId.OVERVIEW, grids=(overview,))
        if overview.rows
        else Chapter(ChapterId.OVERVIEW, sentences=(empty,)),
        judge_claims(values),
    ]
    if report.damages:
        skipped = BulletList("Skipped files", tuple(damage.reason for damage in report.damages))
        chapters.append(Chapter(ChapterId.DAMAGED, lists=(skipped,)))
    return chapters


def _render_contents(report: Report, overview: Chapter, others: Sequence[Chapter]) -> str:
    entries = [
        (overview.id.anchor, overview.title),
        *((page.study.key, page.title) for page in report.full),
        *((chapter.id.anchor, chapter.title) for chapter in others),
        *((page.study.key, f"SMOKE RUN: {page.title}") for page in report.smoke),
    ]
    return render_part("contents", entries)


def _render_common_chapter(chapter: Chapter) -> str:
    return render_part("target", chapter.id.anchor, render_html_chapter(chapter))


def _render_page(page: ExperimentPage) -> str:
    warning = SMOKE_WARNING if page.study.kind == "smoke" else ""
    sections = [render_html_chapter(c, page.answers, level=3) for c in page.chapters]
    return render_part("article", page.study.key, warning, page.title, page.description, sections)


def _render_markdown_page(page: ExperimentPage) -> list[str]:
    blocks = [f"## {escape_markdown(page.title)}", *map(escape_markdown, page.description)]
    for chapter in page.chapters:
        blocks += render_markdown_chapter(chapter, 3, f"{page.study.key}/")
    return blocks
