"""Hyperparameters that the paper prints, under the names of a recipe's fields."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

from trainact.errors import TrActValueError
from trainact.lab.paper.tables import read_toml_resource
from trainact.lab.paper.values import parse_number
from trainact.lab.schema import name_nearest

__all__ = ["PrintedSettings", "list_settings", "read_settings"]

Numbers = tuple[float, ...]


@dataclass(frozen=True)
class PrintedSettings:
    """What is printed about how one experiment was run.

    Attributes:
        recipe: its name; ``method`` for what holds everywhere.
        section: where it is printed.
        fields: by dotted name of a recipe's field, every value that was used.
        at: by number of epochs, the fields that differ with it.
        grid: learning rates that the plain run's was chosen from.
        other: numbers that no field of a recipe holds, by what they are.
    """

    recipe: str
    section: str
    fields: Mapping[str, Numbers]
    at: Mapping[int, Mapping[str, Numbers]]
    grid: Numbers
    other: Mapping[str, Numbers]


def list_settings() -> list[str]:
    """Return the recipes that settings are printed of, ``method`` first."""
    return list(_read_file())


def read_settings(recipe: str) -> PrintedSettings:
    """Return the printed settings of a recipe.

    >>> settings = read_settings("cifar10-vit")
    >>> settings.fields["optimizer.label_smoothing"], settings.at[100]["optimizer.lr"]
    ((0.1,), (0.001,))

    Raises:
        TrActValueError: none are printed; the nearest names are given.
    """
    content = _read_file()
    if recipe not in content:
        raise TrActValueError(name_nearest(recipe, content, "recipe with printed settings"))
    table = content[recipe]
    return PrintedSettings(
        recipe=recipe,
        section=table["section"],
        fields=_read_numbers(table.get("fields", {})),
        at=MappingProxyType(
            {int(budget): _read_numbers(row) for budget, row in table.get("at", {}).items()}
        ),
        grid=_read(table.get("grid", [])),
        other=_read_numbers(table.get("other", {})),
    )


@cache
def _read_file() -> dict[str, Any]:
    return read_toml_resource("settings")


def _read_numbers(table: Mapping[str, str | list[str]]) -> Mapping[str, Numbers]:
    return MappingProxyType({name: _read(text) for name, text in table.items()})


def _read(text: str | list[str]) -> Numbers:
    return tuple(map(parse_number, [text] if isinstance(text, str) else text))
