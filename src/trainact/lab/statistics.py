"""Statistics over few seeds: standard deviation, t interval, bootstrap and crossings of curves."""

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy
import scipy.stats

__all__ = [
    "Point",
    "compute_median",
    "compute_std",
    "compute_t_interval",
    "find_crossing",
    "find_in_log",
    "resample",
]

T = TypeVar("T")
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
    t = float(scipy.stats.t.ppf(0.5 + confidence / 2, len(values) - 1))
    half = t * spread / math.sqrt(len(values))
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


def resample(
    count: int,
    compute: Callable[[list[int]], T],
    resamples: int = 2000,
    seed: int = 0,
    *,
    key: Callable[[T], Any] | None = None,
) -> tuple[T, T]:
    """Return the 2.5 and 97.5 percentiles of ``compute`` over bootstrap resamples of indices.

    The percentiles are members of the sample (nearest rank), so a result that is a bound stays one.

    A resample draws ``count`` of the indices below ``count``, with replacement; ``key`` sorts the
    results.
    """
    draws = numpy.random.default_rng(seed).integers(0, count, (resamples, count))
    values: list[Any] = sorted(map(compute, draws.tolist()), key=key)
    return values[_rank(0.025, resamples)], values[_rank(0.975, resamples)]


def _rank(share: float, count: int) -> int:
    return max(0, math.ceil(round(share * count, 9)) - 1)


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
