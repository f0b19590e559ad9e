"""The paper's tables, the figures without printed numbers, and the training times of its text."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any

from trainact.errors import TrActValueError
from trainact.lab.paper.values import UNSTATED_BUDGET, Key, PrintedValue, parse_cell
from trainact.lab.text import describe_unknown

__all__ = [
    "PrintedFigure",
    "PrintedRow",
    "PrintedTable",
    "PrintedTime",
    "list_tables",
    "read_figures",
    "read_table",
    "read_times",
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
SECONDS = {"seconds": 1, "minutes": 60}


@dataclass(frozen=True)
class PrintedRow:
    """A row of a table: its name in the paper, and its numbers by key, without empty cells."""

    name: str
    values: tuple[tuple[Key, PrintedValue], ...]


@dataclass(frozen=True)
class PrintedTable:
    """A table of the paper, or related numbers of its text."""

    key: str  # our name
    title: str
    numbers: tuple[int, ...]  # several if they print the same; empty for numbers of the text
    place: str  # numbers, labels in the LaTeX source, and section
    seeds: int | None  # runs in a mean; None if not stated
    unit: str
    note: str
    rows: tuple[PrintedRow, ...]
    aliases: Mapping[str, tuple[str, int]]  # recipe -> recipe and budget whose numbers it shares

    @property
    def values(self) -> dict[Key, PrintedValue]:
        """Return all numbers by key."""
        return {key: value for row in self.rows for key, value in row.values}

    @property
    def recipes(self) -> set[str]:
        """Return the recipes with results in this table."""
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
    seeds: int | None  # None if not stated

    @property
    def place(self) -> str:
        """Return number, label and section."""
        return f"{self.number} ({self.label}), Section {self.section}"


@dataclass(frozen=True)
class PrintedTime:
    """The training time of one run, as the text gives it."""

    recipe: str
    arm: str  # plain or tract
    budget: int  # epochs
    hours: float  # wall-clock
    gpus: int
    gpu: str  # model

    @property
    def gpu_hours(self) -> float:
        """Return the hours of all GPUs together."""
        return self.hours * self.gpus


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
        TrActValueError: there is no such table; the message names the most similar keys.
    """
    if key not in TABLES:
        raise TrActValueError(describe_unknown(key, TABLES, "table of the paper"))
    content = read_toml_resource(key)
    numbers, labels = content.get("numbers", []), content.get("labels", [])
    places = [f"Table {n} ({label})" for n, label in zip(numbers, labels, strict=True)] or ["text"]
    aliases = content.get("aliases", {})
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
            {name: (other["recipe"], other["budget"]) for name, other in aliases.items()}
        ),
    )


@cache
def read_figures() -> tuple[PrintedFigure, ...]:
    """Return the figures that show results, in the order of the paper."""
    rows = read_toml_resource("figures")["figures"]
    lists = [{name: tuple(row[name]) for name in ("recipes", "budgets")} for row in rows]
    return tuple(
        PrintedFigure(**{"seeds": None, **row, **tuples})
        for row, tuples in zip(rows, lists, strict=True)
    )


@cache
def read_times() -> tuple[PrintedTime, ...]:
    """Return all training times, plain before TrAct.

    >>> read_times()[2].gpu, round(read_times()[2].gpu_hours)
    ('NVIDIA A40', 535)
    """
    rows = read_toml_resource("runtime")["rows"]
    gpus = {row["recipe"]: (row["gpus"], row["gpu"]) for row in rows}
    return tuple(
        PrintedTime(
            key.recipe,
            key.arm,
            key.budget,
            value.mean * SECONDS[key.metric] / 3600,
            *gpus[key.recipe],
        )
        for key, value in read_table("runtime").values.items()
    )


def read_toml_resource(name: str) -> dict[str, Any]:
    """Return the content of a TOML file of this package."""
    file = resources.files("trainact.lab.paper") / f"{name}.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))


def _read_row(row: dict[str, Any], content: dict[str, Any], key: str) -> PrintedRow:
    """Return a row; the table, the row and the column each give parts of a number's key."""
    columns = content["columns"]
    if len(row["cells"]) != len(columns):
        raise TrActValueError(
            f"the row {row['name']!r} of {key}.toml has {len(row['cells'])} cells for "
            f"{len(columns)} columns; give one cell for each column."
        )
    values = []
    for cell, column in zip(row["cells"], columns, strict=True):
        value = parse_cell(cell)
        if value is not None:
            parts = {"network": None, "budget": UNSTATED_BUDGET, **content, **row, **column}
            values.append((Key(*(parts[field] for field in Key._fields)), value))
    return PrintedRow(row["name"], tuple(values))
