"""The times of training that the paper's text gives, with the GPUs that they were taken on."""

from dataclasses import dataclass
from functools import cache

from trainact.lab.paper.lookup import find_printed
from trainact.lab.paper.tables import read_toml_resource

__all__ = ["PrintedTime", "read_times"]

SECONDS = {"seconds": 1, "minutes": 60}


@dataclass(frozen=True)
class PrintedTime:
    """How long one run took.

    Attributes:
        recipe: its name.
        arm: plain or tract.
        budget: epochs.
        hours: by the clock.
        gpus: how many worked at it.
        gpu: what they are.
    """

    recipe: str
    arm: str
    budget: int
    hours: float
    gpus: int
    gpu: str

    @property
    def gpu_hours(self) -> float:
        """Return the hours of all GPUs together."""
        return self.hours * self.gpus


@cache
def read_times() -> tuple[PrintedTime, ...]:
    """Return every time, plain before TrAct.

    >>> read_times()[2].gpu, round(read_times()[2].gpu_hours)
    ('NVIDIA A40', 535)
    """
    times = []
    for row in read_toml_resource("runtime")["rows"]:
        for arm in ("plain", "tract"):
            printed = find_printed(row["recipe"], None, arm, row["budget"], row["metric"])
            assert printed is not None
            hours = printed.mean * SECONDS[row["metric"]] / 3600
            times.append(
                PrintedTime(row["recipe"], arm, row["budget"], hours, row["gpus"], row["gpu"])
            )
    return tuple(times)
