"""``trainact run``: a recipe's runs, by its name or from a file."""

import argparse
import dataclasses
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from trainact.errors import TrActValueError
from trainact.lab.commands.settings import read_changes
from trainact.lab.ranks import is_first_rank
from trainact.lab.recipes.experiment import Experiment, find_experiments
from trainact.lab.recipes.names import name_network, parse_whole_numbers
from trainact.lab.recipes.overrides import change_experiment, choose_budgets
from trainact.lab.recipes.tuning import read_tuning, use_tuning
from trainact.lab.records.failures import read_failure
from trainact.lab.running.display import Silence, choose_display
from trainact.lab.running.plan import PlannedRun, parse_shard, place_runs
from trainact.lab.running.runner import RunResult, run_all
from trainact.lab.running.smoke import shrink
from trainact.lab.schema import name_nearest

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
    add("--tuned", type=Path, metavar="FILE", help="the tuning.json of 'trainact tune': its rates")
    add("--networks", metavar="NAME[,NAME...]", help="some of the networks of a recipe with many")
    add("--shard", metavar="I/N", help="the I-th of N parts of the runs, for a scheduler's jobs")
    add("--jobs", type=int, default=1, help="runs side by side (default 1)")
    add("--on", choices=["here", "ray"], default="here", help="ray: on the machines of a cluster")
    add("--ray-address", metavar="ADDRESS", help="of the cluster; without it and RAY_ADDRESS, a "
        "Ray of this machine's own")  # fmt: skip
    add("--smoke", action="store_true", help="a minute instead of hours, to see that all works")
    add("--dry-run", action="store_true", help="list the runs and do none")


def run(arguments: argparse.Namespace) -> int:
    """Do the runs that are not done yet; 1 where one failed or diverged."""
    runs = plan_runs(arguments)
    if arguments.shard:
        runs = parse_shard(arguments.shard).choose(runs)
    if arguments.dry_run:
        _list(runs)
        return 0
    display = choose_display() if is_first_rank() else Silence()
    if arguments.on == "ray":
        from trainact.lab.running.cluster import Cluster

        outcomes = Cluster(arguments.ray_address, arguments.jobs).run_all(runs, display)
    else:
        outcomes = run_all(runs, arguments.jobs, display)
    return summarise(arguments.recipe, outcomes) if is_first_rank() else 0


def plan_runs(arguments: argparse.Namespace) -> list[PlannedRun]:
    """Return the runs that the command line asks for, of each member of each experiment.

    Raises:
        TrActValueError: there is no such recipe, arm or network, or no run is left.
    """
    members = [
        member
        for experiment in find_experiments(arguments.recipe)
        for member in choose_part(experiment, arguments).split()
    ]
    several, runs = len(members) > 1, []
    for member in members:
        path = Path(member.name)
        if arguments.recipe.endswith(".toml"):
            path = path.relative_to(path.parts[0])
        name = path.name if member.name.count("/") else member.name
        runs += place_runs(member.plan(), arguments.out / path, name if several else "")
    if not runs:
        raise TrActValueError(f"{arguments.recipe} has no run with those arms and budgets.")
    return runs


def _list(runs: Sequence[PlannedRun]) -> None:
    """Print each run with its state; a run that failed is tried again by the same command."""
    for run in runs:
        folder = run.folder
        failure = read_failure(folder.path)
        state = "done" if folder.record_path.exists() else "failed" if failure else "to do"
        print(f"{state:6} {run.name}  {folder.path}")


def choose_part(experiment: Experiment, arguments: argparse.Namespace) -> Experiment:
    """Return what the command line asks for of an experiment."""
    changes = read_changes(arguments, experiment.recipe.data.name)
    budgets = parse_whole_numbers(arguments.epochs, "--epochs") if arguments.epochs else ()
    if budgets and not arguments.smoke:
        experiment = choose_budgets(experiment, budgets, changes)
    if arguments.tuned:
        experiment = use_tuning(experiment, read_tuning(arguments.tuned))
    experiment = change_experiment(experiment, changes)
    if arguments.smoke:
        experiment = shrink(experiment, changes)
        experiment = dataclasses.replace(experiment, budgets=tuple(budgets) or experiment.budgets)
    if arguments.seeds:
        seeds = tuple(parse_whole_numbers(arguments.seeds, "--seeds"))
        experiment = dataclasses.replace(experiment, seeds=seeds)
    if arguments.arms:
        experiment = _choose_arms(experiment, arguments.arms.split(","))
    if arguments.networks:
        experiment = _choose_networks(experiment, arguments.networks.split(","))
    return experiment


def _choose_networks(experiment: Experiment, names: Sequence[str]) -> Experiment:
    known = {name_network(network): network for network in experiment.networks}
    if not known:
        raise TrActValueError(f"{experiment.name} has one network; another is model.name=NAME.")
    for name in names:
        if name not in known:
            raise TrActValueError(name_nearest(name, known, f"network of {experiment.name}"))
    return dataclasses.replace(experiment, networks=tuple(known[name] for name in names))


def _choose_arms(experiment: Experiment, names: Sequence[str]) -> Experiment:
    known = {arm.name: arm for arm in experiment.arms}
    for name in names:
        if name not in known:
            raise TrActValueError(
                f"{experiment.name} has no arm {name!r}; its arms are {', '.join(known)}."
            )
    return dataclasses.replace(experiment, arms=tuple(known[name] for name in names))


def summarise(name: str, outcomes: Sequence[RunResult]) -> int:
    """Print how many runs ended how, each that did not end well, and how to read the records."""
    diverged = [o for o in outcomes if o.record and o.record["status"] == "diverged"]
    failed = [o for o in outcomes if o.failure is not None]
    for outcome in diverged:
        assert outcome.record is not None
        print(f"diverged: {outcome.run.name}: {outcome.record['failure']}", file=sys.stderr)
    for outcome in failed:
        print(f"failed: {outcome.run.name}: {outcome.failure}", file=sys.stderr)
    good = len(outcomes) - len(diverged) - len(failed)
    print(f"{name}: {good} runs complete, {len(diverged)} diverged, {len(failed)} failed")
    if good:
        experiments = {outcome.run.folder.path.parent.parent for outcome in outcomes}
        print(f"What they say: trainact report {shlex.quote(os.path.commonpath(experiments))}")
    return 1 if diverged or failed else 0
