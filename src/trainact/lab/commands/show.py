"""``trainact show``: one recipe, resolved, its runs and what each costs, beside the paper's values.

What is printed is a recipe file: everything else stands in comments above its tables.
"""

import argparse
from typing import Any

import tomli_w

from trainact.lab.commands.ls import CAUTION, add_up, show_duration, show_work, tell_throughput
from trainact.lab.cost.estimates import Throughput, count_run, find_throughputs
from trainact.lab.paper import find_places, list_recipes, printed_values
from trainact.lab.recipes.arms import name_arm
from trainact.lab.recipes.experiment import Experiment, make_experiment, read_tables
from trainact.lab.recipes.recipe import recipe_to_dict
from trainact.lab.report.tables import Grid, render_text
from trainact.lab.report.tuning_table import show_value
from trainact.lab.text import count_epochs

__all__ = ["add_arguments", "describe_experiment", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    parser.add_argument("recipe", help="the name of a recipe ('trainact ls'), or a .toml file")


def run(arguments: argparse.Namespace) -> int:
    """Print the recipe and all that is known of its runs."""
    name, tables = read_tables(arguments.recipe)
    experiment = make_experiment(tables, name)
    told = describe_experiment(experiment, find_throughputs())
    print("\n".join(f"# {line}".rstrip() for line in told.splitlines()))
    resolved: dict[str, Any] = recipe_to_dict(experiment.recipe)
    head = {"experiment": tables["experiment"]} if "experiment" in tables else {}
    print("\n" + tomli_w.dumps({**head, **resolved}).rstrip())
    return 0


def describe_experiment(experiment: Experiment, throughputs: list[Throughput]) -> str:
    """Return arms, budgets, seeds, note, the paper's values and the cost, in plain lines."""
    seeds = ", ".join(map(str, experiment.seeds))
    lines = [experiment.title, ""]
    lines += [f"paper    {place}" for place in _list_places(experiment)]
    lines += [f"note     {experiment.note}"] if experiment.note else []
    lines += [
        f"budgets  {', '.join(map(str, experiment.budgets))} epochs, each with a full schedule",
        f"seeds    {seeds}",
        f"runs     {len(experiment.plan())}",
        "",
        "arms",
    ]
    for arm in experiment.arms:
        changes = ", ".join(f"{field} = {value}" for field, value in arm.changes.items())
        title = name_arm(arm.name)
        lines.append(f"  {arm.name:24} {changes}" + (f"  ({title})" if title != arm.name else ""))
    for budget, differing in experiment.changes.items():
        shown = ", ".join(f"{field} = {value}" for field, value in differing.items())
        lines.append(f"  at {count_epochs(budget):21} {shown}")
    for field, values in experiment.grid.items():
        lines.append(f"  {'to tune':24} {field} of {', '.join(map(show_value, values))}")
    lines += ["", render_text(make_cost_grid(experiment, throughputs))]
    lines += [*map(tell_throughput, throughputs), CAUTION]
    printed = make_printed_grid(experiment)
    if printed.rows:
        lines += ["", render_text(printed)]
    elif _list_places(experiment):
        lines += ["", "The paper shows curves of this experiment and prints no number of it."]
    return "\n".join(lines)


def make_cost_grid(experiment: Experiment, throughputs: list[Throughput]) -> Grid:
    """Return the multiply-adds and the time of one run of each arm and budget, and of all runs."""

    def show(work: float | None) -> list[str]:
        times = [show_duration(t.time(experiment.recipe, work)) for t in throughputs]
        return [show_work(work), *times]

    plan = experiment.plan()
    several = len({recipe.model.name for recipe in plan}) > 1
    works: dict[tuple[str, int], list[float | None]] = {}
    for recipe in plan:
        network = f"{recipe.model.name}, " if several else ""
        key = network + name_arm(recipe.run.arm), recipe.schedule.epochs
        works.setdefault(key, []).append(count_run(recipe))
    rows = [
        (name, str(budget), str(len(runs)), *show(runs[0]))
        for (name, budget), runs in works.items()
    ]
    total = add_up([work for runs in works.values() for work in runs])
    rows.append(("all runs together", "", str(len(plan)), *show(total)))
    devices = [f"on {throughput.device}" for throughput in throughputs]
    head = ("one run of", "epochs", "runs", "multiply-adds", *devices)
    return Grid("Estimated cost (a training step is three forwards)", head, tuple(rows))


def make_printed_grid(experiment: Experiment) -> Grid:
    """Return every value that the paper prints of this experiment."""
    rows = [
        (
            *([key.network] if key.network else []),
            name_arm(key.arm),
            str(key.budget) if key.budget else "not stated",
            key.metric,
            value.show(),
        )
        for key, value in printed_values().items()
        if key.recipe == experiment.name
    ]
    networks = ["network"] if rows and len(rows[0]) > 4 else []
    head = (*networks, "arm", "epochs", "what", "printed")
    return Grid("What the paper prints", head, tuple(rows), words=len(networks) + 1)


def _list_places(experiment: Experiment) -> list[str]:
    if experiment.name in list_recipes():
        return find_places(experiment.name)
    return [experiment.paper] if experiment.paper else []
