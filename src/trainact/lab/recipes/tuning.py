"""An experiment with what ``trainact tune`` chose for it."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainact.errors import TrActValueError
from trainact.lab.recipes.arms import parse_arms
from trainact.lab.recipes.experiment import Experiment
from trainact.lab.text import count_epochs

__all__ = ["read_tuning", "use_tuning"]

FACTOR = "optimizer.first_layer_lr"
"""Is no rate of every arm, but an arm of its own."""


def read_tuning(path: Path) -> dict[str, Any]:
    """Return what ``trainact tune`` wrote.

    Raises:
        TrActValueError: there is no such file, or it holds something else.
    """
    try:
        tuning: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        for values in tuning["chosen"].values():
            dict(values)
        str(tuning["experiment"])
    except OSError as error:
        raise TrActValueError(
            f"{path} cannot be read ({error.strerror}); 'trainact tune NAME' writes tuning.json."
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TrActValueError(f"{path} is not what trainact tune writes: {error!r}.") from error
    return tuning


def use_tuning(experiment: Experiment, tuning: Mapping[str, Any]) -> Experiment:
    """Return the experiment with the chosen rates at each budget, and the arm of the chosen factor.

    Raises:
        TrActValueError: it was another experiment that was tuned, or a budget was not.
    """
    if tuning["experiment"] != experiment.name:
        raise TrActValueError(
            f"these rates were chosen for {tuning['experiment']}, not for {experiment.name}."
        )
    changes, arms_at = dict(experiment.changes), dict(experiment.arms_at)
    arms = {arm.name: arm for arm in experiment.arms}
    for budget in experiment.budgets:
        if str(budget) not in tuning["chosen"]:
            known = ", ".join(tuning["chosen"])
            raise TrActValueError(
                f"no rates were chosen for {count_epochs(budget)}, only for {known}; tune with "
                f"--epochs {budget} too."
            )
        chosen = dict(tuning["chosen"][str(budget)])
        factor = chosen.pop(FACTOR, None)
        changes[budget] = {**changes.get(budget, {}), **chosen}
        there = arms_at.get(budget, tuple(arm.name for arm in experiment.arms))
        if factor is not None:
            (own,) = parse_arms([f"lr={factor:g}"], [])
            arms[own.name] = own
            there = (*(n for n in there if FACTOR not in arms[n].changes), own.name)
        arms_at[budget] = there
    return dataclasses.replace(
        experiment, changes=changes, arms_at=arms_at, arms=tuple(arms.values())
    )
