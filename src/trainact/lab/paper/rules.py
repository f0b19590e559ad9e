"""The rules that claims are checked by, under the names that claims.toml uses.

A rule takes the cases of a claim: pairs of values, printed or measured. It returns a number, to be
compared with the stated one, or whether the claim holds. A claim about all cases is refuted by one
of them, but confirmed only if no value is missing.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from statistics import fmean, linear_regression
from typing import Any, NamedTuple

import scipy.stats

from trainact.errors import TrActError
from trainact.lab.analysis.speedups import Reach, compute_speed_up
from trainact.lab.paper.tables import TABLE_OF_NETWORKS, list_networks
from trainact.lab.paper.values import (
    TRACT_ARMS,
    UNSTATED_BUDGET,
    UNSTATED_LAM,
    Key,
    MeasuredValue,
    Value,
    Values,
)
from trainact.lab.recipes.arms import BASELINE

__all__ = ["RULES", "AbsentValueError", "ClaimCase", "Finding", "list_cases"]

ALLOWANCE = 0.1
"""Points by which similar accuracies may differ if a deviation over seeds is unknown."""
SIGNIFICANT = 0.01
"""The p value of a very significant difference; the paper names no test."""
SPEED_UPS = (1.25, 4.0)
SPEED_UP_TOLERANCE = 0.05
"""The stated range, and its tolerance: the paper does not say how it finds speed-ups."""


class AbsentValueError(TrActError):
    """A claim needs a value that is missing."""


class Finding(NamedTuple):
    """The result of a rule: a number to compare with the stated one, or ``holds``."""

    number: float | None = None
    slack: float = 0.0  # how far rounding of the values may have moved the number
    holds: bool | None = None  # None if values are missing
    shown: str = ""  # the result as text
    detail: str = ""  # the reason, and further results


@dataclass(frozen=True)
class ClaimCase:
    """Two values to compare; reading one that is missing raises ``AbsentValueError``."""

    values: Values
    key: Key
    against: Key

    @property
    def one(self) -> Value:
        """Return the value of the arm."""
        return self._take(self.key)

    @property
    def other(self) -> Value:
        """Return the value that it is compared with."""
        return self._take(self.against)

    @property
    def is_known(self) -> bool:
        """Return whether both values exist."""
        try:
            return bool(self.one and self.other)
        except AbsentValueError:
            return False

    @property
    def gain(self) -> float:
        """Return the difference of the means."""
        return self.one.mean - self.other.mean

    def _take(self, key: Key) -> Value:
        for arm in TRACT_ARMS if key.arm == UNSTATED_LAM else (key.arm,):
            found = key._replace(arm=arm)
            if key.budget == UNSTATED_BUDGET:  # the largest
                same = [one for one in self.values if one._replace(budget=key.budget) == found]
                found = max(same, key=lambda one: one.budget, default=found)
            if found in self.values:
                return self.values[found]
        raise AbsentValueError(_describe(key))


Cases = Sequence[ClaimCase]


def list_cases(
    values: Values,
    recipe: str | list[str],
    arm: str | list[str] = UNSTATED_LAM,
    budget: int | list[int] = UNSTATED_BUDGET,
    metric: str | list[str] = "top1",
    against: str | list[str] = BASELINE,
    against_budget: int | None = None,
) -> Iterator[ClaimCase]:
    """Yield all combinations of the lists, for each network where the recipe has 36 of them.

    >>> [case.key.budget for case in list_cases({}, "cifar10-vit", budget=[100, 200])]
    [100, 200]
    """
    choices: tuple[Any, ...] = (recipe, budget, arm, metric, against)
    lists = (choice if isinstance(choice, list) else [choice] for choice in choices)
    for name, epochs, one, measure, other in product(*lists):
        for network in list_networks() if name == TABLE_OF_NETWORKS else [None]:
            key = Key(name, network, one, epochs, measure)
            longer = epochs if against_budget is None else against_budget
            yield ClaimCase(values, key, key._replace(arm=other, budget=longer))


def _describe(key: Key) -> str:
    where = key.recipe if key.network is None else f"{key.recipe} {key.network}"
    epochs = "" if key.budget == UNSTATED_BUDGET else f" at {key.budget} epochs"
    return f"{where} {key.arm}{epochs} ({key.metric})"


def _group(cases: Iterable[ClaimCase], field: str) -> dict[Any, list[ClaimCase]]:
    """Return the cases by a field of their key."""
    groups: dict[Any, list[ClaimCase]] = {}
    for case in cases:
        groups.setdefault(getattr(case.key, field), []).append(case)
    return groups


# all cases


def _allow(case: ClaimCase) -> float:
    """Return by how much similar values may differ: the sum of their deviations over seeds."""
    one, other = case.one.deviation, case.other.deviation
    return ALLOWANCE if one is None or other is None else one + other


def _compare(cases: Cases, relation: Callable[[ClaimCase], bool]) -> Finding:
    """Return whether the relation holds in all cases."""
    failing, absent = [], []
    for case in cases:
        try:
            if not relation(case):
                failing.append(_describe(case.key))
        except AbsentValueError as error:
            absent.append(str(error))
    detail = f"Not so: {', '.join(failing)}. " if failing else ""
    if absent:
        more = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
        detail += f"There are no values of {absent[0]}{more}."
    count = len(cases) - len(absent)
    shown = f"{count - len(failing)} of {count}" if count else ""
    holds = False if failing else None if absent else True
    return Finding(holds=holds, shown=shown, detail=detail.strip())


def _count_best(cases: Cases) -> Finding:
    """Return whether the arm is best in most cases."""
    best: dict[Key, bool] = {}
    for case in cases:
        best[case.key] = best.get(case.key, True) and case.gain >= 0
    wins = sum(best.values())
    return Finding(holds=2 * wins > len(best), shown=f"{wins} of {len(best)}")


def _count_similar(cases: Cases) -> Finding:
    """Return whether the values of most cases are similar; that most are "many" is our reading."""
    known = [case for case in cases if case.is_known]
    if not known:
        raise AbsentValueError(_describe(cases[0].key))
    similar = sum(abs(case.gain) <= _allow(case) for case in known)
    holds = 2 * similar > len(known) if len(known) == len(cases) else None
    return Finding(holds=holds, shown=f"{similar} of {len(known)}", detail=_count_absent(cases))


def _check_rise(cases: Cases) -> Finding:
    """Return whether the gain grows with the length of training, in most recipes.

    It grows if the slope of the gain over the logarithm of the epochs is positive.
    """
    slopes = {}
    groups = _group(cases, "recipe")
    for recipe, group in groups.items():
        if all(case.is_known for case in group):
            lengths = [math.log(case.key.budget) for case in group]
            slopes[recipe] = linear_regression(lengths, [case.gain for case in group]).slope
    if not slopes:
        raise AbsentValueError(f"any of {', '.join(groups)} at all budgets")
    rising = sum(slope > 0 for slope in slopes.values())
    shown = ", ".join(f"{recipe} {math.log(2) * slope:+.2f}" for recipe, slope in slopes.items())
    detail = f"Change of the gain, in points, if the epochs double: {shown}. {_count_absent(cases)}"
    holds = 2 * rising > len(slopes) if len(slopes) == len(groups) else None
    return Finding(holds=holds, shown=f"{rising} of {len(slopes)}", detail=detail.strip())


def _count_absent(cases: Cases) -> str:
    absent = [case for case in cases if not case.is_known]
    return f"{len(absent)} of {len(cases)} cases have no values." if absent else ""


# means


def _compute_mean_deviation(cases: Cases) -> Finding:
    deviations = [case.one.deviation for case in cases]
    known = [deviation for deviation in deviations if deviation is not None]
    if len(known) < len(cases):
        raise AbsentValueError(f"the deviation of {_describe(cases[deviations.index(None)].key)}")
    return Finding(fmean(known))


def _compute_difference(cases: Cases) -> Finding:
    """Return the mean gain in points; rounding matters for one case, not for a mean of many."""
    scale = 100.0 if cases[0].key.metric == "map" else 1.0
    slack = cases[0].one.half_step + cases[0].other.half_step if len(cases) == 1 else 0.0
    return Finding(scale * fmean(case.gain for case in cases), scale * slack)


def _compute_overhead(cases: Cases) -> Finding:
    """Return the increase in percent, of the first case that has values.

    Measured values of another case are of runs that may not have had the machine to themselves.
    """
    case = next((case for case in cases if case.is_known), cases[0])
    one, other = case.one, case.other
    slack = 100 * (one.half_step + other.half_step) / other.mean
    detail = ""
    if isinstance(one, MeasuredValue):
        shared = "" if case is cases[0] else ", whose runs may have shared the machine"
        detail = f"Measured by {case.key.recipe}{shared}."
    return Finding(100 * (one.mean / other.mean - 1), slack, detail=detail)


def _compute_share(cases: Cases) -> Finding:
    """Return the gain of the first case in percent of the gain of the second."""
    part, whole = cases
    if whole.gain <= 0:
        raise AbsentValueError(f"a gain of {_describe(whole.key)}")
    return Finding(100 * part.gain / whole.gain)


def _compare_means(cases: Cases) -> Finding:
    """Return whether the arm is better on average in every metric."""
    gains = [fmean(case.gain for case in group) for group in _group(cases, "metric").values()]
    return Finding(holds=min(gains) > 0, shown=" and ".join(f"{gain:+.3f}" for gain in gains))


def _find_best_mean(cases: Cases) -> Finding:
    """Return whether the arm has the best mean of all arms."""
    accuracies: dict[str, list[float]] = {}
    for case in cases:
        accuracies.setdefault(case.key.arm, []).append(case.one.mean)
        accuracies.setdefault(case.against.arm, []).append(case.other.mean)
    means = {arm: fmean(accuracies[arm]) for arm in sorted(accuracies)}
    best = max(means, key=means.__getitem__)
    shown = ", ".join(f"{arm} {mean:.2f}" for arm, mean in means.items())
    return Finding(holds=best == cases[0].key.arm, shown=best, detail=f"Means: {shown}.")


# networks


def _count_networks(cases: Cases, metrics: int) -> Finding:
    """Return how many networks are better in exactly this number of metrics."""
    better: dict[str, bool] = {}
    groups = _group(cases, "network")
    for network, group in groups.items():
        try:
            better[network] = sum(case.gain > 0 for case in group) == metrics
        except AbsentValueError:
            continue
    if not better:
        shown = ", ".join(_group(cases, "metric"))
        raise AbsentValueError(f"any network of {cases[0].key.recipe} ({shown})")
    count, lacking = sum(better.values()), len(groups) - len(better)
    if lacking:
        shown = f"{count} of {len(better)}"
        return Finding(shown=shown, detail=f"{lacking} of the networks have no values.")
    few = 2 * count < len(better)  # list the fewer ones
    listed = ", ".join(network for network, counted in better.items() if counted is few)
    title = "These" if few else "The others"
    return Finding(count, detail=f"{title} are {listed}." if listed else "")


def _find_best_network(cases: Cases) -> Finding:
    """Return whether in every metric the best value of all networks is the arm's."""
    holds, shown, details = True, [], []
    for metric, group in _group(cases, "metric").items():
        one, network = max((case.one.mean, case.key.network) for case in group)
        other, rival = max((case.other.mean, case.key.network) for case in group)
        holds = holds and one > other
        shown.append(f"{one:.2f}")
        details.append(f"{metric}: TrAct {one:.2f} ({network}), plain {other:.2f} ({rival}).")
    return Finding(holds=holds, shown=" and ".join(shown), detail=" ".join(details))


