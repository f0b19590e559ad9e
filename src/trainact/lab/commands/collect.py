"""``trainact collect``: gather the records of runs in files of one record a line."""

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from trainact.errors import TrActValueError
from trainact.lab.analysis.studies import read_full_tuning, separate_damaged
from trainact.lab.files import write_atomically
from trainact.lab.records.record import Record, hide_data_folder
from trainact.lab.records.results import (
    RECORDS,
    TUNING,
    TUNING_RECORDS,
    find_runs,
    find_tunings,
    read_lines,
    sort_key,
    write_records,
)
from trainact.lab.text import count, count_epochs

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    add = parser.add_argument
    add("runs", nargs="+", type=Path, metavar="RUNS", help="folders with runs below them")
    add("--into", type=Path, required=True, metavar="FOLDER", help=f"folder of {RECORDS}, "
        f"{TUNING_RECORDS} and {TUNING}; folders below RUNS keep their names in it")  # fmt: skip
    add("--replace", action="store_true", help="replace earlier records of the same runs")


def run(arguments: argparse.Namespace) -> int:
    """Check everything, then write the records; 1 if a damaged file was left out."""
    found = _gather(arguments.runs, arguments.into)
    merges = [_merge(path, rows, arguments.replace) for path, rows in found.records.items()]
    for path, content in found.tunings.items():
        if path.exists() and path.read_bytes() != content and not arguments.replace:
            raise TrActValueError(f"{path} is not the one below RUNS; add --replace to replace it.")
    for merge in merges:
        if merge.added or merge.replaced:
            write_records(merge.path, merge.records)
        counts = f"{merge.added} added, {merge.replaced} replaced, {merge.same} already there"
        print(f"{merge.path}: {counts}")
    for path, content in found.tunings.items():
        same = path.exists() and path.read_bytes() == content
        if not same:
            write_atomically(path, content)
        print(f"{path}: {'already there' if same else 'written'}")
    print(f"left out: {found.count_unused()}")
    for problem in found.damages:
        print(f"trainact: left out: {problem}", file=sys.stderr)
    return 1 if found.damages else 0


@dataclass
class _Found:
    """Records and tunings below RUNS, by the files to write them to."""

    records: dict[Path, list[Record]] = field(default_factory=dict)
    tunings: dict[Path, bytes] = field(default_factory=dict)
    damages: list[str] = field(default_factory=list)
    interrupted: int = 0
    smoke: int = 0

    def count_unused(self) -> str:
        runs = f"{count(self.interrupted, 'interrupted run')}, {count(self.smoke, 'smoke run')}"
        return f"{runs}, {count(len(self.damages), 'damaged file')}"


class _Merge(NamedTuple):
    """The new content of a file of records."""

    path: Path
    records: Iterable[Record]
    added: int
    replaced: int
    same: int


def _gather(roots: Sequence[Path], into: Path) -> _Found:
    def is_outside(path: Path) -> bool:
        return not path.is_relative_to(into.resolve())

    found = _Found()
    for root in roots:
        runs, damages = separate_damaged(r for r in find_runs([root]) if is_outside(r.path))
        found.damages += [damage.reason for damage in damages]
        for one in runs:
            if one.smoke:
                found.smoke += 1
            elif one.record is None:
                found.interrupted += 1
            else:
                path = _mirror(one.folder, root, into) / (TUNING_RECORDS if one.tuning else RECORDS)
                found.records.setdefault(path, []).append(hide_data_folder(one.record))
        for folder, path in find_tunings([root]):
            if not is_outside(path):
                continue
            try:
                read_full_tuning(path)
            except TrActValueError as error:
                found.damages.append(str(error))
                continue
            target, content = _mirror(folder, root, into) / path.name, path.read_bytes()
            if found.tunings.setdefault(target, content) != content:
                raise TrActValueError(f"{path} is a second, different {path.name} for {target}.")
    if not found.records and not found.tunings:
        problems = "".join(f"\n{problem}" for problem in found.damages)
        raise TrActValueError(
            f"there is no record to collect below {', '.join(map(str, roots))}, only "
            f"{found.count_unused()}; a smoke run is not a result.{problems}"
        )
    return found


def _mirror(folder: Path, root: Path, into: Path) -> Path:
    """Return the folder below ``into`` for an experiment's folder below ``root``."""
    root = root.resolve()
    return into / folder.relative_to(root) if folder.is_relative_to(root) else into


def _merge(path: Path, new: Sequence[Record], replace: bool) -> _Merge:
    there: dict[tuple[str, int, int, str], Record] = {}
    for run in read_lines(path) if path.exists() else ():
        if run.record is None:
            raise TrActValueError(f"{run.damage}; repair or remove {path} first.")
        there[sort_key(run.record)] = run.record
    merged: dict[tuple[str, int, int, str], Record] = {}
    for record in new:
        other = merged.setdefault(sort_key(record), record)
        if other["seal"] != record["seal"]:
            raise TrActValueError(
                f"there are two different records of {_name(record)} below RUNS; give only "
                "one of their folders."
            )
    changed = [k for k in merged.keys() & there.keys() if merged[k]["seal"] != there[k]["seal"]]
    if changed and not replace:
        raise TrActValueError(
            f"{path} holds other records of {count(len(changed), 'run')}, for example "
            f"{_name(merged[min(changed)])}; add --replace to replace them."
        )
    added = len(merged.keys() - there.keys())
    same = len(new) - added - len(changed)
    return _Merge(path, (there | merged).values(), added, len(changed), same)


def _name(record: Record) -> str:
    return (
        f"{record['arm']}, {count_epochs(record['budget'])}, seed {record['seed']} "
        f"(recipe {record['recipe_id']})"
    )
