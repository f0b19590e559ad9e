"""What values say about a claim: a number, or whether it is so.

Every function takes the values, printed or measured, by key. What a claim needs and the values
lack raises ``AbsentValueError``; a claim about every one of many cases is refuted by one, but held
only by all.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from trainact.errors import TrActError
from trainact.lab.paper import Key

__all__ = [
    "AbsentValueError",
    "Finding",
    "Number",
    "Sought",
    "Value",
    "Values",
    "Verdict",
    "compare_every",
    "compute_difference",
    "compute_overhead",
    "compute_share_of_doubling",
    "equals",
    "exceeds",
    "reaches",
    "seek_plain",
    "seek_tract",
    "take",
]

TRACT_ARMS = ("tract-0.1", "tract-0.2", "tract-0.05", "tract")
"""Arms with TrAct, the recommended λ first; where a claim names none, the first at hand counts."""
LONG_ARMS = ("tract-0.2", "tract-0.1", "tract-0.05", "tract")
"""The same for the long training of ViT-S, for which the paper takes the greater λ."""
ALLOWANCE = 0.1
"""Points by which comparable accuracies may differ where no deviations are known."""


class Value(Protocol):
    """A mean over seeds."""

    @property
    def mean(self) -> float:
        """Return the mean."""

    @property
    def deviation(self) -> float | None:
        """Return the deviation over seeds, if it is known."""

    @property
    def half_step(self) -> float:
        """Return how far rounding may have moved the mean."""


Values = Mapping[Key, Value]


@dataclass(frozen=True)
class Number:
    """A number to hold against the stated one.

    Attributes:
        value: the number.
        slack: how far rounding of the values may have moved it.
        detail: what a reader may want to know besides.
    """

    value: float
    slack: float = 0.0
    detail: str = ""


@dataclass(frozen=True)
class Verdict:
    """Whether it is so; None where the values at hand leave it open."""

    holds: bool | None
    shown: str
    detail: str = ""


Finding = Number | Verdict


class AbsentValueError(TrActError):
    """A claim needs a value that is not at hand."""


class Sought(NamedTuple):
    """A value to look for: the first arm at hand, at a budget or at the greatest there is."""

    recipe: str
    arms: tuple[str, ...] = TRACT_ARMS
    budget: int | None = None
    metric: str = "top1"
    network: str | None = None

    def describe(self) -> str:
        """Return what names the value to a reader."""
        where = self.recipe if self.network is None else f"{self.recipe} {self.network}"
        arm = self.arms[0] if len(self.arms) == 1 else "tract"
        epochs = "" if self.budget is None else f" at {self.budget} epochs"
        return f"{where} {arm}{epochs} ({self.metric})"


def seek_plain(recipe: str, budget: int | None = None, metric: str = "top1") -> Sought:
    """Return what looks for a plain run."""
    return Sought(recipe, ("plain",), budget, metric)


def seek_tract(recipe: str, budget: int | None = None, metric: str = "top1") -> Sought:
    """Return what looks for a run with TrAct, with the λ that the paper has there."""
    long = recipe.startswith("transfer-") or (recipe == "deit3-vit-s" and budget == 800)
    return Sought(recipe, LONG_ARMS if long else TRACT_ARMS, budget, metric)


def take(values: Values, sought: Sought) -> Value:
    """Return a value.

    Raises:
        AbsentValueError: it is not at hand.
    """
    recipe, arms, budget, metric, network = sought
    for arm in arms:
        key = Key(recipe, network, arm, budget or 0, metric)
        if budget is None:
            there = [one for one in values if one._replace(budget=0) == key]
            key = max(there, key=lambda one: one.budget, default=key)
        if key in values:
            return values[key]
    raise AbsentValueError(sought.describe())


def exceeds(one: Value, other: Value) -> bool:
    """Return whether the first is greater."""
    return one.mean > other.mean


def reaches(one: Value, other: Value) -> bool:
    """Return whether the first is greater, or less by no more than both deviations together."""
    return one.mean >= other.mean - _allow(one, other)


def equals(one: Value, other: Value) -> bool:
    """Return whether the two differ by no more than both deviations together."""
    return reaches(one, other) and reaches(other, one)


def _allow(one: Value, other: Value) -> float:
    if one.deviation is None or other.deviation is None:
        return ALLOWANCE
    return one.deviation + other.deviation


def compare_every(
    values: Values,
    pairs: Iterable[tuple[Sought, Sought]],
    relation: Callable[[Value, Value], bool] = exceeds,
) -> Verdict:
    """Return whether all pairs are so related; one that is not refutes, one that lacks suspends."""
    against, absent, count = [], [], 0
    for one, other in pairs:
        try:
            related = relation(take(values, one), take(values, other))
        except AbsentValueError as error:
            absent.append(str(error))
            continue
        count += 1
        if not related:
            against.append(one.describe())
    sentences = [f"Not so: {', '.join(against)}."] if against else []
    if absent:
        rest = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
        sentences.append(f"There are no values of {absent[0]}{rest}.")
    holds = False if against else None if absent else True
    shown = f"{count - len(against)} of {count}" if count else ""
    return Verdict(holds, shown, " ".join(sentences))


def compute_difference(values: Values, one: Sought, other: Sought, scale: float = 1.0) -> Number:
    """Return how much greater one value is, times ``scale``."""
    first, second = take(values, one), take(values, other)
    slack = scale * (first.half_step + second.half_step)
    return Number(scale * (first.mean - second.mean), slack)


def compute_overhead(values: Values, recipe: str, budget: int, metric: str) -> Number:
    """Return by how many percent training takes longer with TrAct."""
    tract = take(values, seek_tract(recipe, budget, metric))
    plain = take(values, seek_plain(recipe, budget, metric))
    slack = 100 * (tract.half_step + plain.half_step) / plain.mean
    return Number(100 * (tract.mean / plain.mean - 1), slack)


def compute_share_of_doubling(values: Values, recipe: str, budget: int) -> Number:
    """Return TrAct's gain in percent of what plain training gains with twice the epochs."""
    plain = take(values, seek_plain(recipe, budget)).mean
    tract = take(values, seek_tract(recipe, budget)).mean
    longer = take(values, seek_plain(recipe, 2 * budget)).mean
    if longer <= plain:
        raise AbsentValueError(f"a gain of {recipe} from doubling its training")
    return Number(100 * (tract - plain) / (longer - plain))
