"""Runs below folders of results.

An experiment's folder holds its runs as they were made, or collected, one record a line:

    NAME/runs/RUN/record.json           NAME/records.jsonl
    NAME/tuning/runs/RUN/record.json    NAME/tuning.jsonl
    NAME/tuning/tuning.json             NAME/tuning.json
    NAME/tuning/tuning-ARM.json         NAME/tuning-ARM.json

``tuning.json`` keeps the values that ``trainact tune`` tried and chose, and ``tuning-ARM.json``
those for one arm (``--arms``). Smoke runs, in ``NAME/smoke``, are never collected.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainact.errors import TrActError, TrActValueError
from trainact.lab.files import write_atomically
from trainact.lab.recipes.recipe import name_run, read_recipe
from trainact.lab.records.record import Record, parse_record, read_failure, read_record

__all__ = [
    "ARM_TUNING",
    "RECORDS",
    "TUNING",
    "TUNING_FOLDER",
    "TUNING_RECORDS",
    "FoundRun",
    "find_runs",
    "find_tunings",
    "list_record_files",
    "read_lines",
    "sort_key",
    "write_records",
]

RECORDS, TUNING_RECORDS, TUNING = "records.jsonl", "tuning.jsonl", "tuning.json"
ARM_TUNING = "tuning-{}.json"
"""File of the tuning of one arm, by its name."""
RUN_FOLDERS = ("runs", "smoke")
TUNING_FOLDER = "tuning"


@dataclass(frozen=True)
class FoundRun:
    """A run below a folder of results."""

    folder: Path  # of the experiment
    path: Path  # of its record, which an interrupted run does not have
    tuning: bool  # made by ``trainact tune``, with held-out images
    record: Record | None = None  # None if the run was interrupted or its record is damaged
    damage: str = ""  # what is wrong with the record

    @property
    def smoke(self) -> bool:
        """Return whether it is a smoke run."""
        return self.record["kind"] == "smoke" if self.record else self.path.parts[-3] == "smoke"

    def describe_interruption(self) -> str:
        """Return the name of a run without a record, and why it failed if that is known."""
        folder = self.path.parent
        try:
            name = name_run(read_recipe(folder / "recipe.toml"))
        except TrActError:
            name = "a run whose recipe cannot be read"
        if any(folder.glob(f"{self.path.name}.damaged-*")):
            name += ", whose record was damaged and set aside"
        failure = read_failure(folder)
        reason = f"; it failed: {failure['failure']}" if failure else ""
        return f"{'tuning, ' * self.tuning}{name} ({folder.name}){reason}"


def find_runs(roots: Sequence[Path]) -> list[FoundRun]:
    """Return all runs below folders, ended, interrupted or damaged, each file once."""
    runs = []
    for folder in sorted({p.parent for p in _find(roots, "record.json", "recipe.toml")}):
        path, inside = folder / "record.json", folder.parent.name in RUN_FOLDERS
        if inside or path.exists():
            home = folder.parent.parent if inside else folder.parent
            found = _attempt(read_record, path) if path.exists() else ()
            runs.append(FoundRun(_leave_tuning(home), path, home.name == TUNING_FOLDER, *found))
    for path in _find(roots, RECORDS, TUNING_RECORDS):
        runs += read_lines(path)
    return runs


def find_tunings(roots: Sequence[Path]) -> list[tuple[Path, Path]]:
    """Return the folder of the experiment and the path of each tuning's file below folders."""
    found = _find(roots, TUNING, ARM_TUNING.format("*"))
    return [(_leave_tuning(path.parent), path) for path in found]


def list_record_files(roots: Sequence[Path]) -> list[Path]:
    """Return the files below folders that hold records."""
    return _find(roots, "record.json", RECORDS, TUNING_RECORDS)


def read_lines(path: Path) -> list[FoundRun]:
    """Return the runs of a file of one record a line."""
    folder, tuning, runs = path.parent, path.name == TUNING_RECORDS, []
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError) as error:
        return [FoundRun(folder, path, tuning, damage=f"{path} cannot be read: {error}")]
    for number, line in enumerate(lines, start=1):
        if line:
            found = _attempt(parse_record, line, f"line {number} of {path}")
            runs.append(FoundRun(folder, path, tuning, *found))
    return runs


def write_records(path: Path, records: Iterable[Record]) -> None:
    """Write sealed records, one a line, in an order that keeps diffs small."""
    lines = [json.dumps(r, separators=(",", ":")) + "\n" for r in sorted(records, key=sort_key)]
    write_atomically(path, "".join(lines).encode())


def sort_key(record: Record) -> tuple[str, int, int, str]:
    """Return arm, budget, seed and identity of the recipe, which no two runs share."""
    return str(record["arm"]), int(record["budget"]), int(record["seed"]), record["recipe_id"]


def _find(roots: Sequence[Path], *names: str) -> list[Path]:
    for root in roots:
        if not root.is_dir():
            raise TrActValueError(f"{root} is not a folder; give a folder of runs or results.")
    return sorted({p.resolve() for root in roots for name in names for p in root.rglob(name)})


def _leave_tuning(folder: Path) -> Path:
    return folder.parent if folder.name == TUNING_FOLDER else folder


def _attempt(read: Callable[..., Record], *source: Any) -> tuple[Record | None, str]:
    """Return a record, or what is wrong with it."""
    try:
        return read(*source), ""
    except TrActValueError as error:
        return None, str(error)
