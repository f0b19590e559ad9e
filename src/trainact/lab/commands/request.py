"""From the command line to experiments: options that ``compare``, ``run`` and ``tune`` share."""

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainact.errors import TrActValueError
from trainact.lab.data.names import DETECTION, PLACED
from trainact.lab.recipes.arms import Arm, parse_arms
from trainact.lab.recipes.experiment import Experiment, find_experiments, name_network
from trainact.lab.recipes.recipe import change_recipe, recipe_to_dict
from trainact.lab.recipes.tuning import check_tuned_recipe, read_tuning, use_tuning
from trainact.lab.running.smoke import shrink
from trainact.lab.schema import check_known, parse_positive_numbers, parse_whole_numbers

__all__ = ["add_experiment_options", "parse_settings", "read_experiments"]

OPTIONS: dict[str, dict[str, Any]] = {
    "--data": {"metavar": "PATH", "help": "the recipe's data set: a folder of images, parquet "
               "files or shards, or a hub id"},
    "--epochs": {"metavar": "N[,N...]", "help": "budgets (default: the recipe's)"},
    "--seeds": {"metavar": "SEEDS", "help": "seeds, such as 0-4 or 0,1,2 (default: the recipe's)"},
    "--arms": {"metavar": "NAME[,NAME...]", "help": "arms of the recipe (default: all), or others "
               "such as eigen+tract-0.1"},
    "--lam": {"metavar": "λ[,λ...]", "help": "λ of TrAct; each is an arm (default: %(default)s)"},
    "--networks": {"metavar": "NAME[,NAME...]",
                   "help": "networks, for a recipe with several (default: all)"},
    "--tuned": {"type": Path, "metavar": "FILE", "help": "use the values of this tuning.json"},
    "--smoke": {"action": "store_true", "help": "short runs, to check that everything works"},
    "--jobs": {"type": int, "default": 1, "metavar": "N", "help": "parallel runs (default: 1)"},
    "--out": {"type": Path, "default": Path("runs"), "metavar": "FOLDER",
              "help": "output folder (default: %(default)s)"},
}  # fmt: skip


class _Refuse(argparse.Action):
    """An option of another command: it raises an error with the reason."""

    def __call__(self, parser: argparse.ArgumentParser, *rest: Any) -> None:
        option = self.option_strings[0]
        raise TrActValueError(f"{option} does not apply to '{parser.prog}': {self.const}.")


