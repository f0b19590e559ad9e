"""Cases of a parametrised test of which only some are fast enough for ``make test``."""

from collections.abc import Iterable
from typing import Any

import pytest


def mark_slow(cases: Iterable[Any], fast: int = 1) -> list[Any]:
    """Return the cases; all but the first ``fast`` are marked slow."""
    cases = list(cases)
    slow = [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
        for case in cases[fast:]
    ]
    return [*cases[:fast], *slow]
