"""The claims of the paper's text, held against values: its own tables or measured records.

On the paper's own numbers a claim holds if the stated number is what they come to, at the printed
precision; rounding of the numbers themselves is allowed for, and said where it is needed. On
measured values a claim holds if they bear it out: counts, gains and speed-ups are at least as great
as stated, costs and deviations at most, levels within a tolerance. What the paper shows in figures
only cannot be checked on its own numbers.

The paper's numbers contradict one sentence of it: that the reproduced vision transformers are above
what DeiT III reported is not so for ViT-B, 83.34 against 83.5. Three stated numbers lean on
rounding: TrAct's average deviation in top-5, 0.14 where the column's mean is just 0.145; the cost
of ViT-S, 0.08 % where the printed times give 0.075 %; the gain in detection, 1.1 where the printed
means differ by 1.2 points. And the greatest speed-up, stated as 4, is less than the text says of
CIFAR-10 with SGD, where 100 epochs of TrAct are above 800 plain ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from trainact.errors import TrActValueError
from trainact.lab.paper import PrintedValue
from trainact.lab.paper.findings import AbsentValueError, Finding, Number, Values
from trainact.lab.paper.statements import RULES
from trainact.lab.paper.tables import read_toml_resource
from trainact.lab.schema import build_table, name_nearest

__all__ = ["Claim", "ClaimResult", "check_claims", "list_claims", "read_claim"]

EPSILON = 1e-9
"""Sums of decimal fractions miss a tie by less than this."""


@dataclass(frozen=True)
class Claim:
    """Something the text says.

    Attributes:
        says: what, in our words.
        section: where.
        stated: the number as printed, or a word.
        measured: when a measured number bears the claim out.
        tolerance: of ``near``.
    """

    says: str
    section: str
    stated: str
    measured: Literal["verdict", "at least", "at most", "near"] = "verdict"
    tolerance: float = 0.0

    @property
    def half_step(self) -> float:
        """Return half of the last digit that is stated."""
        return 0.5 * 10.0 ** -len(self.stated.partition(".")[2])


@dataclass(frozen=True)
class ClaimResult:
    """A claim and what the values say about it.

    Attributes:
        name: of the claim.
        stated: as printed.
        computed: from the values, with one digit more; None where there is nothing to compute from.
        holds: None where values are absent that it takes.
        detail: why, and what a reader may want to know besides.
    """

    name: str
    stated: str
    computed: str | None
    holds: bool | None
    detail: str


def list_claims() -> list[str]:
    """Return the names of all claims, in the order of the paper."""
    return list(_read_claims())


def read_claim(name: str) -> Claim:
    """Return a claim by its name.

    >>> read_claim("time-vit-b").stated
    '0.25'

    Raises:
        TrActValueError: there is no such claim; the nearest names are given.
    """
    claims = _read_claims()
    if name not in claims:
        raise TrActValueError(name_nearest(name, claims, "claim of the paper"))
    return claims[name]


def check_claims(values: Values, names: Sequence[str] | None = None) -> list[ClaimResult]:
    """Return what the values say about the claims.

    >>> from trainact.lab.paper import printed_values
    >>> check_claims(printed_values(), ["cifar100-better-both"])[0].computed
    '31'

    Args:
        values: by key; ``printed_values()``, or ``measure_values`` of records.
        names: of the claims; all unless given.

    Raises:
        TrActValueError: there is no such claim; the nearest names are given.
    """
    printed = all(isinstance(value, PrintedValue) for value in values.values())
    results = []
    for name in list_claims() if names is None else names:
        claim = read_claim(name)
        try:
            finding = RULES[name](values)
        except AbsentValueError as error:
            detail = f"There are no values of {error}."
            results.append(ClaimResult(name, claim.stated, None, None, detail))
        else:
            results.append(_judge(name, claim, finding, printed))
    return results


def _judge(name: str, claim: Claim, finding: Finding, printed: bool) -> ClaimResult:
    if not isinstance(finding, Number):
        shown = finding.shown or None
        return ClaimResult(name, claim.stated, shown, finding.holds, finding.detail)
    stated, found, detail = float(claim.stated), finding.value, finding.detail
    off = found - stated
    if printed:
        holds = abs(off) <= claim.half_step + finding.slack + EPSILON
        if holds and abs(off) > claim.half_step + EPSILON:
            low, high = found - finding.slack, found + finding.slack
            detail = f"Rounded as the numbers are, {low:.3f} to {high:.3f} is possible. {detail}"
    elif claim.measured == "at least":
        holds = off >= -claim.half_step - EPSILON
    elif claim.measured == "at most":
        holds = off <= claim.half_step + EPSILON
    else:
        holds = abs(off) <= claim.tolerance + EPSILON
    digits = len(claim.stated.partition(".")[2])
    shown = f"{found:.{digits + 1 if digits or found % 1 else 0}f}"
    return ClaimResult(name, claim.stated, shown, holds, detail.strip())


@cache
def _read_claims() -> dict[str, Claim]:
    content = read_toml_resource("claims")
    return {name: build_table(Claim, table, f"claim {name}") for name, table in content.items()}
