"""``trainact show``: one recipe with the paper's values, its runs and their estimated cost.

The output is a recipe file: everything but the recipe's tables is a comment.
"""

import argparse
from collections.abc import Sequence
from typing import Any

import tomli_w

from trainact.lab.cost.estimates import (
    CAUTION,
    ExperimentCost,
    Throughput,
    count_run,
    estimate_experiment,
    format_work,
    read_throughputs,
)
from trainact.lab.paper.hyperparameters import needs_tuning
from trainact.lab.paper.tables import find_places, list_printed, list_recipes
from trainact.lab.recipes.arms import parse_arms
from trainact.lab.recipes.experiment import Experiment, make_experiment, read_recipe_tables
from trainact.lab.recipes.recipe import recipe_to_dict
from trainact.lab.report.grid import Grid, render_text
from trainact.lab.running.plan import format_command
from trainact.lab.text import count_epochs, format_duration, format_value

__all__ = ["add_arguments", "describe_experiment", "list_commands", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("recipe", help="the name of a recipe (see 'trainact ls'), or a .toml file")


def run(arguments: argparse.Namespace) -> int:
    """Print the description as comments, then the recipe with all defaults filled in."""
    name, tables = read_recipe_tables(arguments.recipe)
    experiment = make_experiment(tables, name)
    is_file = arguments.recipe.endswith(".toml")
    commands = [f"run {arguments.recipe}"] if is_file else list_commands(experiment)
    described = describe_experiment(experiment, commands)
    print("\n".join(f"# {line}".rstrip() for line in described.splitlines()))
    resolved: dict[str, Any] = recipe_to_dict(experiment.recipe)
    head = {"experiment": tables["experiment"]} if "experiment" in tables else {}
    print("\n" + tomli_w.dumps({**head, **resolved}).rstrip())
    return 0


def list_commands(experiment: Experiment) -> list[str]:
    """Return the arguments of the commands for an experiment: ``tune`` first, if it is needed."""
    if needs_tuning(experiment):
        return [format_command(experiment, "tune"), format_command(experiment, tuned=True)]
    return [format_command(experiment)]


def describe_experiment(experiment: Experiment, commands: Sequence[str]) -> str:
    """Return the commands, the paper's values, arms, budgets, seeds and cost as plain lines."""
    lines = [experiment.title, "", *(f"trainact {command}" for command in commands), ""]
    places = [experiment.paper] if experiment.paper else []
    if experiment.name in list_recipes():
        places = find_places(experiment.name)
    printed = make_printed_grid(experiment)
    if printed.rows:
        lines += [render_text(printed), ""]
    elif places:
        lines += ["The paper prints no values of this experiment.", ""]
    lines += [f"paper    {place}" for place in places]
    lines += [f"note     {experiment.note}"] if experiment.note else []
    lines += [
        f"budgets  {', '.join(map(str, experiment.budgets))} epochs, each with its full schedule",
        f"seeds    {', '.join(map(str, experiment.seeds))}",
        f"runs     {len(experiment.plan())}",
        "",
        "arms",
    ]
    for arm in experiment.arms:
        shown = f"  {arm.name:24} {_list_changes(arm.changes)}"
        shown += f"  ({arm.title})" if arm.title != arm.name else ""
        lines.append(shown + "  [not in the paper]" * (arm.name in experiment.own_arms))
    for budget, changes in experiment.changes.items():
        lines.append(f"  at {count_epochs(budget):21} {_list_changes(changes)}")
    for field, values in experiment.grid.items():
        lines.append(f"  {'to tune':24} {field} of {', '.join(map(format_value, values))}")
    cost = estimate_experiment(experiment)
    throughputs = [t for t in read_throughputs() if cost.suits(t)]
    lines += ["", render_text(make_cost_grid(experiment, cost, throughputs))]
    lines += [*map(str, throughputs), CAUTION]
    return "\n".join(lines)


def make_cost_grid(
    experiment: Experiment, cost: ExperimentCost, throughputs: list[Throughput]
) -> Grid:
    """Return multiply-adds and time: of one run for each arm and budget, and of all runs."""

    def show(work: float | None) -> list[str]:
        times = (format_duration(t.estimate_seconds(work)) for t in throughputs)
        return [format_work(work), *times]

    plan, titles = experiment.plan(), {arm.name: arm.title for arm in experiment.arms}
    several = len({recipe.model.name for recipe in plan}) > 1
    works: dict[tuple[str, int], list[float | None]] = {}
    for recipe in plan:
        network = f"{recipe.model.name}, " if several else ""
        key = network + titles[recipe.run.arm], recipe.schedule.epochs
        works.setdefault(key, []).append(count_run(recipe))
    rows = [
        (name, str(budget), str(len(runs)), *show(runs[0]))
        for (name, budget), runs in works.items()
    ]
    rows.append(("all runs", "", str(cost.runs), *show(cost.total)))
    devices = [f"on {throughput.kind}" for throughput in throughputs]
    head = ("one run of", "epochs", "runs", "multiply-adds", *devices)
    return Grid("Estimated cost (a training step counts as three forwards)", head, tuple(rows))


def make_printed_grid(experiment: Experiment) -> Grid:
    """Return every value that the paper prints of this experiment.

    The caption says so if they are printed for another recipe, such as that of the pre-training.
    """
    lams = sorted({recipe.tract.lam for recipe in experiment.plan()})
    titles = {arm.name: arm.title for arm in (*parse_arms(["tract"], lams), *experiment.arms)}
    printed = list_printed(experiment.name)
    rows = [
        (
            *([key.network] if key.network else []),
            titles.get(key.arm, key.arm),
            str(key.budget) if key.budget else "not stated",
            key.metric,
            value.show(),
        )
        for key, value in printed.items()
    ]
    networks = ["network"] if rows and len(rows[0]) > 4 else []
    head = (*networks, "arm", "epochs", "metric", "value")
    origins = {f"{key.recipe} at {key.budget} epochs" for key in printed}
    shared = origins if {key.recipe for key in printed} - {experiment.name} else ()
    caption = ", for ".join(["Values printed in the paper", *shared])
    return Grid(caption, head, tuple(rows), text_columns=len(networks) + 1)


def _list_changes(changes: dict[str, Any]) -> str:
    return ", ".join(f"{field} = {value}" for field, value in changes.items())
