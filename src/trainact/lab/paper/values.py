"""Values by key: numbers as the paper prints them, and measured means."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from trainact.errors import TrActValueError

__all__ = [
    "METRICS",
    "TRACT_ARMS",
    "UNSTATED_BUDGET",
    "UNSTATED_LAM",
    "Key",
    "MeasuredValue",
    "PrintedValue",
    "Value",
    "Values",
    "parse_cell",
]

METRICS = {
    "top1": "top-1, %",
    "top5": "top-5, %",
    "map": "mean average precision",
    "seconds": "seconds of training",
    "minutes": "minutes of training",
}
"""The metrics and their titles."""

UNSTATED_LAM = "tract"
"""The arm of a key if λ is not stated."""
UNSTATED_BUDGET = 0
"""The budget of a key if the number of epochs is not stated."""
TRACT_ARMS = ("tract-0.1", "tract-0.2", "tract-0.05", UNSTATED_LAM)
"""The arms with TrAct, in the order in which they are looked for if λ is not stated."""

_NUMBER = r"\d+(?:\.\d+)?"
_CELL = re.compile(rf"({_NUMBER})(?: ± ({_NUMBER})| \(({_NUMBER})\))?")
_CLOCK = re.compile(r"(\d+):([0-5]\d)")


class Key(NamedTuple):
    """What a value is of."""

    recipe: str
    network: str | None  # None if the recipe has one network
    arm: str  # plain, tract-0.1, reported; tract if λ is not stated
    budget: int  # epochs; 0 if not stated
    metric: str


@dataclass(frozen=True)
class MeasuredValue:
    """The mean over runs that differ only in the seed."""

    mean: float
    deviation: float | None  # of the sample; None for one run
    runs: int
    half_step: float = 0.0  # not rounded


@dataclass(frozen=True)
class PrintedValue:
    """A printed number."""

    mean: float
    deviation: float | None  # after ±, or in brackets for an average over networks
    decimals: int  # digits after the point; 0 for hours:minutes, stored in minutes

    @property
    def half_step(self) -> float:
        """Return how far rounding may have moved the number."""
        return 0.5 * 10.0**-self.decimals

    def show(self) -> str:
        """Return the number with the printed digits.

        >>> PrintedValue(69.4, 0.3, 2).show()
        '69.40 ± 0.30'
        """
        shown = f"{self.mean:.{self.decimals}f}"
        return shown if self.deviation is None else f"{shown} ± {self.deviation:.{self.decimals}f}"


Value = PrintedValue | MeasuredValue
Values = Mapping[Key, Value]


def parse_cell(text: str) -> PrintedValue | None:
    """Return the value of a cell, in minutes for hours:minutes; None for an empty cell.

    >>> parse_cell("70.48 ± 0.17"), parse_cell("133:52").mean
    (PrintedValue(mean=70.48, deviation=0.17, decimals=2), 8032.0)

    Raises:
        TrActValueError: the text is not a cell.
    """
    if not text:
        return None
    if match := _CLOCK.fullmatch(text):
        return PrintedValue(60.0 * int(match[1]) + int(match[2]), None, 0)
    if match := _CELL.fullmatch(text):
        deviation = match[2] or match[3]
        decimals = len(match[1].partition(".")[2])
        return PrintedValue(float(match[1]), float(deviation) if deviation else None, decimals)
    raise TrActValueError(
        f"{text!r} is not a cell of a table; cells are like '69.45', '69.45 ± 0.30', "
        "'75.90 (0.26)', '133:52' or empty."
    )
