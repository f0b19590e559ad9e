"""Arms of a comparison: each is the same recipe with a few fields changed."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainact.errors import TrActValueError

__all__ = ["BASELINE", "Arm", "name_arm", "order_arms", "parse_arms"]

BASELINE = "plain"


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


def name_arm(arm: str) -> str:
    """Return the title of an arm.

    >>> name_arm("tract-0.1"), name_arm("lr-10"), name_arm("adamw")
    ('TrAct λ=0.1', 'plain, first-layer lr ×10', 'adamw')
    """
    number = r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)"
    if match := re.fullmatch(f"tract-{number}", arm):
        return f"TrAct λ={match[1]}"
    if match := re.fullmatch(f"lr-{number}", arm):
        return f"plain, first-layer lr ×{match[1]}"
    return arm


def order_arms(arms: Iterable[str]) -> list[str]:
    """Return each arm once: the baseline, then TrAct by λ, then the others.

    >>> order_arms(["lr-10", "tract-0.2", "plain", "tract-0.1", "lr-3", "plain"])
    ['plain', 'tract-0.1', 'tract-0.2', 'lr-3', 'lr-10']
    """

    def key(arm: str) -> tuple[int, str, float, str]:
        kind, _, number = arm.partition("-")
        size = float(number) if re.fullmatch(r"\d+(\.\d+)?(e[+-]?\d+)?", number) else 0.0
        group = 0 if arm == BASELINE else 1 if kind == "tract" else 2
        return group, kind, size, arm

    return sorted(set(arms), key=key)
