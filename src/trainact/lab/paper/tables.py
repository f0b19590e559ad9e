"""The paper's tables, figures and training times, and their values by recipe."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from trainact.errors import TrActValueError
from trainact.lab.paper.values import (
    METRICS,
    TRACT_ARMS,
    UNSTATED_BUDGET,
    UNSTATED_LAM,
    Key,
    PrintedValue,
    parse_cell,
)
from trainact.lab.recipes.arms import Arm
from trainact.lab.text import describe_unknown

__all__ = [
    "TABLE_OF_NETWORKS",
    "PrintedFigure",
    "PrintedTable",
    "PrintedTime",
    "find_places",
    "find_printed",
    "list_networks",
    "list_printed",
    "list_recipes",
    "printed_values",
    "read_figures",
    "read_table",
    "read_tables",
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
TABLE_OF_NETWORKS = "cifar100-table"
"""The recipe that has 36 networks."""
AVERAGE = "average"


@dataclass(frozen=True)
class PrintedTable:
    """A table of the paper, or related numbers of its text."""

    key: str  # our name
    title: str
    numbers: tuple[int, ...]  # several if they print the same; empty for numbers of the text
    place: str  # numbers, labels in the LaTeX source, and section
    values: Mapping[Key, PrintedValue]  # without empty cells
    aliases: Mapping[str, tuple[str, int]]  # recipe -> recipe and budget whose numbers it shares

    @property
    def recipes(self) -> set[str]:
        """Return the recipes with results in this table."""
        return {key.recipe for key in self.values} | set(self.aliases)


@dataclass(frozen=True)
class PrintedFigure:
    """Curves without printed numbers."""

    number: str
    title: str
    place: str  # number, label in the LaTeX source, and section
    recipes: tuple[str, ...]


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


@cache
def read_table(key: str) -> PrintedTable:
    """Return a table by its key.

    >>> read_table("detection").values["detection-voc2007", None, "tract", 0, "map"]
    PrintedValue(mean=0.671, deviation=0.004, decimals=3)

    Raises:
        TrActValueError: there is no such table; the message names the most similar keys.
    """
    if key not in TABLES:
        raise TrActValueError(describe_unknown(key, TABLES, "table of the paper"))
    content = read_toml_resource(key)
    numbers, labels = content.get("numbers", []), content.get("labels", [])
    places = [f"Table {n} ({label})" for n, label in zip(numbers, labels, strict=True)] or ["text"]
    values: dict[Key, PrintedValue] = {}
    for row in content["rows"]:
        values |= _read_row(row, content, key)
    return PrintedTable(
        key=key,
        title=content["title"],
        numbers=tuple(numbers),
        place=f"{', '.join(places)}, Section {content['section']}",
        values=values,
        aliases={
            name: (other["recipe"], other["budget"])
            for name, other in content.get("aliases", {}).items()
        },
    )


def read_tables() -> list[PrintedTable]:
    """Return all tables, in the order of the paper."""
    return [read_table(key) for key in TABLES]


@cache
def read_figures() -> tuple[PrintedFigure, ...]:
    """Return the figures that show results, in the order of the paper."""
    return tuple(
        PrintedFigure(
            row["number"],
            row["title"],
            f"{row['number']} ({row['label']}), Section {row['section']}",
            tuple(row["recipes"]),
        )
        for row in read_toml_resource("figures")["figures"]
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


def printed_values() -> dict[Key, PrintedValue]:
    """Return all numbers of all tables by key."""
    return {key: value for table in read_tables() for key, value in table.values.items()}


def list_recipes() -> list[str]:
    """Return the recipes with results in a table or a figure of the paper."""
    in_tables = {recipe for table in read_tables() for recipe in table.recipes}
    return sorted(in_tables.union(*(figure.recipes for figure in read_figures())))


def list_networks() -> list[str]:
    """Return the networks of the CIFAR-100 table, in its order.

    >>> len(list_networks()), list_networks()[:2]
    (36, ['squeezenet', 'mobilenet'])
    """
    found = dict.fromkeys(key.network for key in read_table("cifar100").values)
    return [network for network in found if network is not None and network != AVERAGE]


def list_printed(recipe: str) -> dict[Key, PrintedValue]:
    """Return every number that the paper prints of a recipe, by key; none for a recipe of ours.

    A recipe that shares the numbers of another, such as a fine-tuning, has the keys of that one.

    >>> [value.show() for value in list_printed("deit3-vit-b-finetune-a").values()]
    ['83.5', '83.34', '96.44', '83.58', '96.52']
    """
    found: dict[Key, PrintedValue] = {}
    for table in read_tables():
        name, budget = table.aliases.get(recipe, (recipe, None))
        found |= {
            key: value
            for key, value in table.values.items()
            if key.recipe == name and budget in (None, key.budget)
        }
    return found


def find_printed(
    recipe: str, network: str | None, arm: Arm, budget: int, metric: str
) -> PrintedValue | None:
    """Return the number that the paper prints for a run; None if it prints none.

    >>> from trainact.lab.recipes.arms import PLAIN
    >>> find_printed("cifar100-table", "vgg16", PLAIN, 200, "top1").show()
    '72.12 ± 0.24'
    >>> find_printed("cifar10-vit", None, PLAIN, 100, "top1") is None  # only in a figure
    True

    Args:
        recipe: its name; for a fine-tuning, the number of the fine-tuned model is returned.
        network: of the CIFAR-100 table, or ``average``; ignored for recipes with one network.
        arm: with TrAct it also finds a number without stated λ. The arm named ``tract``, without
            λ, finds the number of the λ that the paper used.
        budget: epochs, ignored if the paper states none, and for a fine-tuning. A time is only that
            of the printed number of epochs.
        metric: top1, top5, map, seconds or minutes.

    Raises:
        TrActValueError: the recipe, network or metric is unknown; the message names the most
            similar ones.
    """
    if metric not in METRICS:
        raise TrActValueError(describe_unknown(metric, METRICS, "metric"))
    values = list_printed(recipe)
    recipe, other = _resolve_alias(recipe, budget)
    budget = budget if metric in SECONDS else other
    if recipe != TABLE_OF_NETWORKS:
        network = None
    elif network not in (known := [*list_networks(), AVERAGE]):
        kind = f"network of the recipe {recipe}"
        raise TrActValueError(describe_unknown(network or "", known, kind))
    arms = [arm.name]
    if arm.kind == "tract":
        arms += TRACT_ARMS if arm.name == UNSTATED_LAM else [UNSTATED_LAM]
    keys = [
        Key(recipe, network, one, epochs, metric)
        for one in arms
        for epochs in (budget, UNSTATED_BUDGET)
    ]
    return next((values[key] for key in keys if key in values), None)


def find_places(recipe: str) -> list[str]:
    """Return the tables and figures with a recipe's results: numbers, labels and sections.

    >>> find_places("cifar10-vit-lambda")
    ['Figure 6 (fig:vit-cifar-10-lambda), Section 4.4']

    Raises:
        TrActValueError: the recipe is unknown; the message names the most similar ones.
    """
    _resolve_alias(recipe)  # raises if the recipe is unknown
    tables = [table.place for table in read_tables() if recipe in table.recipes]
    return tables + [figure.place for figure in read_figures() if recipe in figure.recipes]


def _resolve_alias(recipe: str, budget: int = UNSTATED_BUDGET) -> tuple[str, int]:
    """Return the recipe and budget whose numbers a recipe of the paper has."""
    if recipe not in list_recipes():
        raise TrActValueError(describe_unknown(recipe, list_recipes(), "recipe of the paper"))
    found = [table.aliases[recipe] for table in read_tables() if recipe in table.aliases]
    return found[0] if found else (recipe, budget)


def _read_row(row: dict[str, Any], content: dict[str, Any], key: str) -> dict[Key, PrintedValue]:
    """Return a row's numbers; the table, the row and the column each give parts of their keys."""
    columns = content["columns"]
    if len(row["cells"]) != len(columns):
        raise TrActValueError(
            f"the row {row['name']!r} of {key}.toml has {len(row['cells'])} cells for "
            f"{len(columns)} columns; give one cell for each column."
        )
    values = {}
    for cell, column in zip(row["cells"], columns, strict=True):
        value = parse_cell(cell)
        if value is not None:
            parts = {"network": None, "budget": UNSTATED_BUDGET, **content, **row, **column}
            values[Key(*(parts[field] for field in Key._fields))] = value
    return values
