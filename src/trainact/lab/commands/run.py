"""``trainact run``: the runs of a recipe, or of a recipe file."""

import argparse
import dataclasses
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainact.errors import TrActValueError
from trainact.lab.commands.dry_run import DRY_RUN, list_runs
from trainact.lab.commands.request import add_experiment_options, read_experiments
from trainact.lab.ranks import is_first_rank
from trainact.lab.recipes.experiment import Experiment
from trainact.lab.running.plan import PlannedRun, parse_shard, place_runs
from trainact.lab.text import count

if TYPE_CHECKING:
    from trainact.lab.running.runner import RunResult

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add = parser.add_argument
    add("recipe", help="name of a recipe or of a family of recipes (such as cifar10-cpu), or a "
        ".toml file (such as the recipe.toml of a run)")  # fmt: skip
    refused = {"--lam": "name arms with --arms, such as tract-0.2"}
    add_experiment_options(parser, refused=refused)
    add("--paper-only", action="store_true",
        help="leave out the arms that the paper does not have")  # fmt: skip
    add("--shard", metavar="I/N", help="do the I-th of N parts of the runs, for job arrays")
    add("--finished-in", type=Path, action="append", default=[], metavar="FOLDER",
        help="take runs that are finished below this folder, as those below --out are")  # fmt: skip
    add("--on", choices=["here", "ray"], default="here",
        help="where the runs are done: on this machine, or on a Ray cluster")  # fmt: skip
    add("--ray-address", metavar="ADDRESS",
        help="address of the Ray cluster (default: RAY_ADDRESS, or a local Ray)")  # fmt: skip
    add("--full-size", action="store_true", help="with --smoke: take two steps of each arm at the "
        "recipe's image and batch size, and print the peak memory")  # fmt: skip
    add("--dry-run", action="store_true", help=DRY_RUN)


def run(arguments: argparse.Namespace) -> int:
    """Do the runs that are not done yet; return 1 if one failed or diverged."""
    if arguments.ray_address and arguments.on != "ray":
        raise TrActValueError("--ray-address applies to --on ray only.")
    for folder in arguments.finished_in:
        if not folder.is_dir():
            raise TrActValueError(f"--finished-in takes a folder of runs; {folder} is not one.")
    if arguments.full_size:
        return _measure_memory(arguments)
    runs, roots = _plan_runs(arguments), [arguments.out, *arguments.finished_in]
    if arguments.dry_run:
        list_runs(runs, roots)
        return 0
    _check_timed(runs, arguments)

    from trainact.lab.running.display import choose_display

    display = choose_display()
    if arguments.on == "ray":
        from trainact.lab.running.cluster import Cluster

        cluster = Cluster(arguments.ray_address, arguments.jobs)
        results = cluster.run_all(runs, display, roots)
    else:
        from trainact.lab.running.runner import run_all

        results = run_all(runs, arguments.jobs, display, roots)
    return _summarize(arguments.recipe, results) if is_first_rank() else 0


def _plan_runs(arguments: argparse.Namespace) -> list[PlannedRun]:
    """Return the runs that the command line asks for, of each network of each experiment."""
    members = [member for whole in _read(arguments) for member in whole.split()]
    runs: list[PlannedRun] = []
    for member in members:
        path = Path(member.name)
        name = path.name if len(members) > 1 else ""
        if arguments.recipe.endswith(".toml"):
            path = path.relative_to(path.parts[0])
        runs += place_runs(member.plan(), arguments.out / path, name, member.timed)
    if not runs:
        raise TrActValueError(f"{arguments.recipe} has no run with these arms and budgets.")
    return parse_shard(arguments.shard).choose(runs) if arguments.shard else runs


def _check_timed(runs: Sequence[PlannedRun], arguments: argparse.Namespace) -> None:
    """Check that runs whose times are the result have the machine to themselves."""
    together = arguments.jobs > 1 or arguments.on == "ray"
    if together and any(run.timed and not run.recipe.run.smoke for run in runs):
        raise TrActValueError(
            f"{arguments.recipe} measures the time of its runs, which need the machine to "
            "themselves: leave out --jobs and --on."
        )


def _read(arguments: argparse.Namespace) -> list[Experiment]:
    """Return the experiments of the command line, without our own arms if it says so."""
    experiments = read_experiments(arguments)
    if not arguments.paper_only:
        return experiments
    return [
        dataclasses.replace(
            one, arms=tuple(arm for arm in one.arms if arm.name not in one.own_arms)
        )
        for one in experiments
    ]


def _measure_memory(arguments: argparse.Namespace) -> int:
    """Take steps at full size and print their peak memory; return 1 if one does not fit."""
    together = arguments.jobs > 1 or arguments.on == "ray"
    if not arguments.smoke or arguments.dry_run or together:
        raise TrActValueError(
            "--full-size applies to --smoke, here, with --jobs 1 and without --dry-run: it "
            "measures the memory of one run at a time."
        )
    arguments = argparse.Namespace(**{**vars(arguments), "smoke": False})
    runs = _plan_runs(arguments)

    from trainact.lab.running.full_size import choose_runs, measure_step

    fits = True
    for run in choose_runs(runs):
        memory = measure_step(run.recipe)
        fits &= not memory.failure
        if is_first_rank():
            print(f"{run.name}: {memory.describe()}", flush=True)
    return 0 if fits else 1


def _summarize(name: str, results: "Sequence[RunResult]") -> int:
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
