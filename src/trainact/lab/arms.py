"""Arms of a comparison: each is the same recipe with a few fields changed."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from trainact.errors import TrActValueError

__all__ = ["Arm", "parse_arms"]


@dataclass(frozen=True)
class Arm:
    """A name and what differs from the recipe."""

    name: str
    changes: dict[str, Any] = field(default_factory=dict)


def parse_arms(names: Sequence[str], lams: Sequence[float]) -> list[Arm]:
    """Return the arms that the command line names.

    ``plain`` is TrAct off; ``tract`` is one arm for each λ; ``lr`` is plain with the first layer's
    learning rate times 1/λ, for each λ, and ``lr=F`` with that rate times F.

    >>> [arm.name for arm in parse_arms(["plain", "tract", "lr=3"], [0.1, 0.2])]
    ['plain', 'tract-0.1', 'tract-0.2', 'lr-3']

    Raises:
        TrActValueError: an arm is unknown or named twice.
    """
    arms = [arm for name in names for arm in _parse(name, lams)]
    twice = {arm.name for arm in arms if sum(other.name == arm.name for other in arms) > 1}
    if twice:
        raise TrActValueError(f"the arm {sorted(twice)[0]!r} is named twice.")
    if not arms:
        raise TrActValueError("there is no arm to run; name plain, tract, lr or lr=FACTOR.")
    return arms


def _parse(name: str, lams: Sequence[float]) -> list[Arm]:
    kind, equals, factor = name.partition("=")
    off = {"tract.enabled": False}
    if kind == "plain" and not equals:
        return [Arm("plain", off)]
    if kind == "tract" and not equals:
        return [Arm(f"tract-{lam:g}", {"tract.enabled": True, "tract.lam": lam}) for lam in lams]
    if kind == "lr":
        factors = [_read_factor(factor)] if equals else [1 / lam for lam in lams]
        return [Arm(f"lr-{f:g}", {**off, "optimizer.first_layer_lr": f}) for f in factors]
    raise TrActValueError(
        f"there is no arm {name!r}; the arms are plain, tract (one for each --lam), lr (plain, the "
        "first layer's learning rate times 1/λ) and lr=FACTOR."
    )


def _read_factor(text: str) -> float:
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not 0 < factor < float("inf"):
        raise TrActValueError(f"lr=FACTOR takes a positive number; got {text!r}.")
    return factor
