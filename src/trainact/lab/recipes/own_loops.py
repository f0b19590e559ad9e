"""Recipes of runs that the user's own training loop does: a function or a script.

Such a recipe says what the arm changes, the seed and the epochs. All else is in the user's code.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainact.errors import TrActTypeError, TrActValueError
from trainact.lab.recipes.arms import FIELDS, Arm
from trainact.lab.recipes.experiment import Experiment
from trainact.lab.recipes.recipe import Recipe, make_recipe, recipe_to_dict

__all__ = [
    *("OWN_DATA", "describe_loop", "find_script", "has_own_loop", "keep_own_fields"),
    *("make_function_recipe", "make_script_recipe", "needs_images", "needs_optimizer", "plan_loop"),
]

OWN_DATA = "its own data"
"""``data.name`` of these recipes."""
FUNCTION, SCRIPT = "function:", "script:"
"""What their ``model.name`` begins with."""
ARGUMENTS = "arguments"
"""Key of the script's arguments in ``model.arguments``."""
OWN_FIELDS = {
    *("data.name", "model.name", "model.arguments", *FIELDS.values()),
    *("optimizer.muon_lr", "optimizer.muon_momentum", "schedule.epochs", "run.seed", "run.arm"),
}
"""The fields that have an effect in these runs."""


def make_function_recipe(name: str, settings: Mapping[str, Any]) -> Recipe:
    """Return the recipe of a function; ``settings`` are what its runs are told apart by.

    Raises:
        TrActTypeError: a setting is not a number, a text, a boolean, or a list or dict of these.
    """
    try:
        plain = json.loads(json.dumps(dict(settings), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise TrActTypeError(_describe_settings(settings)) from error
    if _has_none(plain):
        raise TrActTypeError(_describe_settings(settings))
    return _make(FUNCTION + name, plain)


def make_script_recipe(script: Path, arguments: Sequence[str]) -> Recipe:
    """Return the recipe of a script with its arguments.

    Raises:
        TrActValueError: there is no such file.
    """
    if not script.is_file():
        raise TrActValueError(f"there is no script {script}.")
    shown = os.path.relpath(script) if script.resolve().is_relative_to(Path.cwd()) else script
    return _make(f"{SCRIPT}{shown}", {ARGUMENTS: list(arguments)})


def has_own_loop(recipe: Recipe) -> bool:
    """Return whether the user's own function or script does the run."""
    return recipe.data.name == OWN_DATA and recipe.model.name.startswith((FUNCTION, SCRIPT))


def find_script(recipe: Recipe) -> tuple[Path, list[str]] | None:
    """Return the path and the arguments of the script that does the run; None for other runs."""
    if not has_own_loop(recipe) or not recipe.model.name.startswith(SCRIPT):
        return None
    return Path(recipe.model.name.removeprefix(SCRIPT)), recipe.model.arguments.get(ARGUMENTS, [])


def describe_loop(recipe: Recipe) -> str:
    """Return the name of the function or script, for messages."""
    return recipe.model.name.removeprefix(SCRIPT).removeprefix(FUNCTION)


def keep_own_fields(recipe: Recipe) -> dict[str, dict[str, Any]]:
    """Return a recipe's tables with only the fields that have an effect in these runs."""
    return {
        table: {key: value for key, value in row.items() if f"{table}.{key}" in OWN_FIELDS}
        for table, row in recipe_to_dict(recipe).items()
    }


def needs_images(recipe: Recipe) -> bool:
    """Return whether the arm computes something from training images before the first step."""
    return recipe.model.start != "default" or recipe.optimizer.first_layer_rule == "mac"


def needs_optimizer(recipe: Recipe) -> bool:
    """Return whether the arm changes the optimizer, or the gradient just before a step."""
    fields = recipe.optimizer
    own = fields.first_layer_name != "same" or fields.body != "same"
    return own or fields.first_layer_lr != 1 or fields.first_layer_rule != "none"


def plan_loop(
    recipe: Recipe, arms: Sequence[Arm], budgets: tuple[int, ...], seeds: tuple[int, ...]
) -> list[Recipe]:
    """Return one recipe per run; runs that are compared with each other are neighbours."""
    name = describe_loop(recipe)
    experiment = Experiment(
        name=name, title=name, recipe=recipe, arms=tuple(arms), budgets=budgets, seeds=seeds
    )
    return experiment.plan()


def _make(name: str, arguments: dict[str, Any]) -> Recipe:
    model = {"name": name, "arguments": arguments}
    return make_recipe({"data": {"name": OWN_DATA}, "model": model})


def _has_none(value: Any) -> bool:
    """Return whether a JSON value holds None, which TOML files cannot."""
    if isinstance(value, dict):
        value = list(value.values())
    return any(map(_has_none, value)) if isinstance(value, list) else value is None


def _describe_settings(settings: Mapping[str, Any]) -> str:
    return (
        "settings takes numbers, texts, booleans, and lists and dicts of these, by name; got "
        f"{dict(settings)!r}."
    )
