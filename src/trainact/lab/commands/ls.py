"""``trainact ls``: list the recipes, their number of runs and the estimated time."""

import argparse
import textwrap
from collections.abc import Sequence

from trainact.lab.cost.estimates import (
    CAUTION,
    ExperimentCost,
    ListedRecipe,
    Throughput,
    list_costs,
    read_listing,
    read_throughputs,
)
from trainact.lab.recipes.experiment import find_experiments
from trainact.lab.report.grid import Grid, render_text
from trainact.lab.text import count, format_duration

__all__ = ["WIDTH", "add_arguments", "make_listing", "run"]

WIDTH = 100
"""Columns of the output."""
TITLE = 25
"""Columns of a title; longer ones continue on the next line."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    text = "name of a recipe or of a family of recipes (such as cifar10-cpu); default: all"
    parser.add_argument("family", nargs="?", default="", help=text)


def run(arguments: argparse.Namespace) -> int:
    """Print the recipes and where the estimates come from."""
    throughputs = read_throughputs()
    family = arguments.family
    recipes = list_costs(find_experiments(family)) if family else read_listing()
    print(render_text(make_listing(recipes, throughputs)))
    total = _describe_total([recipe.cost for recipe in recipes], throughputs)
    for text in (total, *throughputs, CAUTION):
        print(textwrap.fill(str(text), WIDTH, subsequent_indent="  "))
    print("Run 'trainact show NAME' for details, 'trainact run NAME' to do the runs.")
    return 0


def make_listing(recipes: Sequence[ListedRecipe], throughputs: Sequence[Throughput]) -> Grid:
    """Return a row per recipe: title, place in the paper, runs, new runs and the time of these."""
    rows = []
    for recipe in recipes:
        cost = recipe.cost
        suited = _find_suited(cost, throughputs)
        time = "-"
        if suited is not None and cost.total is not None:
            time = f"{format_duration(suited.estimate_seconds(cost.total))} {suited.kind}"
        first, *rest = textwrap.wrap(recipe.title, TITLE, break_on_hyphens=False) or [""]
        runs = (str(cost.runs), str(cost.new))
        rows.append((recipe.name, first, recipe.paper or "-", *runs, time))
        rows += [("", line, "", "", "", "") for line in rest]
    head = ("recipe", "title", "paper", "runs", "new", "new runs")
    caption = "Recipes, their runs, those that no recipe above has, and the estimated time of these"
    return Grid(caption, head, tuple(rows), text_columns=3)


def _find_suited(cost: ExperimentCost, throughputs: Sequence[Throughput]) -> Throughput | None:
    """Return the speed of the device that the runs are meant for."""
    return next((throughput for throughput in throughputs if cost.suits(throughput)), None)


def _describe_total(costs: Sequence[ExperimentCost], throughputs: Sequence[Throughput]) -> str:
    """Return the number of runs and their time on each kind of device, each run counted once."""
    seconds: dict[str, float] = {}
    for cost in costs:
        suited = _find_suited(cost, throughputs)
        if suited is not None and cost.total is not None:
            time = suited.estimate_seconds(cost.total) or 0.0
            seconds[suited.kind] = seconds.get(suited.kind, 0.0) + time
    times = " and ".join(f"{format_duration(time)} {kind}" for kind, time in seconds.items())
    runs, new = sum(cost.runs for cost in costs), sum(cost.new for cost in costs)
    same = f" ({runs - new} more are shared and done once)" if runs > new else ""
    return f"All together: {count(new, 'run')}{same}, {times or 'of unknown time'}."
