"""Speed-up: how many times fewer epochs an arm needs for an accuracy of plain training.

Every point is the end of a run with its own full schedule. An arm's mean accuracy over its budgets
is a curve, linear in the logarithm of the epochs. If it first reaches plain's mean accuracy at E
epochs after e epochs, the speed-up is E / e. There is no extrapolation: if the smallest budget
already reaches it, the speed-up is a lower bound; if the largest does not, an upper bound. An arm
can be compared with another one than plain in the same way.

The interval of a speed-up follows from paired t intervals (Fieller, 1954): it holds every E / e at
which the 95 % interval of the difference between the arm's interpolated accuracy at e and plain's
accuracy at E contains 0. At e = E that is the interval of the difference in accuracy.
"""

import itertools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from trainact.lab.analysis.runs import FinishedRun, check_pair
from trainact.lab.recipes.arms import PLAIN, Arm
from trainact.lab.statistics import TOLERANCE, Point, compute_t_interval, find_in_log
from trainact.lab.text import count_epochs

__all__ = ["Reach", "SpeedUp", "compute_speed_up", "find_other_speed_ups", "find_speed_ups"]

Runs = Mapping[int, Mapping[int, FinishedRun]]
"""The complete runs of an arm, by budget and seed."""
STEPS = 200
"""Points between two budgets at which an interval is computed."""


@dataclass(frozen=True)
class Reach:
    """A speed-up or a bound of it: equal to, at least, or below ``factor``."""

    kind: Literal["equal", "at least", "below"]
    factor: float


@dataclass(frozen=True)
class SpeedUp:
    """The speed-up of one arm for the accuracy of plain, or of another arm, at one budget."""

    arm: Arm
    against: Arm
    budget: int  # E
    target: float  # mean accuracy of ``against`` at E, over the seeds below
    budgets: tuple[int, ...]  # of the arm
    seeds: tuple[int, ...]  # that ``against`` has at E and the arm at all its budgets
    reach: Reach
    epochs: float | None  # e; None if the target is not reached
    low: Reach | None  # 95 % interval over seeds; None for one seed
    high: Reach | None


def compute_speed_up(curve: Sequence[Point], budget: int, target: float) -> Reach:
    """Return how many times fewer epochs than plain's ``budget`` the curve needs for the target.

    >>> compute_speed_up([(30, 70.0), (60, 74.0), (90, 75.0)], 90, 74.0)
    Reach(kind='equal', factor=1.5)
    >>> compute_speed_up([(30, 70.0), (60, 74.0)], 90, 69.0)
    Reach(kind='at least', factor=3.0)
    >>> compute_speed_up([(30, 70.0), (60, 74.0)], 90, 76.0)
    Reach(kind='below', factor=1.5)
    """
    epochs = find_in_log(curve, target)
    if epochs is None:
        return Reach("below", budget / curve[-1][0])
    return Reach("at least" if epochs == curve[0][0] else "equal", budget / epochs)


def find_speed_ups(
    runs: Sequence[FinishedRun],
) -> tuple[tuple[SpeedUp, ...], tuple[str, ...]]:
    """Return the speed-up of each arm at each larger budget of plain, and why any is missing.

    A budget counts if it is above the arm's smallest: otherwise the arm cannot be faster.

    Raises:
        TrActValueError: runs of one seed differ in initial weights or data.
    """
    arms = _group(runs)
    plain = arms.pop(PLAIN, {})
    found: list[SpeedUp] = []
    arms_without: dict[str, list[str]] = {}  # titles by reason
    for arm, by_budget in arms.items() if plain else ():
        budgets = f"budgets with complete runs: {_list(by_budget)} (plain: {_list(plain)})."
        larger = _list_larger(by_budget, plain)
        reasons = []
        if not larger:
            reasons.append(
                "a speed-up needs two or more budgets, and plain at a larger one than the arm's "
                f"smallest; {budgets}"
            )
        for budget in larger:
            result = _measure(arm, by_budget, PLAIN, plain, budget)
            if result is not None:
                found.append(result)
            else:
                reasons.append(
                    f"no speed-up over plain at {count_epochs(budget)}, because no seed has that "
                    f"run and all runs of the arm; {budgets}"
                )
        for reason in reasons:
            arms_without.setdefault(reason, []).append(arm.title)
    missing = (f"{'; '.join(titles)}: {reason}" for reason, titles in arms_without.items())
    return tuple(found), tuple(missing)


