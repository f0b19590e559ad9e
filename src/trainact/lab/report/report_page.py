"""A report on several experiments as one HTML file and one Markdown file."""

import html
from collections.abc import Sequence
from dataclasses import dataclass

from trainact.lab.analysis.studies import Damage
from trainact.lab.paper import Key
from trainact.lab.paper.values import Value
from trainact.lab.recipes.arms import BASELINE, name_arm
from trainact.lab.report.beside_paper import judge_claims, measure_study
from trainact.lab.report.chapters import Chapter
from trainact.lab.report.markdown import render_chapter as render_chapter_in_markdown
from trainact.lab.report.page import SMOKE_BANNER, render_chapter, render_document
from trainact.lab.report.study_chapters import StudyPage
from trainact.lab.report.tables import Grid, escape_markdown
from trainact.lab.report.wording import SMOKE, show_accuracy, show_difference, show_reach

__all__ = ["Report", "make_overview", "render_html_report", "render_markdown_report"]

TITLE = "TrAct against plain training"
OVERVIEW, CLAIMS, DAMAGED = "overview", "claims", "damaged"


@dataclass(frozen=True)
class Report:
    """What there is to show: experiments in order, and files that were left out."""

    pages: tuple[StudyPage, ...]
    damages: tuple[Damage, ...]

    @property
    def full(self) -> list[StudyPage]:
        """Return the experiments that were run for real."""
        return [page for page in self.pages if page.study.kind == "full"]

    @property
    def smoke(self) -> list[StudyPage]:
        """Return the smoke runs."""
        return [page for page in self.pages if page.study.kind == "smoke"]

    @property
    def question(self) -> str:
        """Return the sentence under the title."""
        ended = sum(len(page.study.records) for page in self.full)
        told = f"{_count(len(self.full), 'experiment')}, {_count(ended, 'run')} that ended"
        if self.smoke:
            told += f"; besides, at the end, {_count(len(self.smoke), 'smoke experiment')}"
        return f"{told}."


def make_overview(pages: Sequence[StudyPage]) -> Grid:
    """Return each arm at the largest budget at which it has a difference to plain."""
    rows = []
    for page in pages:
        name = page.study.key
        if page.answers is None:
            rows.append((name, "-", "-", "-", "-", "no answer yet", "-"))
            continue
        answers = page.answers
        accuracies = {(s.arm, s.budget): show_accuracy(s) for s in answers.summaries}
        sooner = {(f.arm, f.budget): show_reach(f.reach) for f in answers.speed_ups}
        largest = {d.arm: d for d in sorted(answers.differences, key=lambda d: d.budget)}
        for arm, difference in largest.items():
            budget = difference.budget
            rows.append(
                (
                    name,
                    name_arm(arm),
                    str(budget),
                    accuracies[BASELINE, budget],
                    accuracies[arm, budget],
                    show_difference(difference),
                    sooner.get((arm, budget), "-"),
                )
            )
    head = ("experiment", "arm", "epochs", "plain, %", "arm, %", "difference", "speed-up")
    return Grid("Test accuracy at the largest budget", head, tuple(rows), words=2)


def render_html_report(report: Report) -> str:
    """Return the whole report as one file that needs no other."""
    parts = [_render_contents(report)]
    for anchor, chapter in _list_common(report):
        parts.append(f'<div id="{anchor}">\n{render_chapter(chapter)}\n</div>')
    parts[2:2] = [_render_study(page) for page in report.full]
    parts += [_render_study(page) for page in report.smoke]
    return render_document(TITLE, report.question, "\n".join(parts))


def render_markdown_report(report: Report) -> str:
    """Return the report as Markdown; its pictures lie in one folder for each experiment."""
    overview, *rest = [chapter for _, chapter in _list_common(report)]
    parts = [f"# {TITLE}", report.question, *render_chapter_in_markdown(overview)]
    for page in report.full:
        parts += _render_study_in_markdown(page)
    for chapter in rest:
        parts += render_chapter_in_markdown(chapter)
    for page in report.smoke:
        parts += [f"# {SMOKE}", *_render_study_in_markdown(page)]
    return "\n\n".join(parts) + "\n"


def _list_common(report: Report) -> list[tuple[str, Chapter]]:
    """Return what is about all experiments together: the overview first, the rest after them."""
    overview = make_overview(report.full)
    empty = "No experiment has been run for real yet." if not report.full else "No answer yet."
    values: dict[Key, Value] = {}
    for page in report.full:
        values |= measure_study(page.study)
    first = Chapter(
        "At a glance",
        sentences=() if overview.rows else (empty,),
        grids=(overview,) if overview.rows else (),
    )
    common = [(OVERVIEW, first), (CLAIMS, judge_claims(values))]
    if report.damages:
        told = tuple(damage.reason for damage in report.damages)
        lists = (("Left out", told),)
        common.append((DAMAGED, Chapter("Damaged records", lists=lists)))
    return common


def _render_contents(report: Report) -> str:
    titles = {anchor: chapter.title for anchor, chapter in _list_common(report)}
    entries = [(OVERVIEW, titles.pop(OVERVIEW))]
    entries += [(page.study.key, page.title) for page in report.full]
    entries += titles.items()
    entries += [(page.study.key, f"SMOKE RUN: {page.title}") for page in report.smoke]
    items = "\n".join(
        f'<li><a href="#{anchor}">{html.escape(title)}</a></li>' for anchor, title in entries
    )
    return f'<nav aria-label="Contents">\n<h2>Contents</h2>\n<ol>\n{items}\n</ol>\n</nav>'


def _render_study(page: StudyPage) -> str:
    banner = f"{SMOKE_BANNER}\n" if page.study.kind == "smoke" else ""
    about = "\n".join(f"<p>{html.escape(told)}</p>" for told in page.question)
    chapters = "\n".join(render_chapter(c, page.answers, level=3) for c in page.chapters)
    return (
        f'<article id="{page.study.key}">\n{banner}<h2>{html.escape(page.title)}</h2>\n'
        f"{about}\n{chapters}\n</article>"
    )


def _render_study_in_markdown(page: StudyPage) -> list[str]:
    parts = [f"## {escape_markdown(page.title)}", *map(escape_markdown, page.question)]
    for chapter in page.chapters:
        parts += render_chapter_in_markdown(chapter, 3, f"{page.study.key}/")
    return parts


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
