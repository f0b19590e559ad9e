"""The parts that arms are made of: the fields that each sets, its title and what it does.

``eigen+tract-0.1`` has two parts. Each part fills one slot; an arm has at most one part in a slot.
"""

import dataclasses
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from trainact.defaults import DEFAULT_LAM
from trainact.errors import TrActValueError
from trainact.lab.text import describe_unknown

__all__ = [
    *("FIRST_LAYER_LR", "LAM", "PARTS", "PER_LAM", "TRACT"),
    *("Part", "add_implied", "check_parts", "find_parts", "make_lam_part"),
    *("make_rate_part", "rank", "read_part", "split_name"),
]

TRACT, LAM = "tract.enabled", "tract.lam"
START, FROZEN = "model.start", "optimizer.first_layer_frozen"
RULE, STEM = "optimizer.first_layer_rule", "optimizer.first_layer_name"
FIRST_LAYER_LR = "optimizer.first_layer_lr"

Slot = Literal["plain", "body", "start", "lam", "variant", "rule", "optimizer", "frozen", "rate"]
"""What a part decides; the parts of an arm are named in this order."""
SLOTS: tuple[Slot, ...] = get_args(Slot)
PER_LAM = ("tract", "lr")
"""Parts without a number: one arm for each λ."""


@dataclass(frozen=True)
class Part:
    """One part of an arm."""

    name: str  # in the names of arms
    slot: Slot
    changes: Mapping[str, Any]  # fields of the recipe, by dotted name
    title: str  # on pages
    text: str  # what it does, for the documentation
    family: str = ""  # of a part with a number: its name without the number


PARTS: tuple[Part, ...] = (
    Part("plain", "plain", {TRACT: False}, "plain", "plain training"),
    Part(
        "muon", "body", {"optimizer.body": "muon"}, "Muon body",
        "Muon trains the hidden matrices and convolutions",
    ),
    Part(
        "eigen", "start", {START: "eigen"}, "whitened start",
        "the first layer starts with the eigenvectors of its inputs' second moment, whitened",
    ),
    Part(
        "random", "start", {START: "random"}, "random whitened start",
        "the first layer starts with its random weights times (S + 0.1 ē I)^(-1/2), "
        "ē the mean eigenvalue of S",
    ),
    Part(
        "scaled", "start", {START: "scaled"}, "scaled start",
        "the first layer starts with its random weights, scaled to outputs of unit variance",
    ),
    Part(
        "tract", "lam", {TRACT: True}, "tract",
        f"TrAct; `tract-{DEFAULT_LAM:g}` has λ = {DEFAULT_LAM:g}, `tract` is one arm for each λ",
    ),
    Part(
        "tract-centered", "variant", {TRACT: True, "tract.center": True}, "centered",
        "TrAct with the covariance of the inputs, jointly with the bias",
    ),
    Part(
        "tract-relative", "variant", {TRACT: True, "tract.relative": True}, "relative λ",
        "TrAct with λ times the mean eigenvalue",
    ),
    Part(
        "tract-centered-relative", "variant",
        {TRACT: True, "tract.center": True, "tract.relative": True}, "centered, relative λ",
        "TrAct with the covariance and a relative λ",
    ),
    Part(
        "tract-norm-preserving", "rule",
        {TRACT: False, LAM: DEFAULT_LAM, RULE: "norm-preserving"},
        f"norm-preserving TrAct λ={DEFAULT_LAM:g}",
        "TrAct's gradient, scaled to the norm of the plain gradient",
    ),
    Part(
        "mac", "rule", {TRACT: False, RULE: "mac"}, "MAC",
        "the gradients of the first layer's weight and bias times the inverse second moment of the "
        "training images, which is measured once",
    ),
    Part(
        "centralised", "rule", {TRACT: False, RULE: "centralised"}, "centralised gradient",
        "the first layer's gradient minus its mean over each filter's inputs",
    ),
    Part(
        "foof", "optimizer", {TRACT: False, STEM: "foof"}, "FOOF stem",
        "FOOF trains the first layer: momentum, then the inverse of an average second moment",
    ),
    Part(
        "asgo", "optimizer", {TRACT: False, STEM: "asgo"}, "ASGO stem",
        "ASGO (one-sided Shampoo) trains the first layer: momentum over the root of an average GᵀG",
    ),
    Part(
        "muon-stem", "optimizer", {STEM: "muon"}, "Muon stem",
        "Muon trains the first layer: momentum with its singular values brought near 1",
    ),
    Part(
        "frozen", "frozen", {TRACT: False, FROZEN: True}, "frozen",
        "the first layer's weight stays as it starts; its bias is trained",
    ),
    Part(
        "lr", "rate", {}, "first-layer lr",
        "`lr-0.1`: the first layer's learning rate times 0.1; `lr`: times 1/λ, for each λ",
    ),
)  # fmt: skip
"""All parts, in the order of their slots. ``tract`` and ``lr`` are families of parts with a
number: see `make_lam_part` and `make_rate_part`."""

BY_NAME = {part.name: part for part in PARTS}
TRACT_SLOTS = ("lam", "variant")
UNTRAINED = (*TRACT_SLOTS, "rule", "optimizer", "rate")
"""Slots that change how the first layer's weight is trained."""


