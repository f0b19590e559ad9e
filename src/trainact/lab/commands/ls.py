"""``trainact ls``: list the recipes, their number of runs and the estimated time."""

import argparse
import textwrap

from trainact.lab.cost.estimates import CAUTION, Throughput, estimate_experiment, read_throughputs
from trainact.lab.recipes.experiment import Experiment, find_experiments, list_experiments
from trainact.lab.report.grid import Grid, render_text
from trainact.lab.text import format_duration

__all__ = ["WIDTH", "add_arguments", "make_listing", "run"]

WIDTH = 100
"""Columns of the output."""
TITLE = 30
"""Columns of a title; longer ones continue on the next line."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    text = "name of a recipe or of a family of recipes (such as cifar10-cpu); default: all"
    parser.add_argument("family", nargs="?", default="", help=text)


def run(arguments: argparse.Namespace) -> int:
    """Print the recipes and where the estimates come from."""
    throughputs = read_throughputs()
    names = [arguments.family] if arguments.family else list_experiments()
    experiments = [experiment for name in names for experiment in find_experiments(name)]
    print(render_text(make_listing(experiments, throughputs)))
    for text in (*throughputs, CAUTION):
        print(textwrap.fill(str(text), WIDTH, subsequent_indent="  "))
    print("Run 'trainact show NAME' for details, 'trainact run NAME' to do the runs.")
    return 0


def make_listing(experiments: list[Experiment], throughputs: tuple[Throughput, ...]) -> Grid:
    """Return a row per recipe: title, place in the paper, runs and their time on one device."""
    rows = []
    for experiment in experiments:
        cost = estimate_experiment(experiment)
        suited = next((t for t in throughputs if cost.suits(t)), None)
        time = "-"
        if suited is not None and cost.total is not None:
            time = f"{format_duration(suited.estimate_seconds(cost.total))} {suited.kind}"
        first, *rest = textwrap.wrap(experiment.title, TITLE, break_on_hyphens=False) or [""]
        rows.append((experiment.name, first, experiment.paper or "-", str(cost.runs), time))
        rows += [("", line, "", "", "") for line in rest]
    head = ("recipe", "title", "paper", "runs", "all runs")
    caption = "Recipes and the estimated time of all their runs"
    return Grid(caption, head, tuple(rows), text_columns=3)
