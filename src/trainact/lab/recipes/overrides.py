"""What a command line makes of an experiment: other fields, and other budgets."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from trainact.errors import TrActValueError
from trainact.lab.recipes.experiment import Experiment
from trainact.lab.recipes.recipe import change_recipe

__all__ = ["change_experiment", "choose_budgets"]


def change_experiment(experiment: Experiment, changes: Mapping[str, Any]) -> Experiment:
    """Return the experiment with fields set in every run, also where a budget has its own value.

    Raises:
        TrActValueError: a field is unknown, or is what the runs of the experiment differ in.
    """
    varied = {"schedule.epochs": "--epochs", "run.seed": "--seeds", "run.arm": "--arms"}
    for dotted in changes:
        if dotted in varied:
            raise TrActValueError(f"{dotted} differs from run to run; give {varied[dotted]}.")
        arms = [arm.name for arm in experiment.arms if dotted in arm.changes]
        if arms:
            raise TrActValueError(
                f"{dotted} is what the arms {', '.join(arms)} of {experiment.name} set. Choose "
                "among them with --arms, or write a recipe file with others ('trainact show "
                f"{experiment.name}' prints one)."
            )
    own = {
        budget: {key: value for key, value in row.items() if key not in changes}
        for budget, row in experiment.changes.items()
    }
    recipe = change_recipe(experiment.recipe, dict(changes))
    return dataclasses.replace(experiment, recipe=recipe, changes=own)


def choose_budgets(
    experiment: Experiment, budgets: Sequence[int], changes: Mapping[str, Any]
) -> Experiment:
    """Return the experiment at other budgets, or at some of its own.

    Raises:
        TrActValueError: the rate falls at milestones, which neither the recipe nor ``changes``, the
            fields that its user sets, have for a budget.
    """
    others = [budget for budget in budgets if budget not in experiment.budgets]
    steps = changes.get("schedule.name", experiment.recipe.schedule.name) == "steps"
    if others and steps and "schedule.milestones" not in changes:
        raise TrActValueError(
            f"{experiment.name} lowers its rate at milestones, which it has for "
            f"{', '.join(map(str, experiment.budgets))} epochs and not for {others[0]}; give "
            "schedule.milestones=[...] too."
        )
    return dataclasses.replace(experiment, budgets=tuple(budgets))
