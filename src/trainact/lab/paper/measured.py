"""Measured values from records of finished runs, with the same keys as the paper's printed ones."""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from trainact.lab.metric import MEAN_AVERAGE_PRECISION, read_metric
from trainact.lab.paper.lookup import TABLE_OF_NETWORKS
from trainact.lab.paper.values import Key
from trainact.lab.recipes.experiment import name_network
from trainact.lab.records.record import Record
from trainact.lab.statistics import compute_std

__all__ = ["MeasuredValue", "measure_values"]


@dataclass(frozen=True)
class MeasuredValue:
    """The mean over runs that differ only in the seed."""

    mean: float
    deviation: float | None  # of the sample; None for one run
    runs: int
    half_step: float = 0.0  # not rounded


def measure_values(
    recipe: str, records: Iterable[Record], network: str | None = None
) -> dict[Key, MeasuredValue]:
    """Return the final accuracies or mean average precision, and the training time, by key.

    Smoke runs are left out. So is an arm at a budget at which any seed diverged: the mean of the
    other seeds would be biased.

    Args:
        recipe: the name of the experiment.
        records: of its runs.
        network: of the CIFAR-100 table; None takes it from each record.
    """
    groups: dict[tuple[str | None, str, int], list[Record]] = {}
    for record in records:
        if record["kind"] == "full":
            name = None
            if recipe == TABLE_OF_NETWORKS:
                name = network or name_network(record["model"]["name"])
            groups.setdefault((name, record["arm"], record["budget"]), []).append(record)
    values: dict[Key, MeasuredValue] = {}
    for (name, arm, budget), runs in groups.items():
        if any(run["status"] != "complete" for run in runs):
            continue
        measured = list(map(_measure, runs))
        for metric in measured[0]:
            numbers = [one[metric] for one in measured]
            mean, deviation = statistics.fmean(numbers), compute_std(numbers)
            value = MeasuredValue(mean, deviation, len(numbers))
            values[Key(recipe, name, arm, budget, metric)] = value
    return values


def _measure(record: Record) -> dict[str, float]:
    """Return the values of one run by metric."""
    last = record["epochs"][-1]
    seconds = sum(row["train_seconds"] for row in record["epochs"])
    times = {"seconds": seconds, "minutes": seconds / 60}
    if read_metric(record) == MEAN_AVERAGE_PRECISION:
        return {"map": last["map"], **times}
    correct = {"top1": last["test_correct"], "top5": last["test_top5"]}
    return {key: 100 * count / last["test_seen"] for key, count in correct.items()} | times
