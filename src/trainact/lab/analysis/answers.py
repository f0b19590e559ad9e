"""Statistics of a comparison: accuracy differences, speed-ups, crossings and time ratios.

Each compares an arm with plain training, paired by seed, at one budget: the epochs of a run with
its own full schedule. ``answer`` computes them from the records of finished runs.
"""

import dataclasses
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from trainact.lab.analysis.runs import FinishedRun, check_pair, read_runs
from trainact.lab.analysis.speedups import SpeedUp, find_other_speed_ups, find_speed_ups
from trainact.lab.recipes.arms import PLAIN, Arm
from trainact.lab.records.record import Record
from trainact.lab.statistics import compute_median, compute_std, compute_t_interval, find_crossing
from trainact.lab.text import count_epochs

__all__ = [
    *("ENOUGH_SEEDS", "Answers", "Crossing", "Difference", "Summary", "TimeRatio", "Verdict"),
    *("answer", "summarise_runs"),
]

Verdict = Literal["better", "worse", "unclear", "one seed"]
ENOUGH_SEEDS = 3
"""With so many seeds a larger budget is preferred to more seeds."""
Pairs = Sequence[tuple[FinishedRun, FinishedRun]]
"""Complete runs of an arm and of plain with the same budget and seed."""


@dataclass(frozen=True)
class Summary:
    """The accuracy of one arm at one budget."""

    arm: Arm
    budget: int
    n: int  # complete runs
    mean: float | None  # percent; None without a complete run
    std: float | None  # of the sample; None for fewer than two
    seeds: tuple[int, ...]
    diverged: tuple[int, ...]  # seeds


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

    @property
    def seeds(self) -> set[int]:
        """Return the seeds that both completed."""
        return {seed for seed, _ in self.per_seed}

    @property
    def verdict(self) -> Verdict:
        """Return better or worse if the interval is on one side of 0."""
        if self.low is None or self.high is None:
            return "one seed"
        return "better" if self.low > 0 else "worse" if self.high < 0 else "unclear"


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


@dataclass(frozen=True)
class Answers:
    """All statistics of a comparison."""

    kind: str  # full, smoke, or empty without records
    jobs: int  # runs that shared the machine; 0 if unknown
    runs: tuple[FinishedRun, ...] = ()
    summaries: tuple[Summary, ...] = ()
    differences: tuple[Difference, ...] = ()
    others: tuple[Difference, ...] = ()  # to arms other than plain
    speed_ups: tuple[SpeedUp, ...] = ()
    other_speed_ups: tuple[SpeedUp, ...] = ()  # over arms other than plain
    crossings: tuple[Crossing, ...] = ()
    time_ratios: tuple[TimeRatio, ...] = ()
    missing: tuple[str, ...] = ()  # reasons why statistics are missing

    @property
    def arms(self) -> list[Arm]:
        """Return the arms in order."""
        return list(dict.fromkeys(run.arm for run in self.runs))

    @property
    def budgets(self) -> list[int]:
        """Return the budgets, smallest first."""
        return sorted({run.budget for run in self.runs})

    def find_budget(self, arm: Arm) -> int:
        """Return the largest budget of an arm, of those with three or more runs if it has such.

        Without them it is the largest with two, else the largest. Diverged runs count: a result at
        a smaller budget must not hide them.
        """
        runs = Counter(run.budget for run in self.runs if run.arm == arm)
        return max(runs, key=lambda budget: (min(runs[budget], ENOUGH_SEEDS), budget))

    def find_summary(self, arm: Arm, budget: int) -> Summary | None:
        """Return the accuracy of an arm at a budget; None if it was not run there."""
        return next((s for s in self.summaries if (s.arm, s.budget) == (arm, budget)), None)