def _test_significance(cases: Cases) -> Finding:
    """Return whether a paired t test over the networks is significant in every metric."""
    holds, p_values, details = True, [], []
    for metric, group in _group(cases, "metric").items():
        t, p = map(float, scipy.stats.ttest_1samp([case.gain for case in group], 0.0))
        holds = holds and t > 0 and p < SIGNIFICANT
        p_values.append(p)
        details.append(f"{metric}: t = {t:.2f}, p = {p:.1g}.")
    details.append("The test, over networks, is our choice: the paper names none.")
    return Finding(holds=holds, shown=f"p at most {max(p_values):.1g}", detail=" ".join(details))


# speed-ups


def _find_reach(cases: Cases) -> Reach:
    """Return the speed-up of one recipe at the largest budget that its baseline has."""
    curve: list[tuple[float, float]] = []
    for epochs, group in sorted(_group(cases, "budget").items()):
        try:
            target, budget = fmean(case.other.mean for case in group), group[0].against.budget
        except AbsentValueError:
            continue
        curve.append((epochs, fmean(case.one.mean for case in group)))
    if len(curve) < 2:
        key = cases[0].against
        raise AbsentValueError(f"two lengths of {key.recipe} {key.arm} ({key.metric})")
    return compute_speed_up(curve, budget, target)


