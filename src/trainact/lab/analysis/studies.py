"""The runs of each experiment below folders of results, before anything is compared."""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainact.errors import TrActValueError
from trainact.lab.analysis.runs import read_runs
from trainact.lab.recipes.experiment import list_experiments, name_network
from trainact.lab.recipes.tuning import read_tuning
from trainact.lab.records.record import Record, hide_data_folder
from trainact.lab.records.results import FoundRun, find_runs, find_tunings, sort_key

__all__ = ["Damage", "Study", "find_studies", "read_full_tuning", "separate_damaged"]


@dataclass
class Study:
    """All runs of one experiment that are of one kind."""

    name: str  # of the recipe and of its folder
    folder: Path  # of its runs; the first, if there are several
    kind: str  # full or smoke
    network: str = ""  # empty if the recipe has only one
    records: list[Record] = field(default_factory=list)  # of runs that ended, also by diverging
    interrupted: list[str] = field(default_factory=list)  # runs without a record
    tuning: dict[str, Any] | None = None  # what ``trainact tune`` wrote
    arm_tunings: list[dict[str, Any]] = field(default_factory=list)  # with ``--arms``

    @property
    def key(self) -> str:
        """Return a name for files and links that no other study has."""
        parts = [self.name, self.network, "smoke" * (self.kind == "smoke")]
        text = "-".join(part for part in parts if part)
        return "".join(c if c.isalnum() or c in "-_." else "-" for c in text).strip("-.") or "runs"


@dataclass(frozen=True)
class Damage:
    """A file that is left out, and why."""

    path: Path
    reason: str


def find_studies(roots: Sequence[Path]) -> tuple[list[Study], list[Damage]]:
    """Return the experiments below folders, full ones before smoke ones, and damaged files.

    Raises:
        TrActValueError: there is no such folder, or no run in any of them.
    """
    runs, damages = separate_damaged(find_runs(roots))
    studies: dict[tuple[str, str], Study] = {}
    seen: set[tuple[int, str]] = set()
    for run in runs:
        if run.record is None or not run.tuning:
            study = _open(studies, run.folder, "smoke" if run.smoke else "full")
            if run.record is None:
                study.interrupted.append(run.describe_interruption())
                continue
            # a run's own record and its collected one are the same result
            result = id(study), hide_data_folder(run.record)["seal"]
            if result not in seen:
                seen.add(result)
                study.records.append(run.record)
    for folder, path in find_tunings(roots):
        try:
            tuning, study = read_full_tuning(path), _open(studies, folder, "full")
        except TrActValueError as error:
            damages.append(Damage(path, str(error)))
            continue
        if "arm" not in tuning:
            study.tuning = tuning
        elif tuning not in study.arm_tunings:
            study.arm_tunings.append(tuning)
    if not studies and not damages:
        raise TrActValueError(
            f"there is no record of a run below {', '.join(map(str, roots))}; trainact run and "
            "trainact compare write them to the folder that --out names."
        )
    split = [part for study in studies.values() for part in _split(study)]
    return _rename(sorted(split, key=lambda s: (s.kind, s.name, s.network))), damages


def separate_damaged(runs: Iterable[FoundRun]) -> tuple[list[FoundRun], list[Damage]]:
    """Return the runs without a damaged or incomplete record, and the damaged files."""
    whole, damages = [], []
    for run in runs:
        damage = run.damage
        try:
            if run.record is not None:
                read_runs([run.record])
        except TrActValueError as error:
            damage = f"{run.path}: {error}"
        if damage:
            damages.append(Damage(run.path, damage))
        else:
            whole.append(run)
    return whole, damages


def read_full_tuning(path: Path) -> dict[str, Any]:
    """Return the content of a tuning's file, including all values that were tried.

    Raises:
        TrActValueError: the file cannot be read, or was not written by ``trainact tune``.
    """
    tuning = read_tuning(path)
    try:
        int(tuning["held_out"])
        for row in tuning["tried"]:
            row["value"], row["accuracy"], dict(row["with"]), len(row["seeds"])
            tuning["chosen"][str(row["budget"])][row["field"]]
    except (KeyError, TypeError, ValueError) as error:
        raise TrActValueError(f"{path} was not written by trainact tune: {error!r}.") from error
    return tuning


def _open(studies: dict[tuple[str, str], Study], folder: Path, kind: str) -> Study:
    """Return the study of a folder; folders with the name of one recipe are one study.

    A table of networks has one folder for each network below the recipe's.
    """
    known = list_experiments()
    key, name, network = str(folder), folder.name, ""
    if folder.name in known:
        key = folder.name
    elif folder.parent.name in known:
        name, network = folder.parent.name, folder.name
        key = f"{name}/{network}"
    return studies.setdefault((key, kind), Study(name, folder, kind, network))


def _split(study: Study) -> Iterable[Study]:
    """Return one study for each network; interrupted runs stay with the first."""
    study.records.sort(key=sort_key)
    networks: dict[str, list[Record]] = {}
    for record in study.records:
        networks.setdefault(name_network(str(record["model"]["name"])), []).append(record)
    if len(networks) < 2:
        return [study]
    return [
        dataclasses.replace(
            study,
            network=network,
            records=networks[network],
            interrupted=[] if number else study.interrupted,
        )
        for number, network in enumerate(sorted(networks))
    ]


def _rename(studies: list[Study]) -> list[Study]:
    """Add the parent's name to folders that have the same name and are not of a known recipe."""
    keys = [study.key for study in studies]
    for study in studies:
        if keys.count(study.key) > 1:
            study.name = f"{study.folder.parent.name}-{study.name}"
    for study in studies:
        alike = [other for other in studies if other.key == study.key]
        for number, other in enumerate(alike[1:], start=2):
            other.name = f"{other.name}-{number}"
    return studies