def make_lam_part(lam: float) -> Part:
    """Return TrAct with λ.

    >>> make_lam_part(0.1).name
    'tract-0.1'
    """
    name, title = f"tract-{lam:g}", f"TrAct λ={lam:g}"
    return dataclasses.replace(
        BY_NAME["tract"], name=name, title=title, changes={TRACT: True, LAM: lam}, family="tract"
    )


def make_rate_part(factor: float) -> Part:
    """Return the first layer's learning rate times ``factor``."""
    name, title = f"lr-{factor:g}", f"first-layer lr ×{factor:g}"
    return dataclasses.replace(
        BY_NAME["lr"], name=name, title=title, changes={FIRST_LAYER_LR: factor}, family="lr"
    )


def split_name(name: str) -> list[str]:
    """Return the names of an arm's parts.

    >>> split_name("eigen+lr-1e+06")
    ['eigen', 'lr-1e+06']
    """
    return re.split(r"\+(?!\d)", name)


def read_part(word: str, lam: float = DEFAULT_LAM, others: Sequence[str] = ()) -> Part:
    """Return the part that a word of the command line or of a recipe file names.

    ``tract`` has the given λ, ``lr`` the factor 1/λ. ``others`` are further names to suggest.

    Raises:
        TrActValueError: there is no such part, or its number is not positive.
    """
    if word == "tract":
        return make_lam_part(lam)
    if word == "lr":
        return make_rate_part(1 / lam)
    if word in BY_NAME:
        return BY_NAME[word]
    family, _, number = word.replace("=", "-", 1).partition("-")
    if family == "lr":
        return make_rate_part(_read_number(number, word))
    if family == "tract" and "=" not in word and _is_number(number):
        return make_lam_part(_read_number(number, word))
    known = dict.fromkeys([*others, *BY_NAME, f"tract-{DEFAULT_LAM:g}", "lr-0.1"])
    raise TrActValueError(
        f"{describe_unknown(word, known, 'arm')} The parts of an arm are {', '.join(BY_NAME)}; "
        "they combine with +, as in eigen+tract-0.1."
    )


def check_parts(parts: Sequence[Part]) -> None:
    """Check that the parts of an arm do not contradict each other.

    Raises:
        TrActValueError: two parts fill the same slot, or one leaves the other without effect.
    """
    for one, other in itertools.combinations(parts, 2):
        reason = _find_contradiction(one, other)
        if reason:
            raise TrActValueError(
                f"{one.name} and {other.name} cannot be parts of one arm: {reason}."
            )


def add_implied(parts: Sequence[Part]) -> list[Part]:
    """Return the parts in order, with the default λ if a variant of TrAct has none."""
    implied = list(parts)
    slots = {part.slot for part in parts}
    if "variant" in slots and "lam" not in slots:
        implied.append(make_lam_part(DEFAULT_LAM))
    return sorted(implied, key=lambda part: SLOTS.index(part.slot))


def find_parts(name: str, fields: Mapping[str, Any]) -> list[Part]:
    """Return the parts of the arm with this name, if the recipe's fields are what it says.

    Every part must set the fields to the values they have, and TrAct must be on if and only if a
    part turns it on. Otherwise, or for any other name, the list is empty.

    >>> fields = {"tract.enabled": True, "tract.lam": 0.1, "model.start": "eigen"}
    >>> [part.title for part in find_parts("eigen+tract-0.1", fields)]
    ['whitened start', 'TrAct λ=0.1']
    >>> find_parts("eigen+tract-0.2", fields)
    []
    """
    lam, factor = fields.get(LAM), fields.get(FIRST_LAYER_LR)
    numbered = [] if lam is None else [make_lam_part(lam)]
    numbered += [] if factor is None else [make_rate_part(factor)]
    there = {part.name: part for part in (*PARTS, *numbered) if part.name != "lr"}
    words = split_name(name)
    if any(word not in there for word in words):
        return []
    parts = add_implied([there[word] for word in words])
    wanted = {key: value for part in parts for key, value in part.changes.items()}
    wanted[TRACT] = _has_tract(parts)
    holds = all(key in fields and fields[key] == value for key, value in wanted.items())
    return parts if holds else []


def rank(part: Part) -> int:
    """Return the position of a part in the table."""
    return list(BY_NAME).index(part.family or part.name)


def _has_tract(parts: Sequence[Part]) -> bool:
    return any(part.slot in TRACT_SLOTS for part in parts)


def _find_contradiction(one: Part, other: Part) -> str:
    """Return why two parts exclude each other; empty if they do not."""
    slots = {one.slot, other.slot}
    if "plain" in slots:
        return "plain is an arm by itself"
    if one.slot == other.slot:
        return "both set the same thing"
    if "frozen" in slots and slots & set(UNTRAINED):
        return "a frozen weight is not trained"
    both = [part.changes.get(TRACT) for part in (one, other)]
    if set(both) == {True, False} or slots == {"rule", "optimizer"}:
        return "each computes the first layer's gradient in its own way"
    return ""


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _read_number(text: str, word: str) -> float:
    number = float(text) if _is_number(text) else 0.0
    if not 0 < number < math.inf:
        raise TrActValueError(
            f"{word.removesuffix(text)}NUMBER takes a positive number; got {text!r}."
        )
    return number
