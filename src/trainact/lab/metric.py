"""What a run is judged by, in per cent: images that are right, or objects that are found."""

from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["ACCURACY", "MEAN_AVERAGE_PRECISION", "Metric", "read_metric", "read_percent"]


class Metric(NamedTuple):
    """A number that every epoch of a record has.

    Attributes:
        name: what a reader calls it.
        field: of an epoch.
        over: the field that it is divided by; empty for a number that is in [0, 1] as it stands.
    """

    name: str
    field: str
    over: str = ""


ACCURACY = Metric("accuracy", "test_correct", "test_seen")
MEAN_AVERAGE_PRECISION = Metric("mAP (11-point)", "map")


def read_metric(record: Mapping[str, Any]) -> Metric:
    """Return the metric that a record names; one without a name is judged by its accuracy."""
    return Metric(**record["metric"]) if "metric" in record else ACCURACY


def read_percent(metric: Metric, epoch: Mapping[str, Any]) -> float:
    """Return the metric of an epoch in per cent.

    >>> read_percent(ACCURACY, {"test_correct": 30, "test_seen": 40})
    75.0
    """
    return 100 * epoch[metric.field] / (epoch[metric.over] if metric.over else 1)
