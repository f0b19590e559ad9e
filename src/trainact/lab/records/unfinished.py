"""Unfinished runs beside a run that starts: which settings keep them from being continued."""

import json
from pathlib import Path

from trainact.errors import TrActError
from trainact.lab.recipes.differences import FieldDifference, compare_tables
from trainact.lab.recipes.recipe import (
    FIELDS_WITHOUT_EFFECT,
    Recipe,
    read_recipe,
    recipe_to_dict,
)
from trainact.lab.records.checkpoint import has_checkpoint
from trainact.lab.records.record import RunFolder

__all__ = ["describe_unfinished"]

MOST = 3
"""Settings in which an unfinished run may differ; with more it belongs to another experiment."""


def describe_unfinished(folder: RunFolder) -> list[str]:
    """Return messages about unfinished runs, for a run that is about to start.

    If the run itself is unfinished, the message says which settings have changed; they do not
    change its numbers beyond rounding, or it would have another folder. Otherwise there is a
    message for each unfinished run of the same arm, budget and seed that differs in at most `MOST`
    settings, and would be continued with other settings.
    """
    if has_checkpoint(folder.path):
        found = _compare(folder.recipe, folder.path)
        if not found:
            return []
        now, before = (_list(found, column) for column in ("value", "other"))
        return [f"continues with {now} (before: {before})"]
    messages = []
    for path in sorted(folder.path.parent.glob("*")):
        if _is_alike(path, folder) and has_checkpoint(path) and not (path / "record.json").exists():
            found = _compare(folder.recipe, path)
            if 0 < len(found) <= MOST:
                here, there = (_list(found, column) for column in ("value", "other"))
                messages.append(
                    f"starts from the beginning: an unfinished run has {there}, this one {here}; "
                    f"give {there} to continue that one ({path.name})"
                )
    return messages


def _is_alike(path: Path, folder: RunFolder) -> bool:
    """Return whether a folder's name has the same arm, budget and seed, and another identity."""
    length = len(folder.identity)
    own = folder.path.name
    return path.name != own and path.name[:-length] == own[:-length]


def _compare(recipe: Recipe, folder: Path) -> list[FieldDifference]:
    """Return the settings with an effect in which the recipe in a folder differs."""
    try:
        theirs = recipe_to_dict(read_recipe(folder / "recipe.toml"))
    except TrActError:  # it is missing, damaged, or of a version with other fields
        return []
    return compare_tables(recipe_to_dict(recipe), theirs, FIELDS_WITHOUT_EFFECT)


def _list(found: list[FieldDifference], column: str) -> str:
    """Return the settings as the command line takes them."""
    values = ((row.field, getattr(row, column)) for row in found)
    return " and ".join(
        f"no {field}"
        if value is None
        else f"{field}={value if isinstance(value, str) else json.dumps(value)}"
        for field, value in values
    )
