"""Arms of a comparison: each is the same recipe with a few fields changed."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from trainact.defaults import DEFAULT_LAM
from trainact.errors import TrActValueError
from trainact.lab.recipes.parts import (
    FIRST_LAYER_LR,
    LAM,
    PARTS,
    PER_LAM,
    TRACT,
    Part,
    add_implied,
    check_parts,
    find_parts,
    make_rate_part,
    rank,
    read_part,
    split_name,
)
from trainact.lab.recipes.recipe import TABLES

__all__ = [
    "BASELINE",
    "PLAIN",
    "Arm",
    "arm_of_recipe",
    "combine",
    "make_arm",
    "make_lr_arm",
    "parse_arms",
]

BASELINE = "plain"
Kind = Literal["plain", "tract", "lr", "rival", "other"]
"""Plain, TrAct alone, a first-layer learning rate alone, any other combination of parts, or an arm
that a recipe file defines."""
FIELDS = {
    "tract": TRACT,
    "lam": LAM,
    "center": "tract.center",
    "relative": "tract.relative",
    "start": "model.start",
    "frozen": "optimizer.first_layer_frozen",
    "rule": "optimizer.first_layer_rule",
    "stem": "optimizer.first_layer_name",
    "body": "optimizer.body",
    "first_layer_lr": FIRST_LAYER_LR,
}
"""Attributes of an arm, and the fields that they set; they include those of all parts."""
DEFAULTS: dict[str, Any] = {
    dotted: getattr(TABLES[table](), key)
    for dotted in FIELDS.values()
    for table, _, key in [dotted.partition(".")]
}


@dataclass(frozen=True)
class Arm:
    """An arm, identified by its name; a field that is None has the recipe's own value."""

    name: str  # in records, run folders and on the command line
    title: str = field(compare=False)  # on pages
    kind: Kind = field(compare=False)
    parts: tuple[Part, ...] = field(default=(), compare=False)  # none for the kind ``other``
    tract: bool | None = field(default=None, compare=False)
    lam: float | None = field(default=None, compare=False)  # λ in the paper
    center: bool | None = field(default=None, compare=False)
    relative: bool | None = field(default=None, compare=False)
    start: str | None = field(default=None, compare=False)  # of the first layer
    frozen: bool | None = field(default=None, compare=False)
    rule: str | None = field(default=None, compare=False)  # for the first layer's gradient
    stem: str | None = field(default=None, compare=False)  # the first layer's optimizer
    body: str | None = field(default=None, compare=False)  # optimizer of hidden matrices
    first_layer_lr: float | None = field(default=None, compare=False)  # learning-rate multiplier
    others: dict[str, Any] = field(default_factory=dict, compare=False)  # by dotted name

    @property
    def changes(self) -> dict[str, Any]:
        """Return all fields that the arm sets, by dotted name."""
        typed = {dotted: getattr(self, name) for name, dotted in FIELDS.items()}
        return {key: value for key, value in typed.items() if value is not None} | self.others

    def without_changes(self) -> "Arm":
        """Return the arm for a recipe that has its fields already."""
        unset: dict[str, Any] = dict.fromkeys(FIELDS)
        return dataclasses.replace(self, **unset, others={})

    @property
    def claims(self) -> set[str]:
        """Return the fields, by dotted name, that the arm's name says it sets."""
        return {TRACT, *(dotted for part in self.parts for dotted in part.changes)}

    @property
    def sort_key(self) -> tuple[int, tuple[int, ...], tuple[float, ...], str]:
        """Order arms: plain, TrAct by λ, first-layer learning rates, rivals, the others by name."""
        families = {part.family for part in self.parts}
        lam = self.lam if "tract" in families else None
        factor = self.first_layer_lr if "lr" in families else None
        ranks = tuple(map(rank, self.parts)) if self.kind == "rival" else ()
        numbers = (lam or 0.0, factor or 0.0)
        return get_args(Kind).index(self.kind), ranks, numbers, self.name


