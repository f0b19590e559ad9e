"""Fields of frozen dataclasses from untyped tables: kinds are checked, unknown names refused."""

import dataclasses
import functools
import tomllib
import types
import typing
from typing import Any, Literal

from trainact.errors import TrActTypeError, TrActValueError
from trainact.lab.text import describe_unknown

name_nearest = describe_unknown  # for callers that have not moved to lab.text yet

__all__ = ["build_table", "name_nearest", "parse_value"]


def build_table(cls: type, table: dict[str, Any], where: str) -> Any:
    """Return ``cls`` with the fields that ``table`` names, each turned into its annotated kind.

    Raises:
        TrActValueError: an unknown key (the nearest is named) or a value that is not among choices.
        TrActTypeError: a value of the wrong kind.
    """
    if not isinstance(table, dict):
        raise TrActTypeError(f"{where} must hold keys and values; got {table!r}.")
    hints = _read_hints(cls)
    for key in table:
        if key not in hints:
            raise TrActValueError(describe_unknown(key, hints, f"key of {where}"))
    values = {key: _fit(value, hints[key], f"{where}, {key}") for key, value in table.items()}
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


@functools.cache
def _read_hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def parse_value(text: str) -> Any:
    """Read a value from the command line as TOML reads it; what is not TOML is plain text.

    >>> parse_value("0.1"), parse_value("[60, 120]"), parse_value("adam"), parse_value("1,2")
    (0.1, [60, 120], 'adam', '1,2')
    """
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _fit(value: Any, hint: Any, where: str) -> Any:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        if value not in inner:
            raise TrActValueError(
                f"{where} must be one of {', '.join(map(str, inner))}; got {value!r}."
            )
        return value
    if origin is tuple:
        items = value.split(",") if isinstance(value, str) else value
        if isinstance(items, int | float):
            items = [items]
        if not isinstance(items, list | tuple):
            raise TrActTypeError(f"{where} takes a list; got {value!r}.")
        read = (
            [parse_value(item) if inner[0] is not str else item for item in items]
            if isinstance(value, str)
            else items
        )
        return tuple(_fit(item, inner[0], where) for item in read)
    if origin is dict:
        if not isinstance(value, dict):
            raise TrActTypeError(f"{where} takes a table; got {value!r}.")
        return dict(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint is str and isinstance(value, int | float):
        return str(value)
    if isinstance(hint, types.UnionType):
        return value
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
        raise TrActTypeError(f"{where} takes {names.get(hint, hint)}; got {value!r}.")
    return value