def add_experiment_options(
    parser: argparse.ArgumentParser,
    *,
    refused: Mapping[str, str],
    changed: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Add the shared options and the positional ``settings``.

    ``refused`` holds the options that do not apply to the command, with the reason; ``changed``
    the arguments of ``add_argument`` that differ in the command, by option.
    """
    for option, arguments in OPTIONS.items():
        if option in refused:
            parser.add_argument(
                option, action=_Refuse, nargs="?", const=refused[option], help=argparse.SUPPRESS
            )
        else:
            parser.add_argument(option, **{**arguments, **(changed or {}).get(option, {})})
    parser.add_argument(
        "settings", nargs="*", metavar="TABLE.FIELD=VALUE", help="set fields of the recipe"
    )


def parse_settings(settings: Sequence[str]) -> dict[str, str]:
    """Return fields and values from ``table.field=value``.

    >>> parse_settings(["optimizer.lr=0.1"])
    {'optimizer.lr': '0.1'}
    """
    changes: dict[str, str] = {}
    for setting in settings:
        field, equals, value = setting.partition("=")
        if not equals or "." not in field:
            raise TrActValueError(
                f"{setting!r} is not a setting; write TABLE.FIELD=VALUE, such as optimizer.lr=0.1."
            )
        _set(changes, field, value)
    return changes


def read_experiments(
    arguments: argparse.Namespace, fields: Mapping[str, Any] | None = None
) -> list[Experiment]:
    """Return the recipe's experiments with the options of ``add_experiment_options`` applied.

    ``fields`` are recipe fields that other options of the command set.
    """
    return [
        _read_experiment(experiment, arguments, fields or {})
        for experiment in find_experiments(arguments.recipe)
    ]


def _read_experiment(
    experiment: Experiment, arguments: argparse.Namespace, fields: Mapping[str, Any]
) -> Experiment:
    changes = dict(fields)
    for field, value in parse_settings(arguments.settings).items():
        _set(changes, field, value)
    if arguments.data:
        named = experiment.recipe.data.name in (*PLACED, DETECTION)
        _set(changes, "data.folder" if named else "data.name", arguments.data)
    if arguments.lam:
        lams = parse_positive_numbers(arguments.lam, "--lam")
        experiment = _replace_arms(experiment, arguments.arms.split(","), lams, changes)
    if arguments.networks:
        experiment = _choose_networks(experiment, arguments.networks.split(","))
        if arguments.tuned and len(experiment.networks) == 1:
            (experiment,) = experiment.split()  # each network is tuned by itself
    budgets = parse_whole_numbers(arguments.epochs, "--epochs") if arguments.epochs else ()
    if budgets and not arguments.smoke:
        experiment = _choose_budgets(experiment, budgets, changes)
    tuning = read_tuning(arguments.tuned) if arguments.tuned else None
    if tuning is not None:
        experiment = use_tuning(experiment, tuning)
    if arguments.arms and not arguments.lam:
        experiment = _choose_arms(experiment, arguments.arms.split(","), changes)
    experiment = _change_fields(experiment, changes)
    if tuning is not None:
        check_tuned_recipe(tuning, recipe_to_dict(experiment.recipe))
    if arguments.smoke:
        experiment = shrink(experiment, changes)
        experiment = dataclasses.replace(experiment, budgets=budgets or experiment.budgets)
    if arguments.seeds:
        seeds = parse_whole_numbers(arguments.seeds, "--seeds")
        experiment = dataclasses.replace(experiment, seeds=seeds)
    return experiment


def _set(changes: dict[str, Any], field: str, value: Any) -> None:
    if field in changes:
        raise TrActValueError(f"{field} is set twice: to {changes[field]!r} and to {value!r}.")
    changes[field] = value


def _replace_arms(
    experiment: Experiment, names: Sequence[str], lams: Sequence[float], changes: Mapping[str, Any]
) -> Experiment:
    """Return the experiment with arms that the command line defines instead of the recipe's."""
    arms = tuple(_define_arms(experiment, names, lams, changes))
    return dataclasses.replace(experiment, arms=arms, arms_at={}, against={})


def _choose_budgets(
    experiment: Experiment, budgets: tuple[int, ...], changes: Mapping[str, Any]
) -> Experiment:
    """Return the experiment at some of its budgets, or at others."""
    others = [budget for budget in budgets if budget not in experiment.budgets]
    steps = changes.get("schedule.name", experiment.recipe.schedule.name) == "steps"
    if others and steps and "schedule.milestones" not in changes:
        raise TrActValueError(
            f"{experiment.name} has milestones for "
            f"{', '.join(map(str, experiment.budgets))} epochs and not for {others[0]}; give "
            "schedule.milestones=[...] too."
        )
    return dataclasses.replace(experiment, budgets=budgets)


def _change_fields(experiment: Experiment, changes: Mapping[str, Any]) -> Experiment:
    """Return the experiment with fields set in every run, instead of a budget's own values."""
    varied = {"schedule.epochs": "--epochs", "run.seed": "--seeds", "run.arm": "--arms"}
    for field in changes:
        if field in varied:
            raise TrActValueError(f"{field} differs from run to run; give {varied[field]}.")
        arms = [arm.name for arm in experiment.arms if field in arm.changes]
        if arms:
            raise TrActValueError(
                f"the arms {', '.join(arms)} of {experiment.name} set {field}. Choose arms with "
                "--arms, or write a recipe file with other arms ('trainact show "
                f"{experiment.name}' prints this one)."
            )
    own = {
        budget: {field: value for field, value in row.items() if field not in changes}
        for budget, row in experiment.changes.items()
    }
    recipe = change_recipe(experiment.recipe, changes)
    return dataclasses.replace(experiment, recipe=recipe, changes=own)


def _choose_arms(
    experiment: Experiment, names: Sequence[str], changes: Mapping[str, Any]
) -> Experiment:
    """Return the experiment with some of its arms, or with others.

    The recipe's own arms keep their budgets. Other arms, and those of the recipe that have none of
    the chosen budgets, run at every budget.

    ``changes`` are the recipe fields that the command line sets.
    """
    known = {arm.name: arm for arm in experiment.arms}
    lams = [experiment.recipe.tract.lam]
    chosen: list[Arm] = []
    for name in names:
        if name in known:
            chosen.append(known[name])
        else:
            chosen += _define_arms(experiment, [name], lams, changes)
    planned = {name for b in experiment.budgets for name in experiment.arms_at.get(b, known)}
    added = [arm.name for arm in chosen if arm.name not in planned]
    arms_at = {budget: (*there, *added) for budget, there in experiment.arms_at.items()}
    arms = {arm.name: arm for arm in chosen}
    if len(arms) < len(chosen):
        raise TrActValueError(f"--arms {','.join(names)} names an arm twice.")
    return dataclasses.replace(experiment, arms=tuple(arms.values()), arms_at=arms_at)


def _define_arms(
    experiment: Experiment, names: Sequence[str], lams: Sequence[float], changes: Mapping[str, Any]
) -> list[Arm]:
    """Return arms that are not the recipe's own."""
    arms = parse_arms(names, lams, [arm.name for arm in experiment.arms])
    if experiment.pretraining and "model.weights" not in changes:
        raise TrActValueError(
            f"the arms of {experiment.name} start from pre-trained weights, those of --arms do "
            f"not; use 'trainact run {experiment.name}', or give model.weights=FILE."
        )
    return arms


def _choose_networks(experiment: Experiment, names: Sequence[str]) -> Experiment:
    known = {name_network(network): network for network in experiment.networks}
    if not known:
        raise TrActValueError(
            f"{experiment.name} has one network; set model.name=NAME to use another."
        )
    check_known(names, known, f"network of {experiment.name}")
    return dataclasses.replace(experiment, networks=tuple(known[name] for name in names))