def _format(reach: Reach, digits: int) -> str:
    return f"{'' if reach.kind == 'equal' else reach.kind + ' '}{reach.factor:.{digits}f}"


def _compute_speed_up(cases: Cases) -> Finding:
    """Return the speed-up in the first metric."""
    found = {metric: _find_reach(group) for metric, group in _group(cases, "metric").items()}
    shown = " and ".join(f"{_format(reach, 3)} ({metric})" for metric, reach in found.items())
    return Finding(found[cases[0].key.metric].factor, detail=f"By interpolation {shown}.")


def _check_speed_ups(cases: Cases) -> Finding:
    """Return whether the speed-ups of all recipes span the stated range."""
    found: dict[str, Reach] = {}
    groups = _group(cases, "recipe")
    for recipe, group in groups.items():
        try:
            found[recipe] = _find_reach(group)
        except AbsentValueError:
            continue
    if not found:
        raise AbsentValueError("any experiment with several lengths of training")
    factors = [reach.factor for reach in found.values()]
    least, greatest = (factor - SPEED_UP_TOLERANCE for factor in SPEED_UPS)
    slow = min(factors) < least or any(reach.kind == "below" for reach in found.values())
    complete = len(found) == len(groups)
    detail = ", ".join(f"{recipe} {_format(reach, 2)}" for recipe, reach in found.items())
    return Finding(
        holds=False if slow else max(factors) >= greatest if complete else None,
        shown=f"{min(factors):.2f} to {max(factors):.2f}",
        detail=detail + ("." if complete else "; the other experiments have no values."),
    )


RULES: dict[str, Callable[[Cases], Finding]] = {
    "better": partial(_compare, relation=lambda case: case.gain > 0),
    "not worse": partial(_compare, relation=lambda case: case.gain >= -_allow(case)),
    "similar": partial(_compare, relation=lambda case: abs(case.gain) <= _allow(case)),
    "best in most cases": _count_best,
    "similar in most cases": _count_similar,
    "rises with length": _check_rise,
    "mean": lambda cases: Finding(fmean(case.one.mean for case in cases)),
    "mean deviation": _compute_mean_deviation,
    "difference": _compute_difference,
    "overhead": _compute_overhead,
    "share of a gain": _compute_share,
    "better on average": _compare_means,
    "best on average": _find_best_mean,
    "networks better in one metric": partial(_count_networks, metrics=1),
    "networks better in both metrics": partial(_count_networks, metrics=2),
    "best network": _find_best_network,
    "significant": _test_significance,
    "speed-up": _compute_speed_up,
    "speed-up range": _check_speed_ups,
}
