"""Whether a run that has ended was of the data and the weights that its recipe names today.

A recipe names files. What they hold may have changed since, and then the record of a run that has
ended answers another question than the one that is asked now.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainact.errors import TrActError, TrActValueError
from trainact.lab.data.images import DataError
from trainact.lab.data.sources import NAMES
from trainact.lab.models.detection.faster_rcnn import DETECTOR
from trainact.lab.models.pretrained import find_weights, hash_file
from trainact.lab.recipes.recipe import Recipe

__all__ = ["check_fingerprint", "check_inputs"]

UNREADABLE = (FileNotFoundError, PermissionError, ImportError)
"""Why data that are perhaps as they were cannot be looked at."""


def check_inputs(record: dict[str, Any], recipe: Recipe, load: Callable[..., Any]) -> None:
    """Check that a record is of the data and the initial weights of a recipe.

    Only what lies on this machine is looked at: nothing is fetched to give a record back, and data
    or weights that are no longer there, or may not be read, are no reason to refuse what was made
    from them.

    Args:
        record: of a run that has ended.
        recipe: that is to be run.
        load: makes the data set from the recipe's data table.

    Raises:
        DataError: the data are others, or are now such that no run could begin with them.
        TrActValueError: the weights are others.
    """
    data = _load_local(recipe, load)
    if data is not None:
        check_fingerprint(data, record["data"]["fingerprint"])
    began, file = record["model"].get("weights"), _find_file(recipe)
    if began and file is not None and hash_file(file) != began["sha256"]:
        raise TrActValueError(
            f"{file} does not hold the weights that this run began with; bring the old file back, "
            "or choose another --out to begin again."
        )


def check_fingerprint(data: Any, expected: str) -> None:
    """Check that a data set is the one that a run began with.

    Raises:
        DataError: it is another.
    """
    if data.fingerprint != expected:
        raise DataError(
            f"{data.name} is not the data set that this run began with (its fingerprint was "
            f"{expected[:12]} and is {data.fingerprint[:12]}); bring the old one back, or choose "
            "another --out to begin again."
        )


def _load_local(recipe: Recipe, load: Callable[..., Any]) -> Any:
    """Return the data set if it lies here and may be read, otherwise None."""
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
    """Return the file of initial weights if there is one that may be read, otherwise None."""
    try:
        if recipe.model.name == DETECTOR:
            file = Path(recipe.model.arguments["weights"]).expanduser()
        else:
            file = find_weights(recipe.model, recipe.run.seed)
    except TrActError:
        return None
    return file if file.is_file() and os.access(file, os.R_OK) else None
