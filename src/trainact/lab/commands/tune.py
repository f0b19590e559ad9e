"""``trainact tune``: the paper's protocol, rates chosen for PLAIN training on held-out images.

Each field of a recipe's grid is tried at each budget, in the order in which the recipe names them;
the best value is kept while the next field is tried. Every arm then uses what was chosen.
"""

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainact.errors import TrActValueError
from trainact.lab.commands.settings import read_changes
from trainact.lab.environment import describe_environment
from trainact.lab.files import write_atomically
from trainact.lab.metric import read_metric, read_percent
from trainact.lab.ranks import is_first_rank
from trainact.lab.recipes.experiment import Experiment, find_experiments
from trainact.lab.recipes.names import parse_whole_numbers
from trainact.lab.recipes.overrides import change_experiment, choose_budgets
from trainact.lab.recipes.recipe import Recipe, change_recipe, identify
from trainact.lab.report.tuning_table import show_value
from trainact.lab.running.display import Display, Silence, choose_display
from trainact.lab.running.plan import place_runs
from trainact.lab.running.runner import RunResult, run_all

__all__ = ["add_arguments", "plan_tuning", "run", "tune"]

HELD_OUT = 5000
"""Images that are held out where a recipe does not say how many."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    add = parser.add_argument
    add("recipe", help="the name of a recipe that has a grid, or a .toml file with one")
    add("settings", nargs="*", metavar="TABLE.FIELD=VALUE", help="fields to change in every run")
    add("--data", metavar="PATH", help="where the recipe's images lie: a folder of images, of "
        "parquet files or of shards, or a hub id")  # fmt: skip
    add("--out", type=Path, default=Path("runs"), help="folder of the runs (default %(default)s)")
    add("--seeds", default="0", help="seeds to average over (default 0)")
    add("--epochs", metavar="N[,N...]", help="some of the recipe's budgets, or others")
    add("--jobs", type=int, default=1, help="runs side by side (default 1)")


def run(arguments: argparse.Namespace) -> int:
    """Tune each experiment that the reference names; print and write what was chosen."""
    seeds = tuple(parse_whole_numbers(arguments.seeds, "--seeds"))
    display = choose_display() if is_first_rank() else Silence()
    found = find_experiments(arguments.recipe)
    for experiment in (member for whole in found for member in whole.split()):
        changes = read_changes(arguments, experiment.recipe.data.name)
        changed = experiment
        if arguments.epochs:
            budgets = parse_whole_numbers(arguments.epochs, "--epochs")
            changed = choose_budgets(changed, budgets, changes)
        changed = dataclasses.replace(change_experiment(changed, changes), seeds=seeds)
        folder = arguments.out / experiment.name / "tuning"
        chosen = tune(changed, folder, arguments.jobs, display)
        if is_first_rank():
            print(f"{experiment.name}, the best on {chosen['held_out']} held-out images:")
            for budget, values in chosen["chosen"].items():
                told = ", ".join(f"{field} = {show_value(v)}" for field, v in values.items())
                print(f"  {budget} epochs: {told}")
            print(f"wrote {folder / 'tuning.json'}; every arm with these rates:")
            file = arguments.recipe.endswith(".toml")
            name = arguments.recipe if file else experiment.name
            epochs = f" --epochs {arguments.epochs}" if arguments.epochs else ""
            print(f"  trainact run {name}{epochs} --tuned {folder / 'tuning.json'}")
    return 0


def tune(experiment: Experiment, folder: Path, jobs: int, display: Display) -> dict[str, Any]:
    """Return, and write to ``tuning.json``, what was tried and the best value of each field.

    A value whose loss became NaN at any seed is listed and never chosen.

    Raises:
        TrActValueError: the recipe has no grid, a run failed, or no value could be trained with.
    """
    if not experiment.grid:
        raise TrActValueError(f"{experiment.name} has no table experiment.grid to choose from.")
    held_out = experiment.recipe.data.held_out or HELD_OUT
    chosen: dict[str, dict[str, Any]] = {str(budget): {} for budget in experiment.budgets}
    tried: list[dict[str, Any]] = []
    for name in experiment.grid:
        plans = {
            (budget, value): plan_tuning(experiment, budget, {**chosen[str(budget)], name: value})
            for budget in experiment.budgets
            for value in experiment.grid[name]
        }
        runs = {identify(recipe): recipe for plan in plans.values() for recipe in plan}
        outcomes = run_all(place_runs(runs.values(), folder), jobs, display)
        _check_failures(outcomes)
        records = {identify(outcome.recipe): outcome.record for outcome in outcomes}
        for (budget, value), plan in plans.items():
            counts = [_score(records[identify(recipe)]) for recipe in plan]
            good = [count for count in counts if count is not None]
            accuracy = sum(good) / len(good) if len(good) == len(counts) else None
            tried.append(
                {
                    "budget": budget,
                    "field": name,
                    "value": value,
                    "with": dict(chosen[str(budget)]),
                    "accuracy": accuracy,
                    "seeds": list(experiment.seeds),
                }
            )
        for budget in experiment.budgets:
            chosen[str(budget)][name] = _choose_best(tried, budget, name)
    result = {
        "experiment": experiment.name,
        "held_out": held_out,
        "chosen": chosen,
        "tried": tried,
        "environment": describe_environment(),
    }
    write_atomically(folder / "tuning.json", json.dumps(result, indent=1).encode())
    return result


def plan_tuning(experiment: Experiment, budget: int, values: dict[str, Any]) -> list[Recipe]:
    """Return the plain runs at ``budget`` with fields at ``values``, tested on held-out images."""
    return [
        change_recipe(
            experiment.recipe,
            {
                "schedule.epochs": budget,
                **experiment.changes.get(budget, {}),
                **values,
                "tract.enabled": False,
                "data.held_out": experiment.recipe.data.held_out or HELD_OUT,
                "data.evaluate_on": "held-out",
                "run.arm": "tune-" + "-".join(map(show_value, values.values())),
                "run.seed": seed,
            },
        )
        for seed in experiment.seeds
    ]


def _check_failures(outcomes: Sequence[RunResult]) -> None:
    """Refuse to choose where a run failed, which says nothing about its value."""
    failed = [outcome for outcome in outcomes if outcome.failure is not None]
    if failed:
        raise TrActValueError(
            f"{len(failed)} of {len(outcomes)} runs failed, so that nothing was chosen; the first: "
            f"{failed[0].failure}. The same command tries them again and keeps the others."
        )


def _score(record: dict[str, Any] | None) -> float | None:
    if record is None or record["status"] != "complete":
        return None
    return read_percent(read_metric(record), record["epochs"][-1])


def _choose_best(tried: Sequence[dict[str, Any]], budget: int, name: str) -> Any:
    rows = [row for row in tried if (row["budget"], row["field"]) == (budget, name)]
    scored = [row for row in rows if row["accuracy"] is not None]
    if not scored:
        raise TrActValueError(
            f"no value of {name} could be trained with for {budget} epochs: "
            f"{', '.join(str(row['value']) for row in rows)} all failed."
        )
    return max(scored, key=lambda row: row["accuracy"])["value"]
