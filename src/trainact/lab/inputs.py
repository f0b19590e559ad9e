"""Whether a run that has ended was of the data and the weights that its recipe names today.

A recipe names files. What they hold may have changed since, and then the record of a run that has
ended answers another question than the one that is asked now.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainact.errors import TrActValueError
from trainact.lab.data.images import DataError
from trainact.lab.pretrained import find_weights
from trainact.lab.recipe import Recipe

__all__ = ["check_fingerprint", "check_inputs"]


def check_inputs(record: dict[str, Any], recipe: Recipe, load: Callable[..., Any]) -> None:
    """Check that a record is of the data and the initial weights of a recipe.

    Data or weights that are no longer there are no reason to refuse what was made from them.

    Args:
        record: of a run that has ended.
        recipe: that is to be run.
        load: makes the data set from the recipe's data table.

    Raises:
        DataError: the data are others.
        TrActValueError: the weights are others.
    """
    try:
        data = load(recipe.data)
    except TrActValueError:
        data = None
    if data is not None:
        check_fingerprint(data, record["data"]["fingerprint"])
    began = record["model"].get("weights")
    path = _find_weights(recipe) if began else None
    if path is not None and _hash_file(path) != began["sha256"]:
        raise TrActValueError(
            f"{path} does not hold the weights that this run began with; bring the old file back, "
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


def _find_weights(recipe: Recipe) -> Path | None:
    try:
        return find_weights(recipe.model, recipe.run.seed)
    except TrActValueError:
        return None


def _hash_file(path: Path) -> str:
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
