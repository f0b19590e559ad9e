"""An arm beside plain at one budget, seed by seed: how far apart, when level, at what cost."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from trainact.lab.analysis.outcomes import Outcome, check_pair
from trainact.lab.recipes.arms import BASELINE
from trainact.lab.statistics import compute_median, compute_t_interval, find_crossing

__all__ = [
    "Cost",
    "Crossing",
    "Difference",
    "Pairs",
    "compare_accuracy",
    "compare_time",
    "cross_inside",
    "pair_runs",
]

Pairs = Sequence[tuple[Outcome, Outcome]]
"""Complete runs of an arm and of plain, of one budget and the same seed."""


@dataclass(frozen=True)
class Difference:
    """An arm minus another, mostly plain, at one budget, over the seeds that both completed."""

    arm: str
    budget: int
    n: int
    mean: float  # percentage points
    low: float | None  # 95 % t interval; None for one seed
    high: float | None
    per_seed: tuple[tuple[int, float], ...]
    unpaired: tuple[int, ...]  # complete seeds of the arm that plain lacks
    against: str = BASELINE


@dataclass(frozen=True)
class Crossing:
    """The epoch inside the arm's runs at which they reach what plain's runs end with."""

    arm: str
    budget: int
    n: int
    median: float | None  # epochs, where never counts as latest; None where that is the median
    never: int
    per_seed: tuple[tuple[int, float | None], ...]


@dataclass(frozen=True)
class Cost:
    """Training seconds of an epoch, as a multiple of plain's."""

    arm: str
    budget: int
    n: int
    ratio: float  # the median over seeds
    low: float  # the least and the greatest of them
    high: float
    same_machine: bool


def pair_runs(runs: Sequence[Outcome], plain: Sequence[Outcome]) -> Pairs:
    """Return the complete runs of one arm and budget, each with plain's of the same seed.

    Raises:
        TrActValueError: two runs of one seed differ in initial weights, data or order.
    """
    baselines = {run.seed: run for run in plain if run.complete}
    pairs = [(r, baselines[r.seed]) for r in runs if r.complete and r.seed in baselines]
    for run, baseline in pairs:
        check_pair(run, baseline)
    return pairs


def compare_accuracy(pairs: Pairs, runs: Sequence[Outcome] = ()) -> Difference:
    """Return the mean paired difference and its 95 % t interval; ``runs`` tells the unpaired."""
    per_seed = {run.seed: run.accuracies[-1] - plain.accuracies[-1] for run, plain in pairs}
    values = list(per_seed.values())
    low, high = compute_t_interval(values) or (None, None)
    return Difference(
        *_identify(pairs),
        n=len(values),
        mean=statistics.fmean(values),
        low=low,
        high=high,
        per_seed=tuple(per_seed.items()),
        unpaired=tuple(r.seed for r in runs if r.complete and r.seed not in per_seed),
    )


def cross_inside(pairs: Pairs) -> Crossing:
    """Return when, inside its runs, an arm reaches the accuracy that plain's runs end with."""
    per_seed = {
        run.seed: find_crossing(
            list(zip(run.epochs, run.accuracies, strict=True)), plain.accuracies[-1]
        )
        for run, plain in pairs
    }
    return Crossing(
        *_identify(pairs),
        n=len(per_seed),
        median=compute_median(list(per_seed.values())),
        never=sum(epoch is None for epoch in per_seed.values()),
        per_seed=tuple(per_seed.items()),
    )


def compare_time(pairs: Pairs) -> Cost | None:
    """Return the ratio of training seconds of an epoch; each run's first epoch warms it up.

    None where no run of plain took measurable time.
    """

    def time_epoch(run: Outcome) -> float:
        return statistics.median(run.train_seconds[1:] or run.train_seconds)

    ratios = [time_epoch(run) / time_epoch(plain) for run, plain in pairs if time_epoch(plain) > 0]
    if not ratios:
        return None
    return Cost(
        *_identify(pairs),
        n=len(ratios),
        ratio=statistics.median(ratios),
        low=min(ratios),
        high=max(ratios),
        same_machine=all(run.machine == plain.machine for run, plain in pairs),
    )


def _identify(pairs: Pairs) -> tuple[str, int]:
    return pairs[0][0].arm, pairs[0][0].budget
