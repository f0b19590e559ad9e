"""``trainact report``: write pages from the records of runs."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainact.lab.report.experiments_report import Report

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    add = parser.add_argument
    add("results", nargs="+", type=Path, metavar="RESULTS", help="folders that contain runs")
    add("--out", type=Path, default=Path("trainact-report"), metavar="FOLDER",
        help="output folder (default: %(default)s)")  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Write the pages; 1 if a record is damaged or records cannot be compared."""
    from trainact.lab.report.experiments_report import read_report, write_report

    report = read_report(arguments.results)
    paths = write_report(report, arguments.out)
    _print(report)
    print("\n".join(f"wrote {path}" for path in paths if path.suffix != ".png"))
    problems = [damage.reason for damage in report.damages]
    problems += [page.problem for page in report.pages if page.problem]
    for problem in problems:
        print(f"trainact: skipped: {problem}", file=sys.stderr)
    return 1 if problems else 0


def _print(report: "Report") -> None:
    from trainact.lab.report.experiments_report import list_overview, make_overview_grid
    from trainact.lab.report.grid import render_text
    from trainact.lab.report.wording import SMOKE_WARNING

    overview = make_overview_grid(list_overview(report.full))
    if overview.rows:
        print(render_text(overview))
    for page in report.full:
        records = page.study.records
        diverged = sum(record["status"] == "diverged" for record in records)
        print(
            f"{page.study.name}: {len(records) - diverged} complete, {diverged} diverged, "
            f"{len(page.study.interrupted)} interrupted"
        )
    for page in report.smoke:
        print(f"{page.study.name}: {SMOKE_WARNING}")
