"""Fill the part of ``docs/lab.md`` on damaged files and sudden deaths.

The records in ``results/robustness`` are written by ``make test-thorough``.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainact.lab.environment import describe_hardware
from trainact.lab.report.grid import Grid, render_markdown

__all__ = ["write_robustness"]

NOT_RUN = "Not run yet: `make test-thorough`."
FILES = ("cases", "read", "refused", "faults")


def write_robustness(results: Path) -> dict[str, str]:
    """Return the text of the marked places, by their names."""
    files, deaths = (_read(results / "robustness" / f"{name}.json") for name in ("files", "deaths"))
    return {
        "robustness-files": _write_files(files) if files else NOT_RUN,
        "robustness-deaths": _write_deaths(deaths) if deaths else NOT_RUN,
    }


def _read(path: Path) -> dict[str, Any] | None:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def _write_files(record: Mapping[str, Any]) -> str:
    """Return how many damaged files of each kind were read and refused."""
    rows = [[row["kind"], *(row[key] for key in FILES)] for row in record["rows"]]
    return _render(("files", *FILES), [*rows, _sum(rows)], record)


def _write_deaths(record: Mapping[str, Any]) -> str:
    """Return how often each command was killed or had no disk, and which records were equal."""
    killed = [row for row in record["rows"] if "command" in row]
    rows = [[f"`{row['command']}`", row["kills"], row["runs"], row["equal"]] for row in killed]
    head = ("command", "kills", "runs", "equal records")
    table = render_markdown(_make_grid(head, [*rows, _sum(rows)]))
    disks = [(row["fault"], *(row[key] for key in ("cases", "refused", "equal")))
             for row in record["rows"] if "fault" in row]  # fmt: skip
    return f"{table}\n\n" + _render(("disk", "cases", "refused", "equal records"), disks, record)


def _sum(rows: Sequence[Sequence[Any]]) -> list[Any]:
    return ["all", *(sum(column) for column in list(zip(*rows, strict=True))[1:])]


def _render(head: Sequence[str], rows: Sequence[Sequence[Any]], record: Mapping[str, Any]) -> str:
    environment = record["environment"]
    state = "" if environment["clean"] else " with uncommitted changes"
    return (
        f"{render_markdown(_make_grid(head, rows))}\n\n"
        f"{environment['date'][:10]}, commit {str(environment['commit'])[:10]}{state}, Python "
        f"{environment['python']}, torch {environment['packages']['torch']}, "
        f"{describe_hardware(environment)}."
    )


def _make_grid(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> Grid:
    shown = tuple((str(row[0]), *(f"{number:,}" for number in row[1:])) for row in rows)
    return Grid("", tuple(head), shown)
