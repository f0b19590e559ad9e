"""Arms of a comparison: each is the same recipe with a few fields changed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from trainact.errors import TrActValueError
from trainact.options import DEFAULT_LAM

__all__ = [
    "BASELINE",
    "FIRST_LAYER_LR",
    "PLAIN",
    "Arm",
    "arm_of_recipe",
    "make_arm",
    "make_lr_arm",
    "parse_arms",
]

BASELINE = "plain"
TRACT, LAM, FIRST_LAYER_LR = "tract.enabled", "tract.lam", "optimizer.first_layer_lr"
Kind = Literal["plain", "tract", "lr", "other"]
"""A standard arm, or ``other`` for an arm that a recipe file defines."""


@dataclass(frozen=True)
class Arm:
    """An arm, identified by its name; a field that is None has the recipe's own value."""

    name: str  # in records, run folders and on the command line
    title: str = field(compare=False)  # on pages
    kind: Kind = field(compare=False)
    tract: bool | None = field(default=None, compare=False)
    lam: float | None = field(default=None, compare=False)  # λ in the paper
    first_layer_lr: float | None = field(default=None, compare=False)  # learning-rate multiplier
    others: dict[str, Any] = field(default_factory=dict, compare=False)  # by dotted name

    @property
    def changes(self) -> dict[str, Any]:
        """Return all fields that the arm sets, by dotted name."""
        typed = {TRACT: self.tract, LAM: self.lam, FIRST_LAYER_LR: self.first_layer_lr}
        return {key: value for key, value in typed.items() if value is not None} | self.others

    @property
    def sort_key(self) -> tuple[int, float, str]:
        """Order arms: plain, TrAct by λ, first-layer learning rates, then the others by name."""
        numbers = {"tract": self.lam, "lr": self.first_layer_lr}
        return get_args(Kind).index(self.kind), numbers.get(self.kind) or 0.0, self.name


def make_arm(name: str, changes: Mapping[str, Any]) -> Arm:
    """Return the arm that sets ``changes``, fields by dotted name.

    It is a standard arm if its name is the one that ``parse_arms`` gives to these fields.

    >>> make_arm("tract-0.1", {"tract.enabled": True, "tract.lam": 0.1}).title
    'TrAct λ=0.1'
    """
    others = dict(changes)
    tract, lam, factor = (others.pop(key, None) for key in (TRACT, LAM, FIRST_LAYER_LR))
    kind: Kind = "other"
    title = name
    if tract and lam is not None and name == f"tract-{lam:g}":
        kind, title = "tract", f"TrAct λ={lam:g}"
    elif tract and name == "tract":
        kind = "tract"
    elif tract is False and name == BASELINE:
        kind = "plain"
    elif tract is False and factor is not None and name == f"lr-{factor:g}":
        kind, title = "lr", f"plain, first-layer lr ×{factor:g}"
    return Arm(name, title, kind, tract, lam, factor, others)


PLAIN = make_arm(BASELINE, {TRACT: False})
"""Plain training, the arm that all others are compared with."""


def make_lr_arm(factor: float) -> Arm:
    """Return plain training with the first layer's learning rate multiplied by ``factor``."""
    return make_arm(f"lr-{factor:g}", {TRACT: False, FIRST_LAYER_LR: factor})


def arm_of_recipe(name: str, tables: Mapping[str, Any]) -> Arm:
    """Return the arm of a run from its name and its recipe's tables, as a record holds them.

    >>> arm_of_recipe("lr-10", {"tract": {"enabled": False}, "optimizer": {"first_layer_lr": 10}})
    Arm(name='lr-10', title='plain, first-layer lr ×10', kind='lr', tract=False, lam=0.1, \
first_layer_lr=10, others={})
    """
    tract, optimizer = tables.get("tract", {}), tables.get("optimizer", {})
    fields = {
        TRACT: tract.get("enabled", True),
        LAM: tract.get("lam", DEFAULT_LAM),
        FIRST_LAYER_LR: optimizer.get("first_layer_lr", 1.0),
    }
    return make_arm(name, fields)


def parse_arms(names: Sequence[str], lams: Sequence[float]) -> list[Arm]:
    """Return the arms that the command line or a recipe file names.

    ``plain`` is TrAct off; ``tract`` is one arm for each λ; ``lr`` is plain with the first layer's
    learning rate multiplied by 1/λ, for each λ; ``lr=F`` is plain with it multiplied by F.

    >>> [arm.name for arm in parse_arms(["plain", "tract", "lr=3"], [0.1, 0.2])]
    ['plain', 'tract-0.1', 'tract-0.2', 'lr-3']
    """
    arms = [arm for name in names for arm in _parse(name, lams)]
    known = [arm.name for arm in arms]
    for name in known:
        if known.count(name) > 1:
            raise TrActValueError(f"the arm {name!r} is named twice.")
    if not arms:
        raise TrActValueError("there is no arm to run; name plain, tract, lr or lr=FACTOR.")
    return arms


def _parse(name: str, lams: Sequence[float]) -> list[Arm]:
    kind, equals, factor = name.partition("=")
    if kind == BASELINE and not equals:
        return [PLAIN]
    if kind == "tract" and not equals:
        return [make_arm(f"tract-{lam:g}", {TRACT: True, LAM: lam}) for lam in lams]
    if kind == "lr":
        factors = [_read_factor(factor)] if equals else [1 / lam for lam in lams]
        return [make_lr_arm(one) for one in factors]
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