def answer(
    records: Sequence[Record], jobs: int = 1, *, against: Mapping[str, str] | None = None
) -> Answers:
    """Return all statistics that the records of finished runs allow.

    Args:
        records: of one comparison, all full runs or all smoke runs.
        jobs: runs that shared the machine, which makes their times unreliable; 0 if unknown.
        against: by the name of an arm, that of another to compare it with, in addition to plain.

    Raises:
        TrActValueError: the records cannot be compared with each other.
    """
    runs, against = read_runs(records), against or {}
    if not runs:
        return Answers("empty", jobs, missing=("There are no records of runs.",))
    groups: dict[tuple[Arm, int], list[FinishedRun]] = {}
    for run in runs:
        groups.setdefault((run.arm, run.budget), []).append(run)
    differences, crossings, time_ratios, missing = [], [], [], []
    arms = {arm for arm, _ in groups}
    if PLAIN not in arms:
        missing.append("No run is of the arm plain, so there is nothing to compare with.")
    elif len(arms) == 1:
        missing.append("All runs are of the arm plain, so there is nothing to compare.")
    for (arm, budget), group in groups.items():
        plain = groups.get((PLAIN, budget), [])
        pairs = _pair_runs(group, plain)
        if not pairs:
            if arm != PLAIN and PLAIN in arms:
                missing.append(_explain_no_pair(arm, budget, group, plain))
            continue
        crossings.append(_find_crossings(pairs))
        if arm != PLAIN:
            differences.append(_compare_accuracy(pairs, group))
            if (ratio := _compare_time(pairs)) is not None:
                time_ratios.append(ratio)
    speed_ups, no_speed_up = find_speed_ups(runs)
    return Answers(
        kind=runs[0].kind,
        jobs=jobs,
        runs=runs,
        summaries=tuple(summarise_runs(group) for group in groups.values()),
        differences=tuple(differences),
        others=_compare_others(groups, against),
        speed_ups=speed_ups,
        other_speed_ups=find_other_speed_ups(runs, against),
        crossings=tuple(crossings),
        time_ratios=tuple(time_ratios),
        missing=(*missing, *no_speed_up),
    )


def summarise_runs(runs: Sequence[FinishedRun]) -> Summary:
    """Return mean and standard deviation of the accuracies of one arm at one budget."""
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


def _pair_runs(runs: Sequence[FinishedRun], plain: Sequence[FinishedRun]) -> Pairs:
    """Return the complete runs of one arm and budget, each with plain's run of the same seed."""
    baselines = {run.seed: run for run in plain if run.complete}
    pairs = [(r, baselines[r.seed]) for r in runs if r.complete and r.seed in baselines]
    for run, baseline in pairs:
        check_pair(run, baseline)
    return pairs


def _compare_accuracy(pairs: Pairs, runs: Sequence[FinishedRun]) -> Difference:
    """Return the mean paired difference and its 95 % t interval; ``runs`` are all of the arm."""
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


def _compare_others(
    groups: Mapping[tuple[Arm, int], Sequence[FinishedRun]], against: Mapping[str, str]
) -> tuple[Difference, ...]:
    """Return the differences of arms to arms other than plain."""
    found, arms = [], {arm.name: arm for arm, _ in groups}
    for (arm, budget), runs in groups.items():
        other = arms.get(against.get(arm.name, ""))
        pairs = _pair_runs(runs, groups.get((other, budget), [])) if other else []
        if pairs and other:
            found.append(dataclasses.replace(_compare_accuracy(pairs, runs), against=other))
    return tuple(found)


def _find_crossings(pairs: Pairs) -> Crossing:
    """Return the epochs at which runs of an arm reach the final accuracy of plain's runs."""
    per_seed = {}
    for run, plain in pairs:
        curve = list(zip(run.epochs, run.accuracies, strict=True))
        per_seed[run.seed] = find_crossing(curve, plain.accuracies[-1])
    return Crossing(
        *_identify(pairs),
        n=len(per_seed),
        median=compute_median(list(per_seed.values())),
        never=sum(epoch is None for epoch in per_seed.values()),
        per_seed=tuple(per_seed.items()),
    )


def _compare_time(pairs: Pairs) -> TimeRatio | None:
    """Return the ratio of the median epoch times, without each run's first (warm-up) epoch.

    Only pairs on one machine with one number of threads count; if there are none, all do. None if
    no run of plain took measurable time.
    """
    pairs = [(run, plain) for run, plain in pairs if run.machine == plain.machine] or pairs

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


def _explain_no_pair(
    arm: Arm, budget: int, runs: Sequence[FinishedRun], plain: Sequence[FinishedRun]
) -> str:
    reason = "no seed was completed by both"
    if not any(run.complete for run in runs):
        reason = "all its runs diverged"
    elif not plain:
        reason = "plain was not run with this budget"
    elif not any(run.complete for run in plain):
        reason = "all runs of plain diverged"
    return f"{arm.title} at {count_epochs(budget)} has no difference to plain: {reason}."
