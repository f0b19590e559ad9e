"""``trainact run``: the runs of a recipe, or of a recipe file."""

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from trainact.errors import TrActValueError
from trainact.lab.commands.request import add_experiment_options, read_experiments
from trainact.lab.ranks import is_first_rank
from trainact.lab.records.record import read_failure
from trainact.lab.running.display import choose_display
from trainact.lab.running.plan import PlannedRun, parse_shard, place_runs
from trainact.lab.running.runner import RunResult, run_all
from trainact.lab.text import count

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add = parser.add_argument
    add("recipe", help="name of a recipe or of a family of recipes (such as cifar10-cpu), or a "
        ".toml file (such as the recipe.toml of a run)")  # fmt: skip
    refused = {"--lam": "name arms with --arms, such as tract-0.2"}
    add_experiment_options(parser, refused=refused)
    add("--shard", metavar="I/N", help="do the I-th of N parts of the runs, for job arrays")
    add("--on", choices=["here", "ray"], default="here",
        help="where the runs are done: on this machine, or on a Ray cluster")  # fmt: skip
    add("--ray-address", metavar="ADDRESS",
        help="address of the Ray cluster (default: RAY_ADDRESS, or a local Ray)")  # fmt: skip
    add("--dry-run", action="store_true", help="list the runs without doing them")


def run(arguments: argparse.Namespace) -> int:
    """Do the runs that are not done yet; return 1 if one failed or diverged."""
    if arguments.ray_address and arguments.on != "ray":
        raise TrActValueError("--ray-address applies to --on ray only.")
    runs = _plan_runs(arguments)
    if arguments.shard:
        runs = parse_shard(arguments.shard).choose(runs)
    if arguments.dry_run:
        _list(runs)
        return 0
    display = choose_display()
    if arguments.on == "ray":
        from trainact.lab.running.cluster import Cluster

        results = Cluster(arguments.ray_address, arguments.jobs).run_all(runs, display)
    else:
        results = run_all(runs, arguments.jobs, display)
    return _summarize(arguments.recipe, results) if is_first_rank() else 0


def _plan_runs(arguments: argparse.Namespace) -> list[PlannedRun]:
    """Return the runs that the command line asks for, of each network of each experiment."""
    members = [member for whole in read_experiments(arguments) for member in whole.split()]
    runs: list[PlannedRun] = []
    for member in members:
        path = Path(member.name)
        name = path.name if len(members) > 1 else ""
        if arguments.recipe.endswith(".toml"):
            path = path.relative_to(path.parts[0])
        runs += place_runs(member.plan(), arguments.out / path, name)
    if not runs:
        raise TrActValueError(f"{arguments.recipe} has no run with these arms and budgets.")
    return runs


def _list(runs: Sequence[PlannedRun]) -> None:
    """Print each run with its state and folder."""
    for run in runs:
        folder = run.folder
        failure = read_failure(folder.path)
        state = "done" if folder.record_path.exists() else "failed" if failure else "to do"
        print(f"{state:6} {run.name}  {folder.path}")


def _summarize(name: str, results: Sequence[RunResult]) -> int:
    """Print the numbers of complete, diverged and failed runs, and the command for a report."""
    diverged = [r for r in results if r.record and r.record["status"] == "diverged"]
    failed = [r for r in results if r.failure is not None]
    for result in diverged:
        assert result.record is not None
        print(f"diverged: {result.run.name}: {result.record['failure']}", file=sys.stderr)
    for result in failed:
        print(f"failed: {result.run.name}: {result.failure}", file=sys.stderr)
    complete = len(results) - len(diverged) - len(failed)
    print(
        f"{name}: {count(complete, 'run')} complete, {len(diverged)} diverged, {len(failed)} failed"
    )
    if complete:
        experiments = {result.run.folder.path.parent.parent for result in results}
        print(f"Report: trainact report {shlex.quote(os.path.commonpath(experiments))}")
    return 1 if diverged or failed else 0
