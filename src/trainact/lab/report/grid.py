"""A table of text and its forms: terminal, plain text and Markdown; ``page.html`` has HTML."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = ["Grid", "escape_markdown", "print_grid", "render_markdown", "render_text"]


@dataclass(frozen=True)
class Grid:
    """A table whose cells are text."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    text_columns: int = 1  # the first columns, which are left-aligned; the others right-aligned


def print_grid(grid: Grid, console: Console | None = None) -> None:
    """Print a drawn table in a terminal, and aligned text in a file or pipe."""
    console = console or Console()
    if not console.file.isatty():
        console.print(Text(render_text(grid)), soft_wrap=True)
        return
    table = Table(title=Text(grid.caption))
    for index, name in enumerate(grid.head):
        table.add_column(Text(name), justify="left" if index < grid.text_columns else "right")
    for row in grid.rows:
        table.add_row(*map(Text, row))  # a Text is never parsed as markup
    console.print(table)


def render_text(grid: Grid) -> str:
    r"""Return plain text with aligned columns.

    >>> print(render_text(Grid("Final accuracy", ("arm", "n"), (("plain", "3"),))))
    Final accuracy
    arm    n
    plain  3
    """
    widths = [max(map(len, column)) for column in zip(grid.head, *grid.rows, strict=True)]

    def align(row: Sequence[str]) -> str:
        cells = (
            cell.ljust(width) if index < grid.text_columns else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        return "  ".join(cells).rstrip()

    return "\n".join([grid.caption, align(grid.head), *map(align, grid.rows)])


def render_markdown(grid: Grid) -> str:
    """Return a Markdown table without the caption."""
    rule = ["---" if index < grid.text_columns else "---:" for index in range(len(grid.head))]
    rows = [[escape_markdown(cell) for cell in row] for row in (grid.head, *grid.rows)]
    return "\n".join("| " + " | ".join(row) + " |" for row in (rows[0], rule, *rows[1:]))


def escape_markdown(text: str) -> str:
    r"""Return the text so that Markdown shows it unchanged, also in a table.

    >>> escape_markdown("a|b <i> & < 1")
    'a\\|b &lt;i> & < 1'
    """
    line = " ".join(text.split()).replace("|", "\\|")
    return re.sub(r"<(?=[a-zA-Z/!?])", "&lt;", re.sub(r"&(?=[a-zA-Z#])", "&amp;", line))
