"""Records of finished runs as values with the same keys as the paper's printed ones."""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from trainact.lab.analysis.runs import Record
from trainact.lab.metric import MEAN_AVERAGE_PRECISION, read_metric
from trainact.lab.paper import Key
from trainact.lab.statistics import compute_std

__all__ = ["MeasuredValue", "measure_values"]


TABLE = "cifar100-table"


@dataclass(frozen=True)
class MeasuredValue:
    """The mean over runs that differ in nothing but the seed.

    Attributes:
        mean: over the runs.
        deviation: of the sample; None for one run.
        runs: how many.
    """

    mean: float
    deviation: float | None
    runs: int
    half_step: float = 0.0  # nothing is rounded


def measure_values(
    recipe: str, records: Iterable[Record], network: str | None = None
) -> dict[Key, MeasuredValue]:
    """Return accuracy or mean average precision after the last epoch, and training time, by key.

    Smoke runs say nothing about accuracy and are left out. So is an arm at a budget at which any
    seed diverged: the mean of the others would speak for runs that worked out.

    Args:
        recipe: the name of the experiment that the records are of.
        records: of its runs.
        network: which of the CIFAR-100 table; read from each record unless given.
    """
    groups: dict[tuple[str | None, str, int], list[Record]] = {}
    for record in records:
        if record["kind"] == "full":
            name = network or _name_network(record) if recipe == TABLE else None
            groups.setdefault((name, record["arm"], record["budget"]), []).append(record)
    values: dict[Key, MeasuredValue] = {}
    for (name, arm, budget), runs in groups.items():
        if any(run["status"] != "complete" for run in runs):
            continue
        seconds = [sum(row["train_seconds"] for row in run["epochs"]) for run in runs]
        numbers = {
            **_read_results(runs),
            "seconds": seconds,
            "minutes": [second / 60 for second in seconds],
        }
        for metric, given in numbers.items():
            value = MeasuredValue(statistics.fmean(given), compute_std(given), len(given))
            values[Key(recipe, name, arm, budget, metric)] = value
    return values


def _read_results(runs: list[Record]) -> dict[str, list[float]]:
    """Return what runs reached: mean average precision, 0 to 1, or two accuracies in percent."""
    if read_metric(runs[0]) == MEAN_AVERAGE_PRECISION:
        return {"map": [run["epochs"][-1]["map"] for run in runs]}
    return {
        "top1": [_percent(run, "test_correct") for run in runs],
        "top5": [_percent(run, "test_top5") for run in runs],
    }


def _percent(record: Record, count: str) -> float:
    last = record["epochs"][-1]
    return 100 * last[count] / last["test_seen"]


def _name_network(record: Record) -> str:
    return str(record["model"]["name"]).removeprefix("lab:")
