"""Fill the part of ``docs/lab.md`` on damaged files and sudden deaths.

The records in ``results/robustness`` are written by ``make test-thorough``.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainact.lab.environment import describe_hardware
from trainact.lab.report.grid import Grid, render_markdown

__all__ = ["write_robustness"]

NOT_RUN = "Not run yet: `make test-thorough`."
FILES = ("kind", "cases", "read", "refused", "faults")
KILLS = ("command", "kills", "runs", "equal")
DISKS = ("disk", "cases", "refused", "equal")


def write_robustness(results: Path) -> dict[str, str]:
    """Return the text of the marked places, by their names."""
    names = {"files": FILES, "kills": KILLS, "disks": DISKS}
    return {f"robustness-{name}": _write(results, name, keys) for name, keys in names.items()}


def _write(results: Path, name: str, keys: tuple[str, ...]) -> str:
    """Return the table of a campaign, with a sum of all rows, and its environment."""
    path = results / "robustness" / f"{name}.json"
    if not path.exists():
        return NOT_RUN
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    rows = [[row[key] for key in keys] for row in record["rows"]]
    shown = tuple(
        (str(row[0]), *(f"{number:,}" for number in row[1:])) for row in [*rows, _sum(rows)]
    )
    environment = record["environment"]
    commits = {str(row.get("commit", environment["commit"]))[:10] for row in record["rows"]}
    state = "" if environment["clean"] else " with uncommitted changes"
    return (
        f"{render_markdown(Grid('', keys, shown))}\n\n"
        f"{environment['date'][:10]}, commit {' and '.join(sorted(commits))}{state}, Python "
        f"{environment['python']}, torch {environment['packages']['torch']}, "
        f"{describe_hardware(environment)}."
    )


def _sum(rows: Sequence[Sequence[Any]]) -> list[Any]:
    return ["all", *(sum(column) for column in list(zip(*rows, strict=True))[1:])]
