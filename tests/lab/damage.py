"""Damage to files, drawn from a random generator: of their bytes, and of the fields in them."""

import copy
import datetime
import json
import re
import tomllib
from collections.abc import Callable
from random import Random
from typing import Any

import tomli_w

LONG = "name" * 100
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 7, 2**31, 2**63, 10**25, 10**400, 0.5, -0.0, 1e308, float("inf"),
    float("nan"), "", "text", "12", "../../above", "/etc/above", "a\0b", "a\nb", "\ud800", LONG, [], {},
    [[]], [None], [1, "a"], ["text", "text"], {"": {}}, {"a": {"b": 1}}, {"1": 1}, {"5": "text"},
)  # fmt: skip
"""Values of every type, and values that are too large, of another sign or not finite."""
NUMBERS = (b"0", b"-1", b"7", b"999", b"2147483648", b"99999999999999999999", b"1e400", b"nan",
           b"9" * 5000, b"", b"x")  # fmt: skip
BRACKETS = 20_000


def flip(content: bytes, draw: Random) -> bytes:
    """Flip some bits."""
    changed = bytearray(content)
    for _ in range(draw.choice((1, 1, 1, 2, 8, 64))):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def overwrite(content: bytes, draw: Random) -> bytes:
    """Overwrite some bytes in a row."""
    count = draw.choice((1, 2, 4, 8, 64))
    new = draw.choice((b"\0" * count, b"\xff" * count, b"\x7f" * count, draw.randbytes(count)))
    at = draw.randrange(len(content))
    return content[:at] + new + content[at + count :]


def cut_end(content: bytes, draw: Random) -> bytes:
    """Keep the beginning."""
    return content[: draw.randrange(len(content))]


def cut_middle(content: bytes, draw: Random) -> bytes:
    """Leave out some bytes in a row."""
    first, last = _draw_range(content, draw)
    return content[:first] + content[last:]


def swap(content: bytes, draw: Random) -> bytes:
    """Exchange two parts."""
    a, b, c, d = sorted(draw.randrange(len(content) + 1) for _ in range(4))
    return content[:a] + content[c:d] + content[b:c] + content[a:b] + content[d:]


def repeat(content: bytes, draw: Random) -> bytes:
    """Write a part twice."""
    first, last = _draw_range(content, draw)
    return content[:last] + content[first:]


def insert(content: bytes, draw: Random) -> bytes:
    """Insert random bytes."""
    at = draw.randrange(len(content) + 1)
    return content[:at] + draw.randbytes(draw.choice((1, 3, 100))) + content[at:]


def empty(content: bytes, draw: Random) -> bytes:
    """Leave nothing, or zeros."""
    return draw.choice((b"", bytes(len(content))))


def renumber(content: bytes, draw: Random) -> bytes:
    """Put another number in the place of one that is written in digits."""
    found = list(re.finditer(rb"\d+", content))
    if not found:
        return flip(content, draw)
    match = draw.choice(found)
    return content[: match.start()] + draw.choice(NUMBERS) + content[match.end() :]


def nest(content: bytes, draw: Random) -> bytes:
    """Insert very many brackets."""
    at = draw.randrange(len(content) + 1)
    bracket = draw.choice((b"[", b'{"a":', b"<a>"))
    return content[:at] + bracket * BRACKETS + content[at:]


BYTES = (flip, flip, overwrite, overwrite, cut_end, cut_middle, swap, repeat, insert, empty)
TEXT = (*BYTES, renumber, renumber, nest)


def damage_bytes(content: bytes, draw: Random, text: bool = False) -> bytes:
    """Return content that is damaged in one way; ``text`` has numbers and brackets too."""
    if not content:
        return draw.randbytes(20)
    return draw.choice(TEXT if text else BYTES)(content, draw)


def damage_field(tables: Any, draw: Random, values: tuple[Any, ...] = VALUES) -> Any:
    """Return nested tables in which one value is of another type, missing or under another key."""
    changed = copy.deepcopy(tables)
    holder, key = draw.choice(list(_list_places(changed)))
    kind = draw.random()
    if kind < 0.7:
        holder[key] = copy.deepcopy(draw.choice(values))
    elif kind < 0.85:
        del holder[key]
    elif isinstance(holder, dict):
        holder[draw.choice(("", "0", "5", "x", LONG, str(key) + " "))] = holder.pop(key)
    else:
        holder.insert(key, copy.deepcopy(holder[key]))
    return changed


def damage_json(content: bytes, draw: Random) -> bytes:
    """Damage one field of a JSON file."""
    return json.dumps(damage_field(json.loads(content), draw)).encode()


def damage_toml(content: bytes, draw: Random) -> bytes:
    """Damage one field of a TOML file."""
    known = [v for v in VALUES if _fits_toml(v)]
    known += [datetime.datetime(2026, 1, 1, 12), datetime.date(2026, 1, 1), 10**30]
    changed = damage_field(tomllib.loads(content.decode()), draw, tuple(known))
    return tomli_w.dumps(changed).encode()


def find_place(folder: Any, draw: Random, pattern: str) -> Any:
    """Return one of the files below a folder whose names fit the pattern."""
    return draw.choice(sorted(path for path in folder.rglob(pattern) if path.is_file()))


def _list_places(tables: Any) -> Any:
    """Yield every container below ``tables`` with each of its keys."""
    items = list(tables.items()) if isinstance(tables, dict) else list(enumerate(tables))
    for key, value in items:
        yield tables, key
        if isinstance(value, dict | list):
            yield from _list_places(value)


def _draw_range(content: bytes, draw: Random) -> tuple[int, int]:
    first = draw.randrange(len(content))
    longest = draw.choice((1, 8, 100, len(content)))
    return first, min(first + 1 + draw.randrange(longest), len(content))


def _fits_toml(value: Any) -> bool:
    try:
        tomllib.loads(tomli_w.dumps({"a": value}).encode().decode())
    except (TypeError, ValueError):
        return False
    return True


Damage = Callable[[bytes, Random], bytes]
