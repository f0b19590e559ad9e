"""Recipe fields on the command line, by their dotted names."""

import argparse
from collections.abc import Sequence

from trainact.errors import TrActValueError

__all__ = [
    "find_data_field",
    "gather_settings",
    "parse_settings",
    "read_changes",
]


def parse_settings(settings: Sequence[str]) -> dict[str, str]:
    """Return fields and values from ``table.field=value``.

    >>> parse_settings(["optimizer.lr=0.1"])
    {'optimizer.lr': '0.1'}

    Raises:
        TrActValueError: one of them is not of that form.
    """
    changes = {}
    for setting in settings:
        field, equals, value = setting.partition("=")
        if not equals or "." not in field:
            raise TrActValueError(
                f"{setting!r} is no setting; write TABLE.FIELD=VALUE, for example optimizer.lr=0.1."
            )
        changes[field] = value
    return changes


def gather_settings(arguments: Sequence[str]) -> list[str]:
    """Return a command line with ``--table.field value`` written as ``table.field=value``.

    >>> gather_settings(["--data.folder", "here", "--seeds", "0-4", "--run.ema=0.9"])
    ['data.folder=here', '--seeds', '0-4', 'run.ema=0.9']

    Raises:
        TrActValueError: a field has no value.
    """
    gathered: list[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if name.startswith("--") and "." in name:
            if not equals:
                if not rest:
                    raise TrActValueError(f"{name} needs a value.")
                value = rest.pop(0)
            word = f"{name[2:]}={value}"
        gathered.append(word)
    return gathered


def read_changes(arguments: argparse.Namespace, data: str) -> dict[str, str]:
    """Return the fields that a command line sets, where a recipe's data set is called ``data``."""
    changes = parse_settings(arguments.settings)
    if arguments.data:
        changes[find_data_field(data)] = arguments.data
    return changes


def find_data_field(name: str) -> str:
    """Return the field that ``--data`` sets: the place of a named data set, or the data set.

    >>> find_data_field("imagenet"), find_data_field("voc2007"), find_data_field("photos")
    ('data.folder', 'data.folder', 'data.name')
    """
    from trainact.lab.data.sources import DETECTION, PLACED

    return "data.folder" if name in (*PLACED, DETECTION) else "data.name"
