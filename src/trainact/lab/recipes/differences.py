"""The fields in which two recipes differ."""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

__all__ = ["FieldDifference", "compare_tables"]


class FieldDifference(NamedTuple):
    """A recipe field, by its dotted name, with its values in two recipes; None where absent."""

    field: str
    value: Any
    other: Any

    def is_in(self, names: Collection[str]) -> bool:
        """Return whether the field or its table is among the names."""
        return self.field in names or self.field.partition(".")[0] in names

    def describe(self, other: str) -> str:
        """Return the difference as text, where ``other`` names the second recipe.

        >>> FieldDifference("optimizer.lr", 0.1, 0.2).describe("plain")
        'optimizer.lr 0.1 (plain: 0.2)'
        """
        return f"{self.field} {self.value} ({other}: {self.other})"


def compare_tables(
    one: Mapping[str, Any], other: Mapping[str, Any], free: Collection[str]
) -> list[FieldDifference]:
    """Return the fields in which the tables of two recipes differ, but not those in ``free``.

    >>> compare_tables({"run": {"seed": 1, "ema": 0.5}}, {"run": {"seed": 2}}, {"run.seed"})
    [FieldDifference(field='run.ema', value=0.5, other=None)]
    """
    mine, yours = _flatten(one), _flatten(other)
    return [
        FieldDifference(name, mine.get(name), yours.get(name))
        for name in sorted((mine.keys() | yours.keys()) - set(free))
        if mine.get(name) != yours.get(name)
    ]


def _flatten(tables: Mapping[str, Any], place: str = "") -> dict[str, Any]:
    """Return the values of nested tables by dotted name."""
    flat: dict[str, Any] = {}
    for key, value in tables.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{place}{key}.")
        else:
            flat[f"{place}{key}"] = value
    return flat
