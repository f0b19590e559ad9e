"""The file ``tuning.json`` of ``trainact tune``, and an experiment with the values it chose."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainact.errors import TrActValueError
from trainact.lab.recipes.arms import FIRST_LAYER_LR, make_lr_arm
from trainact.lab.recipes.experiment import Experiment
from trainact.lab.text import count

__all__ = ["read_tuning", "use_tuning"]


def read_tuning(path: Path) -> dict[str, Any]:
    """Return the content of ``tuning.json``.

    Raises:
        TrActValueError: the file cannot be read, or was not written by ``trainact tune``.
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
        raise TrActValueError(f"{path} was not written by trainact tune: {error!r}.") from error
    return tuning


def use_tuning(experiment: Experiment, tuning: Mapping[str, Any]) -> Experiment:
    """Return the experiment with the chosen values at each budget.

    A chosen learning-rate multiplier of the first layer becomes an arm instead, in place of the
    recipe's arms with such a multiplier.
    """
    if tuning["experiment"] != experiment.name:
        raise TrActValueError(
            f"these values were chosen for {tuning['experiment']}, not for {experiment.name}."
        )
    changes, arms_at = dict(experiment.changes), dict(experiment.arms_at)
    arms = {arm.name: arm for arm in experiment.arms}
    for budget in experiment.budgets:
        if str(budget) not in tuning["chosen"]:
            raise TrActValueError(
                f"no values were chosen for {count(budget, 'epoch')}, only for "
                f"{', '.join(tuning['chosen'])}; tune with --epochs {budget} too."
            )
        chosen = dict(tuning["chosen"][str(budget)])
        factor = chosen.pop(FIRST_LAYER_LR, None)
        changes[budget] = {**changes.get(budget, {}), **chosen}
        names = arms_at.get(budget, tuple(arm.name for arm in experiment.arms))
        if factor is not None:
            arm = make_lr_arm(factor)
            arms[arm.name] = arm
            names = (*(name for name in names if arms[name].first_layer_lr is None), arm.name)
        arms_at[budget] = names
    return dataclasses.replace(
        experiment, changes=changes, arms_at=arms_at, arms=tuple(arms.values())
    )
