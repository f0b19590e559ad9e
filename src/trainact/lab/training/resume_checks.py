"""Checks that a run's data and initial weights have not changed since it started.

A recipe names files, and their content may change. The record or checkpoint of an earlier run then
no longer belongs to the recipe.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainact.errors import TrActError, TrActValueError
from trainact.lab.data.images import DataError
from trainact.lab.data.names import NAMES
from trainact.lab.models.detection.faster_rcnn import DETECTOR
from trainact.lab.models.pretrained import find_weights, hash_file
from trainact.lab.recipes.own_loops import has_own_loop
from trainact.lab.recipes.recipe import Recipe

__all__ = ["check_data", "check_record"]

UNREADABLE = (FileNotFoundError, PermissionError, ImportError)
"""Errors that do not show whether the data have changed."""


def check_record(record: dict[str, Any], recipe: Recipe, load: Callable[..., Any]) -> None:
    """Check that a record was made with the data and the initial weights of a recipe.

    Only local files are checked; nothing is downloaded. Data or weights that are missing or cannot
    be read do not make the record invalid. ``load`` loads the data set of the recipe's data table.

    Raises:
        DataError: the data have changed, or no run can start with them any more.
        TrActValueError: the weights have changed.
    """
    if has_own_loop(recipe):  # its data and weights are not known
        return
    data = _load_local(recipe, load)
    if data is not None:
        check_data(data, record["data"]["fingerprint"])
    weights, file = record["model"].get("weights"), _find_file(recipe)
    if weights and file is not None and hash_file(file) != weights["sha256"]:
        raise TrActValueError(
            f"{file} does not hold the weights that this run started with; restore the old file, "
            "or choose another --out to start again."
        )


def check_data(data: Any, expected: str) -> None:
    """Raise `DataError` if the fingerprint of a data set is not the expected one."""
    if data.fingerprint != expected:
        raise DataError(
            f"{data.name} is not the data set that this run started with (its fingerprint was "
            f"{expected[:12]} and is {data.fingerprint[:12]}); restore the old one, or choose "
            "another --out to start again."
        )


def _load_local(recipe: Recipe, load: Callable[..., Any]) -> Any:
    """Return the data set if it is on this machine and can be read, otherwise None."""
    name, folder = recipe.data.name, recipe.data.folder
    if (name in NAMES and not folder) or not Path(folder or name).expanduser().exists():
        return None
    try:
        return load(recipe.data)
    except UNREADABLE:
        return None
    except DataError as error:
        if isinstance(error.__cause__, UNREADABLE):
            return None
        raise


def _find_file(recipe: Recipe) -> Path | None:
    """Return the file of initial weights if it exists and can be read, otherwise None."""
    try:
        if recipe.model.name == DETECTOR:
            file = Path(recipe.model.arguments["weights"]).expanduser()
        else:
            file = find_weights(recipe.model, recipe.run.seed)
    except TrActError:
        return None
    return file if file.is_file() and os.access(file, os.R_OK) else None
