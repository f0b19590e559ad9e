"""``trainact run``: a recipe's runs, by its name or from a file."""

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

from trainact.errors import TrActValueError
from trainact.lab.experiment import Experiment, find_experiments, shrink
from trainact.lab.naming import name_run, parse_whole_numbers
from trainact.lab.progress import Silence, choose_display
from trainact.lab.recipe import Recipe, change_recipe
from trainact.lab.record import RunFolder
from trainact.lab.runner import Outcome, run_all
from trainact.lab.settings import find_data_field, is_first_rank, parse_settings

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    add = parser.add_argument
    add("recipe", help="the name of a recipe or of a family of them (cifar10-cpu), or a .toml file "
        "such as a run's recipe.toml")  # fmt: skip
    add("settings", nargs="*", metavar="TABLE.FIELD=VALUE", help="fields to change in every arm")
    add("--data", metavar="PATH", help="where the recipe's images lie: a folder of images, of "
        "parquet files or of shards, or a hub id")  # fmt: skip
    add("--out", type=Path, default=Path("runs"), help="folder of the runs (default %(default)s)")
    add("--seeds", help="0-4 or 0,1,2 instead of the recipe's")
    add("--epochs", metavar="N[,N...]", help="some of the recipe's budgets, or others")
    add("--arms", metavar="NAME[,NAME...]", help="some of the recipe's arms")
    add("--jobs", type=int, default=1, help="runs side by side (default 1)")
    add("--smoke", action="store_true", help="seconds instead of hours, to see that all works")
    add("--dry-run", action="store_true", help="list the runs and do none")


def run(arguments: argparse.Namespace) -> int:
    """Do the runs that are not done yet; 1 where one failed or diverged."""
    worst = 0
    for experiment in find_experiments(arguments.recipe):
        runs = choose_runs(experiment, arguments)
        is_file = arguments.recipe.endswith(".toml")
        root = arguments.out if is_file else arguments.out / experiment.name
        if arguments.dry_run:
            _list(runs, root)
            continue
        display = choose_display() if is_first_rank() else Silence()
        outcomes = run_all(runs, root, arguments.jobs, display)
        if is_first_rank():
            worst = max(worst, summarise(experiment.name, outcomes))
    return worst


def _list(runs: Sequence[Recipe], root: Path) -> None:
    for recipe in runs:
        folder = RunFolder(root, recipe)
        state = "done" if folder.record_path.exists() else "to do"
        print(f"{state:6} {name_run(recipe)}  {folder.path}")


def choose_runs(experiment: Experiment, arguments: argparse.Namespace) -> list[Recipe]:
    """Return the runs that the command line asks for."""
    changes = parse_settings(arguments.settings)
    if arguments.data:
        changes[find_data_field(experiment.recipe.data.name)] = arguments.data
    recipe = change_recipe(experiment.recipe, changes)
    experiment = dataclasses.replace(experiment, recipe=recipe)
    if arguments.smoke:
        experiment = shrink(experiment)
    if arguments.seeds:
        seeds = tuple(parse_whole_numbers(arguments.seeds, "--seeds"))
        experiment = dataclasses.replace(experiment, seeds=seeds)
    if arguments.epochs:
        budgets = tuple(parse_whole_numbers(arguments.epochs, "--epochs"))
        experiment = dataclasses.replace(experiment, budgets=budgets)
    if arguments.arms:
        experiment = _choose_arms(experiment, arguments.arms.split(","))
    return experiment.plan()


def _choose_arms(experiment: Experiment, names: Sequence[str]) -> Experiment:
    known = {arm.name: arm for arm in experiment.arms}
    for name in names:
        if name not in known:
            raise TrActValueError(
                f"{experiment.name} has no arm {name!r}; its arms are {', '.join(known)}."
            )
    return dataclasses.replace(experiment, arms=tuple(known[name] for name in names))


def summarise(name: str, outcomes: Sequence[Outcome]) -> int:
    """Print how many runs ended how, and each that did not end well."""
    diverged = [o for o in outcomes if o.record and o.record["status"] == "diverged"]
    failed = [o for o in outcomes if o.failure is not None]
    for outcome in diverged:
        assert outcome.record is not None
        print(f"diverged: {name_run(outcome.recipe)}: {outcome.record['failure']}", file=sys.stderr)
    for outcome in failed:
        print(f"failed: {name_run(outcome.recipe)}: {outcome.failure}", file=sys.stderr)
    good = len(outcomes) - len(diverged) - len(failed)
    print(f"{name}: {good} runs complete, {len(diverged)} diverged, {len(failed)} failed")
    return 1 if diverged or failed else 0
