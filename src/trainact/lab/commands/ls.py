"""``trainact ls``: every recipe, its runs, and what they would cost."""

import argparse

from trainact.lab.cost.estimates import Throughput, count_run, find_throughputs
from trainact.lab.recipes.experiment import (
    Experiment,
    find_experiment,
    find_experiments,
    list_experiments,
)
from trainact.lab.report.tables import Grid, print_grid

__all__ = [
    "CAUTION",
    "add_arguments",
    "add_up",
    "make_listing",
    "run",
    "show_duration",
    "show_work",
    "tell_throughput",
]


CAUTION = (
    "Times follow from multiply-adds alone: a small network does not keep a GPU busy and takes "
    "longer; reading and augmenting images comes on top."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    parser.add_argument(
        "family", nargs="?", default="", help="one recipe, or those of a family (cifar10-cpu)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print one line a recipe, and what the times are from."""
    throughputs = find_throughputs()
    if arguments.family:
        experiments = find_experiments(arguments.family)
    else:
        experiments = [find_experiment(name) for name in list_experiments()]
    print_grid(make_listing(experiments, throughputs))
    for throughput in throughputs:
        print(tell_throughput(throughput))
    print(CAUTION)
    print("'trainact show NAME' tells more of one; 'trainact run NAME' does its runs.")
    return 0


def make_listing(experiments: list[Experiment], throughputs: list[Throughput]) -> Grid:
    """Return the recipes with their number of runs and the time of all of them together."""
    rows = []
    for experiment in experiments:
        runs = experiment.plan()
        work = add_up([count_run(recipe) for recipe in runs])
        times = [show_duration(t.time(experiment.recipe, work)) for t in throughputs]
        paper = experiment.paper or "-"
        rows.append((experiment.name, experiment.title, paper, str(len(runs)), *times))
    head = ("recipe", "title", "paper", "runs", *(f"all on {t.device}" for t in throughputs))
    return Grid("Recipes, and the estimated time of all their runs", head, tuple(rows), words=3)


def add_up(works: list[float | None]) -> float | None:
    """Return the sum; None where a part of it is not known."""
    known = [work for work in works if work is not None]
    return sum(known) if len(known) == len(works) else None


def show_duration(seconds: float | None) -> str:
    """Return a time in the unit that suits it.

    >>> show_duration(40), show_duration(5400), show_duration(3e5), show_duration(None)
    ('40 s', '1.5 h', '3.5 days', '-')
    """
    if seconds is None:
        return "-"
    for unit, size, most in (("s", 1, 100), ("min", 60, 5000), ("h", 3600, 172800)):
        if seconds < most:
            return f"{seconds / size:.{0 if seconds / size >= 10 else 1}f} {unit}"
    days = seconds / 86400
    return f"{days:,.{0 if days >= 10 else 1}f} days"


def show_work(multiply_adds: float | None) -> str:
    """Return multiply-adds in short.

    >>> show_work(2.5e15)
    '2.5 P'
    """
    if multiply_adds is None:
        return "-"
    for unit, size in (("E", 1e18), ("P", 1e15), ("T", 1e12), ("G", 1e9)):
        if multiply_adds >= size:
            return f"{multiply_adds / size:.3g} {unit}"
    return f"{multiply_adds:.3g}"


def tell_throughput(throughput: Throughput) -> str:
    """Return what times on a device are from."""
    return (
        f"{throughput.device}: {throughput.hardware}, {show_work(throughput.rate)} multiply-adds "
        f"per second of training ({throughput.source})."
    )
