"""Statistics of an arm and plain at one budget, paired by seed: accuracy, crossings and time."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from trainact.lab.analysis.runs import FinishedRun, check_pair
from trainact.lab.recipes.arms import PLAIN, Arm
from trainact.lab.statistics import compute_median, compute_t_interval, find_crossing

__all__ = [
    "Crossing",
    "Difference",
    "Pairs",
    "TimeRatio",
    "compare_accuracy",
    "compare_time",
    "find_crossings",
    "pair_runs",
]

Pairs = Sequence[tuple[FinishedRun, FinishedRun]]
"""Complete runs of an arm and of plain with the same budget and seed."""


@dataclass(frozen=True)
class Difference:
    """Accuracy of an arm minus that of another at one budget, over the seeds both completed."""

    arm: Arm
    budget: int
    n: int
    mean: float  # percentage points
    low: float | None  # 95 % t interval; None for one seed
    high: float | None
    per_seed: tuple[tuple[int, float], ...]
    unpaired: tuple[int, ...]  # seeds that only the arm completed
    against: Arm = PLAIN


@dataclass(frozen=True)
class Crossing:
    """The epoch of an arm's runs at which they reach the final accuracy of plain's runs."""

    arm: Arm
    budget: int
    n: int
    median: float | None  # epochs; a run that never does counts as infinity, returned as None
    never: int  # runs
    per_seed: tuple[tuple[int, float | None], ...]


@dataclass(frozen=True)
class TimeRatio:
    """Training time of an epoch relative to plain."""

    arm: Arm
    budget: int
    n: int
    ratio: float  # median over seeds
    low: float  # minimum over seeds
    high: float  # maximum over seeds
    same_machine: bool


def pair_runs(runs: Sequence[FinishedRun], plain: Sequence[FinishedRun]) -> Pairs:
    """Return the complete runs of one arm and budget, each with plain's run of the same seed.

    Raises:
        TrActValueError: two runs of one seed differ in initial weights, data or order.
    """
    baselines = {run.seed: run for run in plain if run.complete}
    pairs = [(r, baselines[r.seed]) for r in runs if r.complete and r.seed in baselines]
    for run, baseline in pairs:
        check_pair(run, baseline)
    return pairs


def compare_accuracy(pairs: Pairs, runs: Sequence[FinishedRun] = ()) -> Difference:
    """Return the mean paired difference and its 95 % t interval.

    Args:
        pairs: of one arm and budget.
        runs: all runs of the arm, to list those without a partner.
    """
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


def find_crossings(pairs: Pairs) -> Crossing:
    """Return the epochs at which runs of an arm reach the final accuracy of plain's runs."""
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


def compare_time(pairs: Pairs) -> TimeRatio | None:
    """Return the ratio of the median epoch times, without each run's first (warm-up) epoch.

    None if no run of plain took measurable time.
    """

    def time_epoch(run: FinishedRun) -> float:
        return statistics.median(run.train_seconds[1:] or run.train_seconds)

    ratios = [time_epoch(run) / time_epoch(plain) for run, plain in pairs if time_epoch(plain) > 0]
    if not ratios:
        return None
    return TimeRatio(
        *_identify(pairs),
        n=len(ratios),
        ratio=statistics.median(ratios),
        low=min(ratios),
        high=max(ratios),
        same_machine=all(run.machine == plain.machine for run, plain in pairs),
    )


def _identify(pairs: Pairs) -> tuple[Arm, int]:
    return pairs[0][0].arm, pairs[0][0].budget
