"""Tables of a comparison, for a terminal, for a pipe, and for pages.

A ``Grid`` is a table before it has a look; four functions give it one.
"""

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trainact.lab.analysis.answers import Answers
from trainact.lab.recipes.arms import BASELINE, name_arm
from trainact.lab.report.wording import (
    SMOKE,
    show_accuracy,
    show_difference,
    show_number,
    show_ratio,
    show_speed_up,
)

__all__ = [
    "Grid",
    "escape_markdown",
    "make_cost_grid",
    "make_crossing_grid",
    "make_final_grid",
    "make_other_grid",
    "make_run_grid",
    "make_speed_up_grid",
    "print_final_table",
    "print_grid",
    "render_html",
    "render_markdown",
    "render_rich",
    "render_text",
]

LONG = 26
"""A cell of more letters than this may break into lines."""
WORD = ' class="word"'


@dataclass(frozen=True)
class Grid:
    """A caption, a head, and rows of as many cells; the first ``words`` columns are words."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: int = 1


def make_final_grid(answers: Answers) -> Grid:
    """Return the final table: accuracy, difference to plain and time of each arm and budget."""
    differences = {(d.arm, d.budget): d for d in answers.differences}
    costs = {(cost.arm, cost.budget): cost for cost in answers.time_ratios}
    rows = []
    for summary in sorted(answers.summaries, key=lambda s: s.budget):
        key = summary.arm, summary.budget
        lost = f" ({len(summary.diverged)} diverged)" if summary.diverged else ""
        rows.append(
            (
                name_arm(summary.arm),
                str(summary.budget),
                show_accuracy(summary),
                f"{summary.n}{lost}",
                show_difference(differences.get(key)),
                "1×" if summary.arm == BASELINE else show_ratio(costs.get(key)),
            )
        )
    head = ("arm", "epochs", "accuracy, %", "n", "difference to plain", "time per epoch")
    return Grid("Test accuracy at the end: mean ± standard deviation over seeds", head, tuple(rows))


def make_other_grid(answers: Answers) -> Grid:
    """Return the differences to other arms than plain."""
    rows = [
        (name_arm(d.arm), name_arm(d.against), str(d.budget), show_difference(d), str(d.n))
        for d in sorted(answers.others, key=lambda d: d.budget)
    ]
    head = ("arm", "minus", "epochs", "difference [95 %]", "n")
    return Grid("Differences to other arms than plain", head, tuple(rows), words=2)


def make_speed_up_grid(answers: Answers) -> Grid:
    """Return every speed-up."""
    rows = [
        (
            name_arm(found.arm),
            str(found.budget),
            show_number(found.target),
            "not reached" if found.epochs is None else show_number(found.epochs, 1),
            show_speed_up(found),
            str(len(found.seeds)),
        )
        for found in answers.speed_ups
    ]
    head = ("arm", "plain's epochs E", "its accuracy, %", "arm's epochs e", "speed-up E / e", "n")
    return Grid("Epochs to plain's accuracy, between budgets run", head, tuple(rows))


def make_crossing_grid(answers: Answers) -> Grid:
    """Return the crossings inside one run."""
    rows = [
        (
            name_arm(found.arm),
            str(found.budget),
            "-" if found.median is None else show_number(found.median, 1),
            f"{found.never} of {found.n}",
        )
        for found in sorted(answers.crossings, key=lambda c: c.budget)
    ]
    head = ("arm", "epochs", "reached at (median)", "never")
    return Grid("First epoch at plain's final accuracy, inside one run", head, tuple(rows))


def make_cost_grid(answers: Answers) -> Grid:
    """Return what an epoch of training costs."""
    rows = [
        (
            name_arm(cost.arm),
            str(cost.budget),
            show_ratio(cost),
            f"{show_number(cost.low)}× to {show_number(cost.high)}×",
            str(cost.n),
            "same" if cost.same_machine else "different",
        )
        for cost in sorted(answers.time_ratios, key=lambda c: c.budget)
    ]
    head = ("arm", "epochs", "median", "least to greatest", "n", "machines")
    return Grid("Training time of an epoch, over plain's", head, tuple(rows))


def make_run_grid(answers: Answers) -> Grid:
    """Return every run, complete or not."""
    rows = [
        (
            name_arm(run.arm),
            str(run.budget),
            str(run.seed),
            "-" if run.accuracy is None else show_number(run.accuracy),
            "complete" if run.complete else f"diverged: {run.failure or 'no reason given'}",
            show_number(run.seconds, 1),
            run.recipe_id,
        )
        for run in answers.runs
    ]
    head = ("arm", "epochs", "seed", "accuracy, %", "status", "seconds", "recipe")
    return Grid("All runs, complete or not", head, tuple(rows))


def render_rich(grid: Grid) -> Table:
    """Return the table for a terminal; cells are text, never markup."""
    table = Table(title=Text(grid.caption))
    for index, name in enumerate(grid.head):
        table.add_column(Text(name), justify="left" if index < grid.words else "right")
    for row in grid.rows:
        table.add_row(*map(Text, row))
    return table


def render_text(grid: Grid) -> str:
    r"""Return plain lines with aligned columns.

    >>> print(render_text(Grid("Ends", ("arm", "n"), (("plain", "3"),))))
    Ends
    arm    n
    plain  3
    """
    widths = [max(map(len, column)) for column in zip(grid.head, *grid.rows, strict=True)]

    def align(row: Sequence[str]) -> str:
        cells = (
            cell.ljust(width) if index < grid.words else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        return "  ".join(cells).rstrip()

    return "\n".join([grid.caption, align(grid.head), *map(align, grid.rows)])


def render_markdown(grid: Grid) -> str:
    """Return a Markdown table, without the caption."""
    rule = ["---" if index < grid.words else "---:" for index in range(len(grid.head))]
    rows = [[escape_markdown(cell) for cell in row] for row in (grid.head, *grid.rows)]
    return "\n".join("| " + " | ".join(row) + " |" for row in (rows[0], rule, *rows[1:]))


def escape_markdown(text: str) -> str:
    r"""Return text that Markdown shows as it is, within a table too.

    >>> escape_markdown("a|b <i> & < 1")
    'a\\|b &lt;i> & < 1'
    """
    line = " ".join(text.split()).replace("|", "\\|")
    return re.sub(r"<(?=[a-zA-Z/!?])", "&lt;", re.sub(r"&(?=[a-zA-Z#])", "&amp;", line))


def render_html(grid: Grid) -> str:
    """Return an HTML table in a box of its own that scrolls; every string is escaped."""
    caption = html.escape(grid.caption)
    head = "".join(
        f'<th scope="col"{WORD * (0 < index < grid.words)}>{html.escape(name)}</th>'
        for index, name in enumerate(grid.head)
    )
    body = "\n".join(
        f'<tr><th scope="row">{html.escape(row[0])}</th>'
        + "".join(_render_cell(c, index < grid.words) for index, c in enumerate(row[1:], start=1))
        + "</tr>"
        for row in grid.rows
    )
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{caption}">\n<table>'
        f"<caption><span>{caption}</span></caption>\n<thead><tr>{head}</tr></thead>\n"
        f"<tbody>\n{body}\n</tbody></table>\n</div>"
    )


def _render_cell(cell: str, is_word: bool) -> str:
    kinds = ["long"] * (len(cell) > LONG) + ["word"] * is_word
    kind = f' class="{" ".join(kinds)}"' if kinds else ""
    return f"<td{kind}>{html.escape(cell)}</td>"


def print_grid(grid: Grid, console: Console | None = None) -> None:
    """Print a table: drawn in a terminal, aligned text elsewhere, whatever colours are forced."""
    console = console or Console()
    if console.file.isatty():
        console.print(render_rich(grid))
    else:
        console.print(Text(render_text(grid)), soft_wrap=True)


def print_final_table(answers: Answers, console: Console | None = None) -> None:
    """Print the final table, with a warning above it where the runs are smoke runs."""
    console = console or Console()
    if answers.kind == "smoke":
        console.print(Text(SMOKE, style="bold red"), soft_wrap=True)
    print_grid(make_final_grid(answers), console)
