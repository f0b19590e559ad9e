"""Measured values from records of finished runs, with the same keys as the paper's printed ones."""

import statistics
from collections.abc import Iterable

from trainact.lab.metric import MEAN_AVERAGE_PRECISION, TOP5, read_metric, read_percent
from trainact.lab.paper.tables import TABLE_OF_NETWORKS
from trainact.lab.paper.values import Key, MeasuredValue
from trainact.lab.recipes.experiment import name_network
from trainact.lab.records.record import Record
from trainact.lab.statistics import compute_std

__all__ = ["find_network", "measure_values"]


def measure_values(recipe: str, records: Iterable[Record]) -> dict[Key, MeasuredValue]:
    """Return the final accuracies or mean average precision, and the training time, by key.

    Smoke runs are left out. So is an arm at a budget at which any seed diverged: the mean of the
    other seeds would be biased.
    """
    groups: dict[tuple[str | None, str, int], list[Record]] = {}
    for record in records:
        if record["kind"] == "full":
            key = find_network(recipe, record), record["arm"], record["budget"]
            groups.setdefault(key, []).append(record)
    values: dict[Key, MeasuredValue] = {}
    for (network, arm, budget), runs in groups.items():
        if any(run["status"] != "complete" for run in runs):
            continue
        measured = list(map(_measure, runs))
        for metric in measured[0]:
            numbers = [one[metric] for one in measured]
            value = MeasuredValue(statistics.fmean(numbers), compute_std(numbers), len(numbers))
            values[Key(recipe, network, arm, budget, metric)] = value
    return values


def find_network(recipe: str, record: Record) -> str | None:
    """Return the name of a run's network in the table of 36 networks; None for other recipes."""
    return name_network(record["model"]["name"]) if recipe == TABLE_OF_NETWORKS else None


def _measure(record: Record) -> dict[str, float]:
    """Return the values of one run by metric."""
    last = record["epochs"][-1]
    seconds = sum(row["train_seconds"] for row in record["epochs"])
    times = {"seconds": seconds, "minutes": seconds / 60}
    metric = read_metric(record)
    if metric == MEAN_AVERAGE_PRECISION:
        return {"map": last["map"], **times}
    top5 = {"top5": read_percent(TOP5, last)} if TOP5.field in last else {}
    return {"top1": read_percent(metric, last), **top5, **times}
