"""``trainact tune``: the paper's protocol, values chosen for plain training on held-out images.

Each field of a recipe's grid is tuned at each budget, in the order of the grid; the best value is
kept while the next field is tuned. All arms then use the chosen values. With ``--arms`` only the
first layer's learning rate is tuned, in each of these arms, at the recipe's general rate.
"""

import argparse
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainact.errors import TrActValueError
from trainact.lab.commands.request import add_experiment_options, parse_settings, read_experiments
from trainact.lab.files import write_atomically
from trainact.lab.metric import read_metric, read_percent
from trainact.lab.ranks import is_first_rank
from trainact.lab.recipes.arms import PLAIN, Arm, make_lr_arm
from trainact.lab.recipes.experiment import Experiment
from trainact.lab.recipes.parts import FIRST_LAYER_LR
from trainact.lab.recipes.recipe import Recipe, change_recipe, identify, recipe_to_dict
from trainact.lab.recipes.tuning import check_tuned_recipe, read_tuning
from trainact.lab.records.results import ARM_TUNING, TUNING, TUNING_FOLDER
from trainact.lab.running.plan import place_runs
from trainact.lab.text import count_epochs, format_value

if TYPE_CHECKING:
    from trainact.lab.running.display import Display
    from trainact.lab.running.runner import RunResult

__all__ = ["add_arguments", "find_tuning_file", "plan_tuning", "run", "tune"]

