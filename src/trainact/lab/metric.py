"""The metric of a run, in per cent: accuracy, or mean average precision of a detector."""

from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = [
    "ACCURACY",
    "MEAN_AVERAGE_PRECISION",
    "SIX_VIEWS",
    "TOP5",
    "Metric",
    "read_metric",
    "read_percent",
]


class Metric(NamedTuple):
    """A metric that every epoch of a record has."""

    name: str  # as tables show it
    field: str  # key of its value in an epoch
    over: str = ""  # key of the number to divide by; empty if the value is a fraction of 1


ACCURACY = Metric("accuracy", "test_correct", "test_seen")
MEAN_AVERAGE_PRECISION = Metric("mAP (11-point)", "map")
TOP5 = Metric("top-5", "test_top5", "test_seen")
SIX_VIEWS = Metric("accuracy of six views", "views_correct", "test_seen")


def read_metric(record: Mapping[str, Any]) -> Metric:
    """Return the metric of a record; it is accuracy unless the record names another."""
    return Metric(**record["metric"]) if "metric" in record else ACCURACY


def read_percent(metric: Metric, epoch: Mapping[str, Any]) -> float:
    """Return the metric of an epoch in per cent.

    >>> read_percent(ACCURACY, {"test_correct": 30, "test_seen": 40})
    75.0
    """
    return 100 * epoch[metric.field] / (epoch[metric.over] if metric.over else 1)
