"""What a run is told by besides its accuracy: top-5, the average of the weights, another rule."""

import statistics
from collections.abc import Sequence

from trainact.lab.analysis.runs import Record
from trainact.lab.metric import Metric, read_percent
from trainact.lab.recipes.arms import name_arm, order_arms
from trainact.lab.report.tables import Grid
from trainact.lab.report.wording import show_number

__all__ = ["make_besides_grid"]

MANY_CLASSES = 10
"""Of so many classes or fewer, five guesses say little."""
TOP5 = Metric("top-5", "test_top5", "test_seen")
METRICS = (
    TOP5,
    Metric("accuracy of averaged weights (EMA)", "ema_correct", "test_seen"),
    Metric("mAP (all-point)", "map_all"),
    Metric("mAP (11-point) of averaged weights (EMA)", "ema_map"),
)


def make_besides_grid(records: Sequence[Record]) -> Grid:
    """Return the mean over seeds of each further metric that every complete run has."""
    complete = [record for record in records if record["status"] == "complete"]
    metrics = [
        metric
        for metric in METRICS
        if all(metric.field in record["epochs"][-1] for record in complete)
        and (metric is not TOP5 or _has_many_classes(complete))
    ]
    groups: dict[tuple[int, str], list[Record]] = {}
    for arm in order_arms(record["arm"] for record in complete):
        for record in complete:
            if record["arm"] == arm:
                groups.setdefault((record["budget"], arm), []).append(record)
    rows = tuple(
        (name_arm(arm), str(budget), *(_show_mean(metric, runs) for metric in metrics))
        for (budget, arm), runs in sorted(groups.items(), key=lambda group: group[0][0])
    )
    head = ("arm", "epochs", *(f"{metric.name}, %" for metric in metrics))
    return Grid("Besides, at the end: means over seeds", head, rows if metrics else ())


def _has_many_classes(records: Sequence[Record]) -> bool:
    return any(record["data"].get("classes", 0) > MANY_CLASSES for record in records)


def _show_mean(metric: Metric, runs: Sequence[Record]) -> str:
    return show_number(statistics.fmean(read_percent(metric, run["epochs"][-1]) for run in runs))
