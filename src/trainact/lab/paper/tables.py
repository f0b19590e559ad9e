"""The paper's tables, and the figures that show results without printing them."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any

from trainact.errors import TrActValueError
from trainact.lab.paper.values import UNSTATED_BUDGET, Key, PrintedValue, parse_cell
from trainact.lab.schema import name_nearest

__all__ = [
    "PrintedFigure",
    "PrintedRow",
    "PrintedTable",
    "list_tables",
    "read_figures",
    "read_table",
    "read_toml_resource",
]

TABLES = (
    "cifar100",
    "cifar100-133",
    "imagenet-resnet50",
    "deit3",
    "transfer",
    "detection",
    "runtime",
)


@dataclass(frozen=True)
class PrintedRow:
    """One row: what it is called there, and its numbers by key; empty cells are left out."""

    name: str
    values: tuple[tuple[Key, PrintedValue], ...]


@dataclass(frozen=True)
class PrintedTable:
    """A table of the paper, or numbers of its text that belong together.

    Attributes:
        key: its name here.
        title: what it shows.
        numbers: of the table, or of several that print the same; empty for numbers of the text.
        place: numbers, labels in the LaTeX source, and section.
        seeds: runs that a number is the mean of; None where that is not stated.
        unit: of its numbers.
        note: what a reader must know besides.
        rows: in their order.
        aliases: recipes whose printed numbers are those of another one at some budget.
    """

    key: str
    title: str
    numbers: tuple[int, ...]
    place: str
    seeds: int | None
    unit: str
    note: str
    rows: tuple[PrintedRow, ...]
    aliases: Mapping[str, tuple[str, int]]

    @property
    def values(self) -> dict[Key, PrintedValue]:
        """Return all numbers by key."""
        return {key: value for row in self.rows for key, value in row.values}

    @property
    def recipes(self) -> set[str]:
        """Return the recipes whose results it prints."""
        return {key.recipe for key in self.values} | set(self.aliases)


@dataclass(frozen=True)
class PrintedFigure:
    """Curves without printed numbers."""

    number: str
    label: str
    title: str
    section: str
    recipes: tuple[str, ...]
    budgets: tuple[int, ...]
    seeds: int | None  # None where that is not stated

    @property
    def place(self) -> str:
        """Return number, label and section."""
        return f"{self.number} ({self.label}), Section {self.section}"


def list_tables() -> list[str]:
    """Return the keys of all tables, in the order of the paper.

    >>> list_tables()[:3]
    ['cifar100', 'cifar100-133', 'imagenet-resnet50']
    """
    return list(TABLES)


@cache
def read_table(key: str) -> PrintedTable:
    """Return a table by its key.

    >>> read_table("detection").rows[0].values[1][1]
    PrintedValue(mean=0.671, deviation=0.004, decimals=3)

    Raises:
        TrActValueError: there is no such table; the nearest keys are named.
    """
    if key not in TABLES:
        raise TrActValueError(name_nearest(key, TABLES, "table of the paper"))
    content = read_toml_resource(key)
    numbers, labels = content.get("numbers", []), content.get("labels", [])
    places = [f"Table {n} ({label})" for n, label in zip(numbers, labels, strict=True)] or ["text"]
    return PrintedTable(
        key=key,
        title=content["title"],
        numbers=tuple(numbers),
        place=f"{', '.join(places)}, Section {content['section']}",
        seeds=content.get("seeds"),
        unit=content["unit"],
        note=content.get("note", ""),
        rows=tuple(_read_row(row, content, key) for row in content["rows"]),
        aliases=MappingProxyType(
            {
                name: (named["recipe"], named["budget"])
                for name, named in content.get("aliases", {}).items()
            }
        ),
    )


@cache
def read_figures() -> tuple[PrintedFigure, ...]:
    """Return the figures that show results, in the order of the paper."""
    return tuple(
        PrintedFigure(
            number=figure["number"],
            label=figure["label"],
            title=figure["title"],
            section=figure["section"],
            recipes=tuple(figure["recipes"]),
            budgets=tuple(figure["budgets"]),
            seeds=figure.get("seeds"),
        )
        for figure in read_toml_resource("figures")["figures"]
    )


def read_toml_resource(name: str) -> dict[str, Any]:
    """Return the tables of a TOML file beside this module."""
    file = resources.files("trainact.lab.paper") / f"{name}.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))


def _read_row(row: dict[str, Any], content: dict[str, Any], key: str) -> PrintedRow:
    """Return a row; what names a number stands with the table, the row or the column."""
    columns = content["columns"]
    if len(row["cells"]) != len(columns):
        raise TrActValueError(
            f"the row {row['name']!r} of {key}.toml has {len(row['cells'])} cells for "
            f"{len(columns)} columns."
        )
    named = []
    for cell, column in zip(row["cells"], columns, strict=True):
        value = parse_cell(cell)
        if value is not None:
            parts = {"network": None, "budget": UNSTATED_BUDGET, **content, **row, **column}
            named.append((Key(*(parts[field] for field in Key._fields)), value))
    return PrintedRow(row["name"], tuple(named))
