"""``trainact report``: from the records of runs to pages."""

import argparse
import sys
from pathlib import Path

from trainact.lab.analysis.studies import find_studies
from trainact.lab.files import write_atomically
from trainact.lab.report.chapters import list_pictures
from trainact.lab.report.curves import draw_pictures
from trainact.lab.report.report_page import (
    Report,
    make_overview,
    render_html_report,
    render_markdown_report,
)
from trainact.lab.report.study_chapters import write_study
from trainact.lab.report.tables import render_text
from trainact.lab.report.wording import SMOKE

__all__ = ["add_arguments", "run", "write_report"]

PICTURES = ("accuracy.png", "budgets.png", "gradients.png")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    add = parser.add_argument
    add("results", nargs="+", type=Path, metavar="RESULTS", help="folders with runs below them")
    add("--out", type=Path, default=Path("trainact-report"), help="folder (default %(default)s)")


def run(arguments: argparse.Namespace) -> int:
    """Write the pages; 1 where a record is damaged or records do not belong together."""
    report = read_report(arguments.results)
    paths = write_report(report, arguments.out)
    _print(report)
    print("\n".join(f"wrote {path}" for path in paths if path.suffix != ".png"))
    problems = [damage.reason for damage in report.damages]
    problems += [page.problem for page in report.pages if page.problem]
    for problem in problems:
        print(f"trainact: left out: {problem}", file=sys.stderr)
    return 1 if problems else 0


def read_report(results: list[Path]) -> Report:
    """Return what the records below some folders say.

    Raises:
        TrActValueError: there is no such folder, or no run in any.
    """
    studies, damages = find_studies(results)
    return Report(tuple(map(write_study, studies)), tuple(damages))


def write_report(report: Report, folder: Path) -> list[Path]:
    """Write report.html, report.md and a folder of pictures for each experiment.

    The same records give the same bytes.

    Raises:
        StorageError: the disk is full or the folder cannot be written.
    """
    held: dict[str, bytes] = {}
    for page in report.pages:
        names = list_pictures(page.chapters)
        drawn = {} if page.answers is None else draw_pictures(page.answers, names)
        held |= {f"{page.study.key}/{name}": content for name, content in drawn.items()}
        for name in PICTURES:  # of an earlier report
            if name not in drawn:
                (folder / page.study.key / name).unlink(missing_ok=True)
    held["report.md"] = render_markdown_report(report).encode()
    held["report.html"] = render_html_report(report).encode()
    for name, content in held.items():
        write_atomically(folder / name, content)
    return [folder / name for name in held]


def _print(report: Report) -> None:
    overview = make_overview(report.full)
    if overview.rows:
        print(render_text(overview))
    for page in report.full:
        lost = sum(record["status"] == "diverged" for record in page.study.records)
        told = f"{len(page.study.records) - lost} complete, {lost} diverged"
        print(f"{page.study.name}: {told}, {len(page.study.interrupted)} interrupted")
    for page in report.smoke:
        print(f"{page.study.name}: {SMOKE}")
