"""Statistics over few seeds: standard deviation, t interval and crossings of curves."""

import functools
import math
import statistics
from collections.abc import Sequence

import scipy.stats

__all__ = [
    "TOLERANCE",
    "Point",
    "compute_median",
    "compute_std",
    "compute_t_interval",
    "find_crossing",
    "find_in_log",
]

Point = tuple[float, float]
"""Epochs and accuracy in percent."""
TOLERANCE = 1e-9
"""Means of the same numbers in another order differ by rounding; they still reach each other."""


def compute_std(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation, with n - 1; None for fewer than two values.

    >>> compute_std([1.0, 2.0, 3.0])
    1.0
    """
    return statistics.stdev(values) if len(values) > 1 else None


def compute_t_interval(
    values: Sequence[float], confidence: float = 0.95
) -> tuple[float, float] | None:
    """Return Student's interval of the mean, mean ± t s / √n; None for fewer than two values.

    >>> low, high = compute_t_interval([1.0, 2.0, 3.0])  # 2 ± 4.303 × 1 / √3
    >>> round(low, 3), round(high, 3)
    (-0.484, 4.484)
    """
    spread = compute_std(values)
    if spread is None:
        return None
    half = _compute_quantile(confidence, len(values) - 1) * spread / math.sqrt(len(values))
    mean = statistics.fmean(values)
    return mean - half, mean + half


def find_in_log(curve: Sequence[Point], target: float) -> float | None:
    """Return the first epochs at which the curve reaches the target; None if it never does.

    Between two points the curve is linear in the logarithm of the epochs.

    >>> find_in_log([(10, 60.0), (40, 80.0)], 70.0)
    20.0
    """
    found = _find_first(curve, target)
    return None if found is None else found[0] * (found[1] / found[0]) ** found[2]


def find_crossing(curve: Sequence[Point], target: float) -> float | None:
    """Return the first epochs at which the curve, linear between points, reaches the target.

    >>> find_crossing([(1, 50.0), (2, 60.0), (3, 80.0)], 70.0)
    2.5
    """
    found = _find_first(curve, target)
    return None if found is None else found[0] + found[2] * (found[1] - found[0])


def compute_median(values: Sequence[float | None]) -> float | None:
    """Return the median, where None counts as infinity; None if the median is infinite.

    >>> compute_median([3.0, None, 4.0]), compute_median([3.0, None])
    (4.0, None)
    """
    if not values:
        return None
    median = statistics.median(math.inf if value is None else value for value in values)
    return None if math.isinf(median) else median


@functools.cache
def _compute_quantile(confidence: float, degrees: int) -> float:
    return float(scipy.stats.t.ppf(0.5 + confidence / 2, degrees))


def _find_first(curve: Sequence[Point], target: float) -> tuple[float, float, float] | None:
    """Return the neighbouring epochs that enclose the target, and its position between, 0 to 1."""
    before: Point | None = None
    for at, height in curve:
        if height >= target - TOLERANCE:
            if before is None or height <= target + TOLERANCE:
                return at, at, 0.0
            return before[0], at, (target - before[1]) / (height - before[1])
        before = (at, height)
    return None
