"""How much better at the end, how much sooner, and what it cost: the answers of a comparison.

All answers compare an arm with plain training over the seeds that both have, at one budget: the
epochs of a run with its own full schedule. ``answer`` makes them from records of finished runs.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from trainact.lab.outcomes import (
    BASELINE,
    Outcome,
    Record,
    check_pair,
    name_arm,
    order_arms,
    read_outcomes,
)
from trainact.lab.speedups import SpeedUp, find_speed_ups
from trainact.lab.statistics import compute_median, compute_std, compute_t_interval, find_crossing

__all__ = [
    "Answers",
    "Cost",
    "Crossing",
    "Difference",
    "Summary",
    "answer",
    "compare_accuracy",
    "compare_time",
    "cross_inside",
    "summarise_runs",
]

Pairs = Sequence[tuple[Outcome, Outcome]]
"""Complete runs of an arm and of plain, of one budget and the same seed."""


@dataclass(frozen=True)
class Summary:
    """The accuracy of one arm at one budget."""

    arm: str
    budget: int
    n: int  # complete runs
    mean: float | None  # percent; None without a complete run
    std: float | None  # of the sample; None for fewer than two
    seeds: tuple[int, ...]
    diverged: tuple[int, ...]  # seeds


@dataclass(frozen=True)
class Difference:
    """An arm minus plain at one budget, over the seeds that both completed."""

    arm: str
    budget: int
    n: int
    mean: float  # percentage points
    low: float | None  # 95 % t interval; None for one seed
    high: float | None
    per_seed: tuple[tuple[int, float], ...]
    unpaired: tuple[int, ...]  # complete seeds of the arm that plain lacks


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


@dataclass(frozen=True)
class Answers:
    """Everything that a comparison says."""

    kind: str  # full, smoke, or empty without records
    jobs: int  # runs that shared the machine
    outcomes: tuple[Outcome, ...]
    summaries: tuple[Summary, ...]
    differences: tuple[Difference, ...]
    speed_ups: tuple[SpeedUp, ...]
    crossings: tuple[Crossing, ...]
    costs: tuple[Cost, ...]
    missing: tuple[str, ...]  # what could not be told, and why

    @property
    def arms(self) -> list[str]:
        """Return the arms in their order."""
        return order_arms(outcome.arm for outcome in self.outcomes)

    @property
    def budgets(self) -> list[int]:
        """Return the budgets, smallest first."""
        return sorted({outcome.budget for outcome in self.outcomes})


def answer(records: Sequence[Record], jobs: int = 1) -> Answers:
    """Return all answers that the records of finished runs allow.

    Args:
        records: of one comparison; full runs or smoke runs.
        jobs: how many runs shared the machine, which makes their times unsure.

    Raises:
        TrActValueError: records that do not belong together, or runs of one seed that are no pair.
    """
    outcomes = read_outcomes(records)
    if not outcomes:
        return Answers("empty", jobs, (), (), (), (), (), (), ("There are no records of runs.",))
    groups: dict[tuple[str, int], list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault((outcome.arm, outcome.budget), []).append(outcome)
    differences, crossings, costs, missing = [], [], [], []
    if not any(arm == BASELINE for arm, _ in groups):
        missing.append("No run is of the arm plain, so that there is nothing to compare with.")
    for (arm, budget), runs in groups.items():
        plain = groups.get((BASELINE, budget), [])
        pairs = _pair(runs, plain)
        if not pairs:
            if arm != BASELINE:
                missing.append(_explain_no_pair(arm, budget, runs, plain))
            continue
        crossings.append(cross_inside(pairs))
        if arm != BASELINE:
            differences.append(compare_accuracy(pairs, runs))
            costs.append(compare_time(pairs))
    speed_ups, not_told = find_speed_ups(outcomes)
    return Answers(
        kind=outcomes[0].kind,
        jobs=jobs,
        outcomes=outcomes,
        summaries=tuple(summarise_runs(runs) for runs in groups.values()),
        differences=tuple(differences),
        speed_ups=speed_ups,
        crossings=tuple(crossings),
        costs=tuple(cost for cost in costs if cost is not None),
        missing=(*missing, *not_told),
    )


def summarise_runs(runs: Sequence[Outcome]) -> Summary:
    """Return mean and spread of the accuracies of one arm's runs at one budget."""
    accuracies = {run.seed: run.accuracies[-1] for run in runs if run.complete}
    values = list(accuracies.values())
    return Summary(
        arm=runs[0].arm,
        budget=runs[0].budget,
        n=len(values),
        mean=statistics.fmean(values) if values else None,
        std=compute_std(values),
        seeds=tuple(accuracies),
        diverged=tuple(run.seed for run in runs if not run.complete),
    )


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


def _pair(runs: Sequence[Outcome], plain: Sequence[Outcome]) -> Pairs:
    baselines = {run.seed: run for run in plain if run.complete}
    pairs = [(r, baselines[r.seed]) for r in runs if r.complete and r.seed in baselines]
    for run, baseline in pairs:
        check_pair(run, baseline)
    return pairs


def _explain_no_pair(
    arm: str, budget: int, runs: Sequence[Outcome], plain: Sequence[Outcome]
) -> str:
    reason = "no seed was completed by both"
    if not any(run.complete for run in runs):
        reason = "all its runs diverged"
    elif not plain:
        reason = "plain was not run with this budget"
    elif not any(run.complete for run in plain):
        reason = "all runs of plain diverged"
    return f"{name_arm(arm)} at {budget} epochs has no difference to plain: {reason}."
