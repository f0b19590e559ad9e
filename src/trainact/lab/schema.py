"""Typed dataclasses from untyped tables, and numbers from text."""

import dataclasses
import functools
import tomllib
import types
import typing
from collections.abc import Iterable
from typing import Any, Literal

from trainact.errors import TrActTypeError, TrActValueError
from trainact.lab.text import describe_unknown

__all__ = [
    "build_table",
    "check_known",
    "parse_positive_numbers",
    "parse_value",
    "parse_whole_numbers",
]


MOST_NUMBERS = 10_000
"""How many numbers a range such as ``0-4`` may have."""
MOST_DIGITS = 15
LARGEST = 2**63


def check_known(names: Iterable[str], known: Iterable[str], kind: str) -> None:
    """Raise TrActValueError for the first name that is not known, with similar names."""
    known = list(known)
    for name in names:
        if name not in known:
            raise TrActValueError(describe_unknown(name, known, kind))


_get_type_hints = functools.cache(typing.get_type_hints)


def build_table(cls: type, table: dict[str, Any], where: str) -> Any:
    """Return the dataclass ``cls`` with the values of ``table``, converted to the fields' types.

    Raises:
        TrActValueError: a key is unknown or missing, or a value is not one of the accepted ones.
        TrActTypeError: a value has the wrong type.
    """
    if not isinstance(table, dict):
        raise TrActTypeError(f"{where} must hold keys and values; got {table!r}.")
    hints = _get_type_hints(cls)
    check_known(table, hints, f"key of {where}")
    values = {key: _convert(value, hints[key], f"{where}, {key}") for key, value in table.items()}
    missing = [
        field.name
        for field in dataclasses.fields(cls)
        if field.name not in values
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise TrActValueError(f"{where} lacks {', '.join(missing)}.")
    return cls(**values)


def parse_value(text: str) -> Any:
    """Read a value from the command line as TOML; text that is not TOML stays text.

    >>> parse_value("0.1"), parse_value("[60, 120]"), parse_value("adam"), parse_value("1,2")
    (0.1, [60, 120], 'adam', '1,2')
    """
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def parse_whole_numbers(text: str, option: str) -> tuple[int, ...]:
    """Return the whole numbers of ``0-4`` or ``5,10,20``.

    >>> parse_whole_numbers("0-2,7", "--seeds")
    (0, 1, 2, 7)
    """
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not _is_number(first) or (dash and not _is_number(last)):
            raise TrActValueError(
                f"{option} takes whole numbers such as 0-4 or 5,10,20; got {text[:100]!r}."
            )
        added = range(int(first), int(last if dash else first) + 1)
        if len(numbers) + len(added) > MOST_NUMBERS:
            raise TrActValueError(
                f"{option} takes at most {MOST_NUMBERS} numbers; got {text[:100]!r}."
            )
        numbers += added
    if not numbers or len(set(numbers)) < len(numbers):
        raise TrActValueError(f"{option} {text!r} has no number, or a number twice.")
    return tuple(numbers)


def parse_positive_numbers(text: str, option: str) -> tuple[float, ...]:
    """Return the positive numbers of ``0.05,0.1``."""
    try:
        numbers = tuple(float(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or not all(0 < number < float("inf") for number in numbers):
        raise TrActValueError(
            f"{option} takes positive numbers, separated by commas; got {text!r}."
        )
    return numbers


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) <= MOST_DIGITS


def _convert(value: Any, hint: Any, where: str) -> Any:
    if hint is Any:
        return value
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        if value not in inner:
            raise TrActValueError(
                f"{where} must be one of {', '.join(map(str, inner))}; got {value!r}."
            )
        return value
    if origin is tuple:
        items = [value] if isinstance(value, int | float) else value
        if isinstance(value, str):
            items = value.split(",")
            items = items if inner[0] is str else [parse_value(item) for item in items]
        if not isinstance(items, list | tuple):
            raise TrActTypeError(f"{where} takes a list; got {value!r}.")
        return tuple(_convert(item, inner[0], where) for item in items)
    if origin is list:
        if not isinstance(value, list):
            raise TrActTypeError(f"{where} takes a list; got {value!r}.")
        return [_convert(item, inner[0], where) for item in value]
    if origin is dict:
        if not isinstance(value, dict):
            raise TrActTypeError(f"{where} takes a table; got {value!r}.")
        return {key: _convert(item, inner[1], f"{where}, {key}") for key, item in value.items()}
    if isinstance(hint, types.UnionType):
        kinds = [kind for kind in inner if kind is not types.NoneType]
        return _convert(value, kinds[0], where) if len(kinds) == 1 and value is not None else value
    if dataclasses.is_dataclass(hint):
        return build_table(typing.cast(type, hint), value, where)
    if isinstance(value, int) and abs(value) >= LARGEST:
        raise TrActValueError(f"{where} takes numbers of at most 64 bits.")
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint is str and isinstance(value, int | float):
        return str(value)
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
        raise TrActTypeError(f"{where} takes {names.get(hint, hint)}; got {value!r}.")
    return value