def find_other_speed_ups(
    runs: Sequence[FinishedRun], against: Mapping[str, str]
) -> tuple[SpeedUp, ...]:
    """Return the speed-ups over arms other than plain that the runs allow.

    ``against`` is, by the name of an arm, that of the other one.

    Raises:
        TrActValueError: runs of one seed differ in initial weights or data.
    """
    arms = _group(runs)
    names = {arm.name: arm for arm in arms}
    results = [
        _measure(arm, by_budget, other, arms[other], budget)
        for arm, by_budget in arms.items()
        if (other := names.get(against.get(arm.name, ""))) is not None
        for budget in _list_larger(by_budget, arms[other])
    ]
    return tuple(result for result in results if result is not None)


def _group(runs: Sequence[FinishedRun]) -> dict[Arm, Runs]:
    arms: dict[Arm, dict[int, dict[int, FinishedRun]]] = {}
    for run in runs:
        if run.complete:
            arms.setdefault(run.arm, {}).setdefault(run.budget, {})[run.seed] = run
    return dict(arms)


def _list_larger(runs: Runs, others: Runs) -> list[int]:
    """Return the budgets of the others above the smallest one of an arm that has several."""
    return [budget for budget in sorted(others) if budget > min(runs) and len(runs) > 1]


def _measure(arm: Arm, by_budget: Runs, against: Arm, others: Runs, budget: int) -> SpeedUp | None:
    """Return the speed-up; None if no seed has all the runs that it needs."""
    seeds = sorted(set(others[budget]).intersection(*by_budget.values()))
    if not seeds:
        return None
    budgets = sorted(by_budget)
    for seed in seeds:
        for epochs in budgets:
            check_pair(others[budget][seed], by_budget[epochs][seed])
    targets = [others[budget][seed].accuracies[-1] for seed in seeds]
    curves = {e: [by_budget[e][seed].accuracies[-1] for seed in seeds] for e in budgets}
    gaps = {e: [a - b for a, b in zip(row, targets, strict=True)] for e, row in curves.items()}
    reach = compute_speed_up([(e, statistics.fmean(row)) for e, row in gaps.items()], budget, 0.0)
    low = high = None
    if len(seeds) > 1:
        low, high = _compute_interval(gaps, budget)
    return SpeedUp(
        arm=arm,
        against=against,
        budget=budget,
        target=statistics.fmean(targets),
        budgets=tuple(budgets),
        seeds=tuple(seeds),
        reach=reach,
        epochs=None if reach.kind == "below" else budget / reach.factor,
        low=low,
        high=high,
    )


def _compute_interval(gaps: Mapping[int, Sequence[float]], budget: int) -> tuple[Reach, Reach]:
    """Return the 95 % interval; ``gaps`` are, by epochs, the seeds' differences to the target.

    It spans all numbers of epochs at which the t interval of the gap contains 0: from the first at
    which its upper end reaches 0 to the last at which its lower end is below 0.
    """
    lows, highs = [], []
    for epochs, values in _interpolate(gaps):
        interval = compute_t_interval(values)
        assert interval is not None
        lows.append((epochs, interval[0]))
        highs.append((epochs, interval[1]))
    last = max((place for place, (_, low) in enumerate(lows) if low < -TOLERANCE), default=0)
    return compute_speed_up(lows[last:], budget, 0.0), compute_speed_up(highs, budget, 0.0)


def _interpolate(rows: Mapping[int, Sequence[float]]) -> Iterator[tuple[float, list[float]]]:
    """Yield the rows and STEPS - 1 others between two of them, linear in the log of the epochs."""
    for (start, first), (end, last) in itertools.pairwise(rows.items()):
        for step in range(STEPS):
            share = step / STEPS
            values = [(1 - share) * a + share * b for a, b in zip(first, last, strict=True)]
            yield start * (end / start) ** share, values
    yield end, list(last)


def _list(budgets: Mapping[int, object]) -> str:
    return ", ".join(map(str, sorted(budgets))) or "no"
