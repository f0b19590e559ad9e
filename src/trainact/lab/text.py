"""Text for people: counts, durations and messages about unknown names."""

import difflib
import math
from collections.abc import Iterable
from typing import Any

__all__ = ["count", "count_epochs", "describe_unknown", "format_duration", "format_value"]

MAX_LISTED = 50
"""Known names that a message lists when none of them is similar to the unknown one."""


def count(number: int, noun: str, plural: str = "") -> str:
    """Return a number and its noun, in the plural unless the number is 1.

    >>> count(1, "epoch"), count(3, "epoch"), count(0, "class", "classes")
    ('1 epoch', '3 epochs', '0 classes')
    """
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def count_epochs(number: int) -> str:
    """Return ``1 epoch`` or ``2 epochs``."""
    return count(number, "epoch")


def format_duration(seconds: float | None) -> str:
    """Return a duration in seconds, minutes, hours or days; ``-`` for None.

    >>> format_duration(40), format_duration(170), format_duration(5400), format_duration(3e5)
    ('40 s', '2.8 min', '1.5 h', '3.5 days')
    """
    if seconds is None:
        return "-"
    units = (("s", 1, 100), ("min", 60, 5000), ("h", 3600, 172_800), ("days", 86_400, math.inf))
    unit, size = next((unit, size) for unit, size, limit in units if not seconds >= limit)
    value = seconds / size
    return f"{value:,.{0 if value >= 10 else 1}f} {unit}"


def describe_unknown(name: str, known: Iterable[str], kind: str) -> str:
    """Return the message for a name that does not exist, with the most similar names that do.

    Upper and lower case are not distinguished.

    >>> describe_unknown("momentun", ["momentum", "lr"], "key")
    "unknown key 'momentun'; did you mean 'momentum'?"
    """
    known = list(known)
    lower = {text.lower(): text for text in known}
    matches = difflib.get_close_matches(name.lower(), lower, n=3, cutoff=0.5)
    similar = [lower[match] for match in matches]
    if similar:
        return f"unknown {kind} {name!r}; did you mean {' or '.join(map(repr, similar))}?"
    if len(known) > MAX_LISTED:
        return f"unknown {kind} {name!r}; none of the {len(known)} known names is similar."
    return f"unknown {kind} {name!r}; there are {', '.join(known)}."


def format_value(value: Any) -> str:
    """Return the value of a recipe field, floats without trailing zeros.

    >>> format_value(0.10), format_value(3.0), format_value("sgd")
    ('0.1', '3', 'sgd')
    """
    return f"{value:g}" if isinstance(value, float) else str(value)
