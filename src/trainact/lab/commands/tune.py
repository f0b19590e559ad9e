"""``trainact tune``: the paper's protocol, values chosen for plain training on held-out images.

Each field of a recipe's grid is tuned at each budget, in the order of the grid; the best value is
kept while the next field is tuned. All arms then use the chosen values.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainact.errors import TrActValueError
from trainact.lab.commands.request import add_experiment_options, parse_settings, read_experiments
from trainact.lab.environment import describe_environment
from trainact.lab.files import write_atomically
from trainact.lab.metric import read_metric, read_percent
from trainact.lab.ranks import is_first_rank
from trainact.lab.recipes.experiment import Experiment
from trainact.lab.recipes.recipe import Recipe, change_recipe, identify
from trainact.lab.report.wording import format_value
from trainact.lab.running.display import Display, choose_display
from trainact.lab.running.plan import place_runs
from trainact.lab.running.runner import RunResult, run_all
from trainact.lab.text import count

__all__ = ["add_arguments", "plan_tuning", "run", "tune"]

HELD_OUT = 5000
"""Held-out images if the recipe does not state their number."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("recipe", help="name of a recipe with a grid, or a .toml file with one")
    add_experiment_options(
        parser,
        refused={
            **dict.fromkeys(("--arms", "--lam"), "it trains plain runs only"),
            "--tuned": "it chooses the values itself",
            "--smoke": "short runs say nothing about the best value",
        },
        changed={"--seeds": {"default": "0", "help": "seeds to average over (default: 0)"}},
    )


def run(arguments: argparse.Namespace) -> int:
    """Tune each experiment; print and write the chosen values."""
    display = choose_display()
    for experiment in read_experiments(arguments):
        for field in parse_settings(arguments.settings):
            if field in experiment.grid:
                raise TrActValueError(f"{field} is tuned by {experiment.name}; do not set it.")
        for member in experiment.split():
            folder = arguments.out / member.name / "tuning"
            tuning = tune(member, folder, arguments.jobs, display)
            if is_first_rank():
                _print(tuning, folder / "tuning.json", arguments)
    return 0


def _print(tuning: dict[str, Any], path: Path, arguments: argparse.Namespace) -> None:
    """Print the chosen values and the command that uses them."""
    name, slash, network = tuning["experiment"].partition("/")
    print(f"{tuning['experiment']}, best on {tuning['held_out']} held-out images:")
    for budget, values in tuning["chosen"].items():
        shown = ", ".join(f"{field} = {format_value(value)}" for field, value in values.items())
        print(f"  {count(int(budget), 'epoch')}: {shown}")
    recipe = arguments.recipe if arguments.recipe.endswith(".toml") else name
    options = f" --networks {network}" if slash else ""
    options += f" --epochs {arguments.epochs}" if arguments.epochs else ""
    print(f"wrote {path}; to run every arm with these values:")
    print(f"  trainact run {recipe}{options} --tuned {path}")


def tune(experiment: Experiment, folder: Path, jobs: int, display: Display) -> dict[str, Any]:
    """Return, and write to ``tuning.json``, all values that were tried and the best ones.

    A value that diverged with any seed is listed but never chosen.

    Raises:
        TrActValueError: the recipe has no grid, a run failed, or all values of a field diverged.
    """
    if not experiment.grid:
        raise TrActValueError(f"{experiment.name} has no values to tune (experiment.grid).")
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
        results = run_all(place_runs(runs.values(), folder), jobs, display)
        _check_failures(results)
        records = {identify(result.run.recipe): result.record for result in results}
        for (budget, value), plan in plans.items():
            accuracy = _average([records[identify(recipe)] for recipe in plan])
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
    """Return the plain runs at ``budget`` with fields set to ``values``, one per seed."""
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
                "run.arm": "tune-" + "-".join(map(format_value, values.values())),
                "run.seed": seed,
            },
        )
        for seed in experiment.seeds
    ]


def _check_failures(results: Sequence[RunResult]) -> None:
    """Check that no run failed: a failure says nothing about the value."""
    failed = [result for result in results if result.failure is not None]
    if failed:
        raise TrActValueError(
            f"{len(failed)} of {len(results)} runs failed, so no value was chosen; the first: "
            f"{failed[0].failure}. The same command repeats the failed runs only."
        )


def _average(records: Sequence[dict[str, Any] | None]) -> float | None:
    """Return the mean final metric over seeds; None if a run diverged."""
    complete = [record for record in records if record and record["status"] == "complete"]
    scores = [read_percent(read_metric(record), record["epochs"][-1]) for record in complete]
    return sum(scores) / len(scores) if len(scores) == len(records) else None


def _choose_best(tried: Sequence[dict[str, Any]], budget: int, name: str) -> Any:
    rows = [row for row in tried if (row["budget"], row["field"]) == (budget, name)]
    scored = [row for row in rows if row["accuracy"] is not None]
    if not scored:
        raise TrActValueError(
            f"all values of {name} diverged at {count(budget, 'epoch')}: "
            f"{', '.join(str(row['value']) for row in rows)}."
        )
    return max(scored, key=lambda row: row["accuracy"])["value"]
