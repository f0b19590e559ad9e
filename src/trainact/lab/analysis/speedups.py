"""Speed-up: how many times fewer epochs an arm needs for an accuracy of plain training.

Every point is the end of a run with its own full schedule. An arm's mean accuracy over its budgets
is a curve, linear in the logarithm of the epochs. If it first reaches plain's mean accuracy at E
epochs after e epochs, the speed-up is E / e. There is no extrapolation: if the smallest budget
already reaches it, the speed-up is a lower bound; if the largest does not, an upper bound.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from trainact.lab.analysis.runs import FinishedRun, check_pair
from trainact.lab.recipes.arms import PLAIN, Arm
from trainact.lab.statistics import Point, find_in_log, resample
from trainact.lab.text import count_epochs

__all__ = ["Reach", "SpeedUp", "compute_speed_up", "find_speed_ups"]


@dataclass(frozen=True)
class Reach:
    """A speed-up or a bound of it: equal to, at least, or below ``factor``."""

    kind: Literal["equal", "at least", "below"]
    factor: float


@dataclass(frozen=True)
class SpeedUp:
    """The speed-up of one arm for plain's accuracy at one budget."""

    arm: Arm
    budget: int  # E
    target: float  # plain's mean accuracy at E, over the seeds below
    budgets: tuple[int, ...]  # of the arm
    seeds: tuple[int, ...]  # that plain has at E and the arm at all its budgets
    reach: Reach
    epochs: float | None  # e; None if the target is not reached
    low: Reach | None  # 95 % interval by bootstrap over seeds; None for one seed
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
    runs: Sequence[FinishedRun], resamples: int = 2000
) -> tuple[tuple[SpeedUp, ...], tuple[str, ...]]:
    """Return the speed-up of each arm at each larger budget of plain, and why any is missing.

    A budget counts if it is above the arm's smallest: otherwise the arm cannot be faster.

    Raises:
        TrActValueError: runs of one seed differ in initial weights or data.
    """
    arms: dict[Arm, dict[int, dict[int, FinishedRun]]] = {}
    for run in runs:
        if run.complete:
            arms.setdefault(run.arm, {}).setdefault(run.budget, {})[run.seed] = run
    plain = arms.pop(PLAIN, {})
    found, missing = [], []
    for arm, by_budget in arms.items() if plain else ():
        larger = [budget for budget in sorted(plain) if budget > min(by_budget)]
        budgets = f"budgets with complete runs: {_list(by_budget)} (plain: {_list(plain)})."
        if len(by_budget) < 2 or not larger:
            missing.append(
                f"{arm.title}: a speed-up needs two or more budgets, and plain at a larger one "
                f"than the arm's smallest; {budgets}"
            )
            continue
        for budget in larger:
            seeds = sorted(set(plain[budget]).intersection(*by_budget.values()))
            if seeds:
                found.append(_measure(arm, budget, plain[budget], by_budget, seeds, resamples))
            else:
                missing.append(
                    f"{arm.title}: no speed-up over plain at {count_epochs(budget)}, because "
                    f"no seed has that run and all runs of the arm; {budgets}"
                )
    return tuple(found), tuple(missing)


def _measure(
    arm: Arm,
    budget: int,
    plain: Mapping[int, FinishedRun],
    by_budget: Mapping[int, Mapping[int, FinishedRun]],
    seeds: Sequence[int],
    resamples: int,
) -> SpeedUp:
    budgets = sorted(by_budget)
    for seed in seeds:
        for epochs in budgets:
            check_pair(plain[seed], by_budget[epochs][seed])
    targets = [plain[seed].accuracies[-1] for seed in seeds]
    curves = {e: [by_budget[e][seed].accuracies[-1] for seed in seeds] for e in budgets}

    def compute(chosen: Sequence[int]) -> Reach:
        curve = [(e, statistics.fmean(row[i] for i in chosen)) for e, row in curves.items()]
        return compute_speed_up(curve, budget, statistics.fmean(targets[i] for i in chosen))

    reach = compute(range(len(seeds)))
    low = high = None
    if len(seeds) > 1:
        low, high = resample(len(seeds), compute, resamples, key=_rank)
    return SpeedUp(
        arm=arm,
        budget=budget,
        target=statistics.fmean(targets),
        budgets=tuple(budgets),
        seeds=tuple(seeds),
        reach=reach,
        epochs=None if reach.kind == "below" else budget / reach.factor,
        low=low,
        high=high,
    )


def _rank(reach: Reach) -> tuple[int, float]:
    """Return the order of speed-ups: upper bounds first, lower bounds last."""
    return ("below", "equal", "at least").index(reach.kind), reach.factor


def _list(budgets: Mapping[int, object]) -> str:
    return ", ".join(map(str, sorted(budgets))) or "no"
