"""The files of ``trainact tune``, and an experiment with the values it chose."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainact.errors import TrActValueError
from trainact.lab.recipes.arms import BASELINE, Arm, make_lr_arm, parse_arms
from trainact.lab.recipes.experiment import Experiment
from trainact.lab.recipes.parts import FIRST_LAYER_LR
from trainact.lab.text import count_epochs, format_value

__all__ = ["check_tuned_recipe", "read_tuning", "use_tuning"]

UNCHECKED = ("run", "data.folder", "data.workers")
"""Tables and fields of a recipe that have no influence on the best values."""


def read_tuning(path: Path) -> dict[str, Any]:
    """Return the content of ``tuning.json``, or of the file of an arm that was tuned by itself.

    Raises:
        TrActValueError: the file cannot be read, or was not written by ``trainact tune``.
    """
    try:
        tuning: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        for values in tuning["chosen"].values():
            if not dict(values).get(FIRST_LAYER_LR, 1.0) > 0:
                raise ValueError(f"{FIRST_LAYER_LR} must be positive")
        str(tuning["experiment"])
        parse_arms([tuning.get("arm", BASELINE)], [])
    except OSError as error:
        raise TrActValueError(
            f"{path} cannot be read ({error.strerror}); 'trainact tune NAME' writes tuning.json."
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise TrActValueError(f"{path} was not written by trainact tune: {error!r}.") from error
    return tuning


def use_tuning(experiment: Experiment, tuning: Mapping[str, Any]) -> Experiment:
    """Return the experiment with the chosen values at each budget.

    A chosen learning-rate multiplier of the first layer becomes an arm instead, in place of the
    recipe's arms that differ from it only in their multiplier.
    """
    if tuning["experiment"] != experiment.name:
        raise TrActValueError(
            f"these values were chosen for {tuning['experiment']}, not for {experiment.name}."
        )
    (tuned,) = parse_arms([tuning.get("arm", BASELINE)], [])
    changes, arms_at = dict(experiment.changes), dict(experiment.arms_at)
    arms = {arm.name: arm for arm in experiment.arms}
    for budget in experiment.budgets:
        if str(budget) not in tuning["chosen"]:
            raise TrActValueError(
                f"no values were chosen for {count_epochs(budget)}, only for "
                f"{', '.join(tuning['chosen'])}; tune with --epochs {budget} too."
            )
        chosen = dict(tuning["chosen"][str(budget)])
        factor = chosen.pop(FIRST_LAYER_LR, None)
        changes[budget] = {**changes.get(budget, {}), **chosen}
        names = arms_at.get(budget, tuple(arm.name for arm in experiment.arms))
        if factor is not None:
            arm = make_lr_arm(factor, tuned)
            arms[arm.name] = arm
            kept = (name for name in names if not _differs_in_factor(arms[name], arm))
            names = (*kept, arm.name)
        arms_at[budget] = names
    return dataclasses.replace(
        experiment, changes=changes, arms_at=arms_at, arms=tuple(arms.values())
    )


def check_tuned_recipe(tuning: Mapping[str, Any], recipe: Mapping[str, Any]) -> None:
    """Check that values were chosen with the settings of a recipe, but for the tuned fields.

    Files of earlier versions do not have the settings; nothing is checked then.

    Raises:
        TrActValueError: a setting differs.
    """
    tuned = {field for values in tuning["chosen"].values() for field in values}
    before = tuning.get("recipe", recipe)
    for table, fields in recipe.items():
        for key, value in fields.items() if table not in UNCHECKED else ():
            dotted, other = f"{table}.{key}", before.get(table, {}).get(key, value)
            if dotted not in {*tuned, *UNCHECKED} and other != value:
                raise TrActValueError(
                    f"these values were chosen with {dotted}={format_value(other)}, and not with "
                    f"{format_value(value)}; use the same value, or tune again into another --out "
                    "folder."
                )


def _differs_in_factor(one: Arm, other: Arm) -> bool:
    """Return whether an arm has a multiplier, and is like another in all else."""
    parts = [[part.name for part in arm.parts if part.slot != "rate"] for arm in (one, other)]
    has_factor = one.first_layer_lr is not None and one.kind != "other"
    return has_factor and parts[0] == parts[1]
