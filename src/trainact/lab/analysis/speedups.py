"""How much sooner: the epochs an arm needs for what plain training reaches in more of them.

Every point is the end of a run with its own full schedule. An arm's mean accuracy over the budgets
that were run is a curve, linear in the logarithm of the epochs; where it first reaches plain's mean
accuracy at E epochs is e, and the speed-up is E / e. Nothing is told beyond the budgets run: what
the smallest already reaches is a lower bound, what the largest does not is an upper one.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from trainact.lab.analysis.outcomes import Outcome, check_pair
from trainact.lab.recipes.arms import BASELINE, name_arm
from trainact.lab.statistics import find_in_log, resample
from trainact.lab.text import count_epochs

__all__ = ["Reach", "SpeedUp", "find_speed_ups"]


@dataclass(frozen=True)
class Reach:
    """A speed-up as far as the budgets tell it: equal to, at least, or below ``factor``."""

    kind: Literal["equal", "at least", "below"]
    factor: float


@dataclass(frozen=True)
class SpeedUp:
    """What one arm needs for plain's accuracy at one budget."""

    arm: str
    budget: int  # E
    target: float  # plain's mean accuracy at E, over the seeds below
    budgets: tuple[int, ...]  # at which the arm was run
    seeds: tuple[int, ...]  # which plain has at E and the arm at all its budgets
    reach: Reach
    epochs: float | None  # e; None where it is not reached
    low: Reach | None  # 95 % by bootstrap over seeds; None for one seed
    high: Reach | None


def find_speed_ups(
    outcomes: Sequence[Outcome], resamples: int = 2000
) -> tuple[tuple[SpeedUp, ...], tuple[str, ...]]:
    """Return the speed-up of each arm at each larger budget of plain, and why any is missing.

    A budget counts if it is above the arm's smallest: only then is there room to be sooner.

    Raises:
        TrActValueError: runs of one seed that differ in initial weights or data.
    """
    runs: dict[str, dict[int, dict[int, Outcome]]] = {}
    for outcome in outcomes:
        if outcome.complete:
            runs.setdefault(outcome.arm, {}).setdefault(outcome.budget, {})[outcome.seed] = outcome
    plain = runs.pop(BASELINE, {})
    found, missing = [], []
    for arm, by_budget in runs.items() if plain else ():
        larger = [budget for budget in sorted(plain) if budget > min(by_budget)]
        run_at = f"complete runs have epochs {_list(by_budget)} (plain: {_list(plain)})."
        if len(by_budget) < 2 or not larger:
            missing.append(
                f"{name_arm(arm)}: how much sooner takes two or more budgets, and plain at a "
                f"larger one than the arm's smallest; {run_at}"
            )
            continue
        for budget in larger:
            seeds = sorted(set(plain[budget]).intersection(*by_budget.values()))
            if seeds:
                found.append(_measure(arm, budget, plain[budget], by_budget, seeds, resamples))
            else:
                missing.append(
                    f"{name_arm(arm)}: how much sooner than plain at {count_epochs(budget)} cannot "
                    f"be told, as no seed has that run and all of the arm's; {run_at}"
                )
    return tuple(found), tuple(missing)


def _measure(
    arm: str,
    budget: int,
    plain: Mapping[int, Outcome],
    by_budget: Mapping[int, Mapping[int, Outcome]],
    seeds: Sequence[int],
    resamples: int,
) -> SpeedUp:
    budgets = sorted(by_budget)
    for seed in seeds:
        for epochs in budgets:
            check_pair(plain[seed], by_budget[epochs][seed])
    targets = [plain[seed].accuracies[-1] for seed in seeds]
    curves = {e: [by_budget[e][seed].accuracies[-1] for seed in seeds] for e in budgets}
    most, least = budget / budgets[0], budget / budgets[-1]

    def find_epochs(chosen: Sequence[int]) -> float | None:
        target = statistics.fmean(targets[i] for i in chosen)
        curve = [(float(e), statistics.fmean(row[i] for i in chosen)) for e, row in curves.items()]
        return find_in_log(curve, target)

    def find_factor(chosen: Sequence[int]) -> float:
        epochs = find_epochs(chosen)
        if epochs is None:
            return -math.inf
        return math.inf if epochs == budgets[0] else budget / epochs

    def bound(factor: float) -> Reach:
        if math.isinf(factor):
            return Reach("at least", most) if factor > 0 else Reach("below", least)
        return Reach("equal", factor)

    everyone = range(len(seeds))
    low = high = None
    if len(seeds) > 1:
        low, high = map(bound, resample(len(seeds), find_factor, resamples))
    return SpeedUp(
        arm=arm,
        budget=budget,
        target=statistics.fmean(targets),
        budgets=tuple(budgets),
        seeds=tuple(seeds),
        reach=bound(find_factor(everyone)),
        epochs=find_epochs(everyone),
        low=low,
        high=high,
    )


def _list(budgets: Mapping[int, object]) -> str:
    return ", ".join(map(str, sorted(budgets))) or "no"