HELD_OUT = 5000
"""Held-out images if the recipe does not state their number."""
FACTORS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""Multipliers of the first layer's learning rate that are tried in an arm of ``--arms``."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("recipe", help="name of a recipe with a grid, or a .toml file with one")
    add_experiment_options(
        parser,
        refused={
            "--lam": "name arms with --arms, such as tract-0.2",
            "--tuned": "it chooses the values itself",
            "--smoke": "short runs say nothing about the best value",
        },
        changed={
            "--seeds": {"default": "0", "help": "seeds to average over (default: 0)"},
            "--arms": {"help": "tune the first layer's learning rate in these arms, such as foof "
                       "(default: tune the recipe's grid in plain)"},
        },
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Tune each experiment; print and write the chosen values."""
    experiments = read_experiments(arguments)

    from trainact.lab.running.display import choose_display

    display = choose_display()
    for experiment in experiments:
        arms = experiment.arms if arguments.arms else (PLAIN,)
        for arm in arms:
            for field in parse_settings(arguments.settings):
                if field in _find_grid(experiment, arm):
                    raise TrActValueError(f"{field} is tuned by {experiment.name}; do not set it.")
        for member in experiment.split():
            for arm in arms:
                tuning = tune(member, arguments.out / member.name, arguments.jobs, display, arm)
                if is_first_rank():
                    file = find_tuning_file(arguments.out / member.name, arm)
                    _print(tuning, file, arm, arguments)
    return 0


def find_tuning_file(folder: Path, arm: Arm = PLAIN) -> Path:
    """Return the path of an arm's tuning below the folder of an experiment's runs."""
    return folder / TUNING_FOLDER / (TUNING if arm == PLAIN else ARM_TUNING.format(arm.name))


def _find_grid(experiment: Experiment, arm: Arm) -> dict[str, list[Any]]:
    """Return the values to try, by field.

    Raises:
        TrActValueError: the first layer's learning rate has no effect in the arm, or is its own.
    """
    if arm == PLAIN:
        return experiment.grid
    if arm.kind == "other":
        raise TrActValueError(
            f"{arm.name} is an arm of {experiment.name}'s file; tune arms that are made of parts, "
            "such as foof."
        )
    make_lr_arm(FACTORS[0], arm)  # raises if the arm takes no factor
    return {FIRST_LAYER_LR: list(FACTORS)}


def _print(tuning: dict[str, Any], path: Path, arm: Arm, arguments: argparse.Namespace) -> None:
    """Print the chosen values and the commands that use them."""
    name, slash, network = tuning["experiment"].partition("/")
    held_out = tuning["held_out"]
    print(f"{tuning['experiment']}, {arm.title}, best on {held_out} held-out images:")
    for budget, values in tuning["chosen"].items():
        shown = ", ".join(
            f"{field} = {format_value(value)}" + _describe_edge(tuning, int(budget), field, value)
            for field, value in values.items()
        )
        print(f"  {count_epochs(int(budget))}: {shown}")
    recipe = arguments.recipe if arguments.recipe.endswith(".toml") else name
    command = f"  trainact run {recipe}" + (f" --networks {network}" if slash else "")
    data = ["--data", arguments.data] if arguments.data else []
    command = " ".join([command, *map(shlex.quote, [*data, *arguments.settings])])
    if arm == PLAIN:
        command += f" --epochs {arguments.epochs}" if arguments.epochs else ""
        print(f"wrote {path}; to run every arm with these values:\n{command} --tuned {path}")
        return
    print(f"wrote {path}; to run the arm with these values:")
    for budget, values in tuning["chosen"].items():
        tuned = make_lr_arm(values[FIRST_LAYER_LR], arm)
        print(f"{command} --epochs {budget} --arms {tuned.name}")


def _describe_edge(tuning: dict[str, Any], budget: int, field: str, value: Any) -> str:
    """Return a note if the best value is the first or last that was tried."""
    rows = [row for row in tuning["tried"] if (row["budget"], row["field"]) == (budget, field)]
    at_edge = len(rows) > 1 and value in (rows[0]["value"], rows[-1]["value"])
    return " (at the end of the values tried)" if at_edge else ""


def tune(
    experiment: Experiment, folder: Path, jobs: int, display: "Display", arm: Arm = PLAIN
) -> dict[str, Any]:
    """Return, and write to the arm's file, all values that were tried and the best ones.

    A value that diverged with any seed is listed but never chosen. Budgets that the file has and
    that are not tuned now stay in it.

    Args:
        experiment: the recipe, its budgets and its seeds.
        folder: of the experiment's runs; see `find_tuning_file`.
        jobs: runs at the same time.
        display: shows the runs.
        arm: with plain, the recipe's grid is tuned; with another, the first layer's learning rate.

    Raises:
        TrActValueError: the recipe has no grid, the arm has no first-layer learning rate, a run
            failed, or all values of a field diverged.
    """
    grid = _find_grid(experiment, arm)
    if not grid:
        raise TrActValueError(f"{experiment.name} has no values to tune (experiment.grid).")

    from trainact.lab.environment import describe_environment
    from trainact.lab.running.runner import run_all

    file = find_tuning_file(folder, arm)
    held_out = experiment.recipe.data.held_out or HELD_OUT
    recipe = recipe_to_dict(change_recipe(experiment.recipe, {"data.folder": ""}))
    before = _read_other_budgets(file, experiment, recipe)
    chosen: dict[str, dict[str, Any]] = {str(budget): {} for budget in experiment.budgets}
    tried: list[dict[str, Any]] = []
    records: dict[str, dict[str, Any] | None] = {}  # by the identity of the run
    for name, values in grid.items():
        plans = {
            (budget, value): plan_tuning(
                experiment, budget, {**chosen[str(budget)], name: value}, arm
            )
            for budget in experiment.budgets
            for value in values
        }
        runs = {identify(recipe): recipe for plan in plans.values() for recipe in plan}
        new = [recipe for identity, recipe in runs.items() if identity not in records]
        results = run_all(place_runs(new, file.parent), jobs, display) if new else []
        _check_failures(results)
        records |= {identify(result.run.recipe): result.record for result in results}
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
        **({} if arm == PLAIN else {"arm": arm.name}),
        "held_out": held_out,
        "recipe": recipe,
        "chosen": {**before["chosen"], **chosen},
        "tried": [*before["tried"], *tried],
        "environment": describe_environment(),
    }
    write_atomically(file, json.dumps(result, indent=1).encode())
    return result


def _read_other_budgets(
    file: Path, experiment: Experiment, recipe: dict[str, Any]
) -> dict[str, Any]:
    """Return what a tuning's file has for budgets that are not tuned now.

    Raises:
        TrActValueError: the file was written with other settings, or is damaged.
    """
    if not file.exists():
        return {"chosen": {}, "tried": []}
    there = read_tuning(file)
    check_tuned_recipe(there, recipe)
    return {
        "chosen": {k: v for k, v in there["chosen"].items() if int(k) not in experiment.budgets},
        "tried": [row for row in there["tried"] if row["budget"] not in experiment.budgets],
    }


def plan_tuning(
    experiment: Experiment, budget: int, values: dict[str, Any], arm: Arm = PLAIN
) -> list[Recipe]:
    """Return the runs of an arm at ``budget`` with fields set to ``values``, one per seed."""
    names = [*([] if arm == PLAIN else [arm.name]), *map(format_value, values.values())]
    return [
        change_recipe(
            experiment.recipe,
            {
                "schedule.epochs": budget,
                **experiment.changes.get(budget, {}),
                **arm.changes,
                **values,
                "data.held_out": experiment.recipe.data.held_out or HELD_OUT,
                "data.evaluate_on": "held-out",
                "run.arm": "-".join(["tune", *names]),
                "run.seed": seed,
            },
        )
        for seed in experiment.seeds
    ]


def _check_failures(results: "Sequence[RunResult]") -> None:
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
            f"all values of {name} diverged at {count_epochs(budget)}: "
            f"{', '.join(str(row['value']) for row in rows)}."
        )
    return max(scored, key=lambda row: row["accuracy"])["value"]