def make_arm(name: str, changes: Mapping[str, Any]) -> Arm:
    """Return the arm that sets ``changes``, fields by dotted name.

    It is a standard arm if its name is made of parts and the changes are what they set.

    >>> make_arm("tract-0.1", {"tract.enabled": True, "tract.lam": 0.1}).title
    'TrAct λ=0.1'
    """
    others = dict(changes)
    typed: dict[str, Any] = {key: others.pop(dotted, None) for key, dotted in FIELDS.items()}
    parts = tuple(find_parts(name, changes))
    slots = [part.slot for part in parts]
    kinds: dict[str, Kind] = {"plain": "plain", "lam": "tract", "rate": "lr"}
    kind: Kind = "other"
    if parts:
        kind = kinds.get(slots[0], "rival") if len(slots) == 1 else "rival"
    title = ", ".join(part.title for part in parts) or name
    if kind == "lr":
        title = f"plain, {title}"
    return Arm(name, title, kind, parts, **typed, others=others)


PLAIN = make_arm(BASELINE, {TRACT: False})
"""Plain training, the arm that all others are compared with."""


def combine(parts: Sequence[Part]) -> Arm:
    """Return the arm of some parts, given in any order; without a part of TrAct it is off.

    >>> combine([read_part("tract-0.1", 0.1), read_part("eigen", 0.1)]).name
    'eigen+tract-0.1'

    Raises:
        TrActValueError: two parts contradict each other.
    """
    check_parts(parts)
    implied = add_implied(parts)
    changes: dict[str, Any] = {TRACT: False}
    for part in implied:
        changes |= part.changes
    variant = any(part.slot == "variant" for part in implied)
    unnamed = "lam" if variant and changes[LAM] == DEFAULT_LAM else ""
    name = "+".join(part.name for part in implied if part.slot != unnamed)
    return make_arm(name, changes)


def make_lr_arm(factor: float, arm: Arm = PLAIN) -> Arm:
    """Return an arm with the first layer's learning rate multiplied by ``factor``.

    >>> make_lr_arm(3).name
    'lr-3'

    Raises:
        TrActValueError: the arm is frozen, or has such a factor already.
    """
    return combine([*(part for part in arm.parts if part.slot != "plain"), make_rate_part(factor)])


def arm_of_recipe(name: str, tables: Mapping[str, Any]) -> Arm:
    """Return the arm of a run from its name and its recipe's tables, as a record holds them.

    Fields that an older record lacks have their defaults.

    >>> tables = {"tract": {"enabled": False}, "optimizer": {"first_layer_lr": 10}}
    >>> arm = arm_of_recipe("lr-10", tables)
    >>> arm.kind, arm.title, arm.start
    ('lr', 'plain, first-layer lr ×10', 'default')
    """
    fields = {}
    for dotted in FIELDS.values():
        table, _, key = dotted.partition(".")
        fields[dotted] = tables.get(table, {}).get(key, DEFAULTS[dotted])
    return make_arm(name, fields)


def parse_arms(
    names: Sequence[str], lams: Sequence[float], others: Sequence[str] = ()
) -> list[Arm]:
    """Return the arms that the command line or a recipe file names, made of `parts.PARTS`.

    ``tract`` gives one arm for each λ; so does ``lr``, with the first layer's learning rate
    multiplied by 1/λ. ``lr=F`` is ``lr-F``. A message about an unknown name also suggests
    ``others``.

    >>> [arm.name for arm in parse_arms(["plain", "tract", "lr=3"], [0.1, 0.2])]
    ['plain', 'tract-0.1', 'tract-0.2', 'lr-3']
    >>> [arm.name for arm in parse_arms(["tract+eigen", "frozen+eigen"], [0.1])]
    ['eigen+tract-0.1', 'eigen+frozen']

    Raises:
        TrActValueError: there is no such part, parts contradict each other, or an arm comes twice.
    """
    arms = [arm for name in names for arm in _parse(name, lams, others)]
    known = [arm.name for arm in arms]
    for name in known:
        if known.count(name) > 1:
            raise TrActValueError(f"the arm {name!r} is named twice.")
    if not arms:
        shown = ", ".join(part.name for part in PARTS)
        raise TrActValueError(f"there is no arm to run; name one or more of {shown}.")
    return arms


def _parse(name: str, lams: Sequence[float], others: Sequence[str]) -> list[Arm]:
    words = split_name(name)
    repeated = lams if set(words) & set(PER_LAM) else [DEFAULT_LAM]
    return [combine([read_part(word, lam, others) for word in words]) for lam in repeated]
