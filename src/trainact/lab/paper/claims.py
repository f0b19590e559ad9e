"""The claims of the paper's text, checked on its own tables or on measured values.

On the paper's own numbers a claim holds if they give the stated number at its printed precision;
where only rounding explains it, the result says so. On measured values a claim holds if they
confirm it: counts, gains and speed-ups are at least as large as stated, costs and deviations at
most, levels within a tolerance. What the paper shows only in figures cannot be checked on its own
numbers. claims.toml says where the paper's numbers contradict its text or depend on rounding.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from trainact.errors import TrActValueError
from trainact.lab.paper.rules import RULES, AbsentValueError, Finding, list_cases
from trainact.lab.paper.tables import read_toml_resource
from trainact.lab.paper.values import PrintedValue, Values
from trainact.lab.schema import build_table
from trainact.lab.text import describe_unknown

__all__ = ["Claim", "ClaimResult", "check_claims", "read_claim", "read_claims"]

EPSILON = 1e-9
"""Floating-point error of sums of decimal fractions."""


@dataclass(frozen=True)
class Claim:
    """A claim of the text, and how it is checked."""

    says: str  # in our words
    section: str
    stated: str  # the number as printed, or a word
    rule: str  # a name in RULES
    cases: tuple[dict[str, Any], ...]  # arguments of list_cases
    measured: Literal["verdict", "at least", "at most", "near"] = "verdict"
    tolerance: float = 0.0  # of "near"

    @property
    def decimals(self) -> int:
        """Return the stated digits after the point."""
        return len(self.stated.partition(".")[2])


@dataclass(frozen=True)
class ClaimResult:
    """A checked claim."""

    name: str
    stated: str  # as printed
    computed: str | None  # from the values, with one more digit; None if that is not possible
    holds: bool | None  # None if values are missing
    detail: str  # the reason, and further results


@cache
def read_claims() -> dict[str, Claim]:
    """Return all claims by name, in the order of the paper."""
    content = read_toml_resource("claims")
    return {name: build_table(Claim, table, f"claim {name}") for name, table in content.items()}


def read_claim(name: str) -> Claim:
    """Return a claim by its name.

    >>> read_claim("time-vit-b").stated
    '0.25'

    Raises:
        TrActValueError: there is no such claim; the message names the most similar ones.
    """
    if name not in read_claims():
        raise TrActValueError(describe_unknown(name, read_claims(), "claim of the paper"))
    return read_claims()[name]


def check_claims(values: Values, names: Sequence[str] | None = None) -> list[ClaimResult]:
    """Check all claims, or some by name, on ``printed_values()`` or ``measure_values`` of records.

    >>> from trainact.lab.paper.tables import printed_values
    >>> check_claims(printed_values(), ["cifar100-better-both"])[0].computed
    '31'

    Raises:
        TrActValueError: there is no such claim; the message names the most similar ones.
    """
    printed = all(isinstance(value, PrintedValue) for value in values.values())
    results = []
    for name in read_claims() if names is None else names:
        claim = read_claim(name)
        cases = [case for table in claim.cases for case in list_cases(values, **table)]
        try:
            finding = RULES[claim.rule](cases)
        except AbsentValueError as error:
            finding = Finding(detail=f"There are no values of {error}.")
        if finding.number is not None:
            finding = _judge(claim, finding, finding.number, printed)
        shown = finding.shown or None
        results.append(ClaimResult(name, claim.stated, shown, finding.holds, finding.detail))
    return results


def _judge(claim: Claim, finding: Finding, number: float, printed: bool) -> Finding:
    """Return the finding with its verdict: its number compared with the stated one."""
    detail, off = finding.detail, number - float(claim.stated)
    half_step = 0.5 * 10.0**-claim.decimals + EPSILON
    if printed:
        holds = abs(off) <= half_step + finding.slack
        if holds and abs(off) > half_step:
            low, high = number - finding.slack, number + finding.slack
            detail = f"With rounding, {low:.3f} to {high:.3f} is possible. {detail}".strip()
    elif claim.measured == "near":
        holds = abs(off) <= claim.tolerance + EPSILON
    else:
        holds = off >= -half_step if claim.measured == "at least" else off <= half_step
    digits = claim.decimals + 1 if claim.decimals or number % 1 else 0
    return finding._replace(holds=holds, shown=f"{number:.{digits}f}", detail=detail)
