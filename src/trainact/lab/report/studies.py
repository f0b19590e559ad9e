"""What lies below folders of results: the runs of each experiment, ended, interrupted or damaged.

An experiment's folder holds ``runs/`` (or ``smoke/``), and ``tuning/`` where its rates were chosen.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainact.errors import TrActValueError
from trainact.lab.analysis.runs import Record, read_runs
from trainact.lab.paper import list_recipes
from trainact.lab.recipes.experiment import list_experiments
from trainact.lab.recipes.names import name_run
from trainact.lab.recipes.recipe_file import read_recipe
from trainact.lab.recipes.tuning import read_tuning
from trainact.lab.records.failures import read_failure
from trainact.lab.records.record import read_record
from trainact.lab.report.tuning_table import make_tuning_grid

__all__ = ["Damage", "Study", "find_studies"]

KINDS = {"runs": "full", "smoke": "smoke"}
TUNING = "tuning"


@dataclass
class Study:
    """All runs of one experiment that are of one kind.

    Attributes:
        name: the recipe's, which is also its folder's.
        folder: where its runs lie; the first, if there are several.
        kind: full or smoke.
        network: set where the recipe has several networks.
        records: of the runs that ended, well or not.
        interrupted: the runs without a record.
        tuning: what ``trainact tune`` wrote.
    """

    name: str
    folder: Path
    kind: str
    network: str = ""
    records: list[Record] = field(default_factory=list)
    interrupted: list[str] = field(default_factory=list)
    tuning: dict[str, Any] | None = None

    @property
    def key(self) -> str:
        """Return a name for files and links, unlike that of any other experiment's runs."""
        parts = [self.name, self.network.rpartition(":")[2], "smoke" * (self.kind == "smoke")]
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
    for root in roots:
        if not root.is_dir():
            raise TrActValueError(f"{root} is no folder; give one that holds results of runs.")
    studies: dict[tuple[str, str], Study] = {}
    damages: list[Damage] = []
    for path in _find_folders(roots, "record.json", "recipe.toml"):
        _add_run(path, studies, damages)
    for path in _find_folders(roots, "tuning.json"):
        _add_tuning(path / "tuning.json", studies, damages)
    if not studies and not damages:
        shown = ", ".join(map(str, roots))
        raise TrActValueError(
            f"there is no record of a run below {shown}; trainact run and trainact compare leave "
            "them in the folder that --out names."
        )
    split = [part for study in studies.values() for part in _split(study)]
    return _rename(sorted(split, key=lambda s: (s.kind, s.name, s.network))), damages


def _find_folders(roots: Sequence[Path], *names: str) -> list[Path]:
    found = {path.parent.resolve() for root in roots for name in names for path in root.rglob(name)}
    return sorted(found)


def _add_run(path: Path, studies: dict[tuple[str, str], Study], damages: list[Damage]) -> None:
    known = path.parent.name in KINDS
    kind = KINDS.get(path.parent.name, "full")
    home = path.parent.parent if known else path.parent
    tuned = home.name == TUNING
    if not (path / "record.json").exists():
        if known:
            where = f"{TUNING}, " if tuned else ""
            study = _open(studies, home.parent if tuned else home, kind)
            study.interrupted.append(where + _describe_interrupted(path))
        return
    try:
        record = read_record(path / "record.json")
        read_runs([record])
    except TrActValueError as error:
        damages.append(Damage(path / "record.json", str(error)))
        return
    if not tuned:
        study = _open(studies, home, record["kind"])
        if all(record["seal"] != other["seal"] for other in study.records):  # not a copy
            study.records.append(record)


def _add_tuning(path: Path, studies: dict[tuple[str, str], Study], damages: list[Damage]) -> None:
    home = path.parent.parent if path.parent.name == TUNING else path.parent
    try:
        tuning = read_tuning(path)
        make_tuning_grid(tuning)
    except TrActValueError as error:
        damages.append(Damage(path, str(error)))
        return
    except (KeyError, TypeError, AttributeError) as error:
        damages.append(Damage(path, f"{path} is not what trainact tune writes: {error!r}"))
        return
    _open(studies, home, "full").tuning = tuning


def _open(studies: dict[tuple[str, str], Study], home: Path, kind: str) -> Study:
    """Return the study of a folder; folders of one recipe's name are one.

    A table of networks has one folder for each network below the recipe's.
    """
    known = {*list_experiments(), *list_recipes()}
    key, name, network = str(home), home.name, ""
    if home.name in known:
        key = home.name
    elif home.parent.name in known:
        name, network = home.parent.name, home.name
        key = f"{name}/{network}"
    return studies.setdefault((key, kind), Study(name, home, kind, network))


def _describe_interrupted(path: Path) -> str:
    try:
        told = name_run(read_recipe(path / "recipe.toml"))
    except TrActValueError:
        told = "a run whose recipe cannot be read"
    if any(path.glob("record.json.damaged-*")):
        told += ", whose record was damaged and set aside"
    failure = read_failure(path)
    why = f"; it failed: {failure['failure']}" if failure else ""
    return f"{told} ({path.name}){why}"


def _split(study: Study) -> Iterable[Study]:
    """Return one study for each network; runs without a record stay with the first."""
    networks = sorted({str(record["model"]["name"]) for record in study.records})
    if len(networks) < 2:
        return [study]
    parts = []
    for network in networks:
        records = [r for r in study.records if r["model"]["name"] == network]
        lost = study.interrupted if network == networks[0] else []
        part = dataclasses.replace(study, network=network, records=records, interrupted=lost)
        parts.append(part)
    return parts


def _rename(studies: list[Study]) -> list[Study]:
    """Give folders of the same name, of no known recipe, their parents' names too."""
    keys = [study.key for study in studies]
    for study in studies:
        if keys.count(study.key) > 1:
            study.name = f"{study.folder.parent.name}-{study.name}"
    for study in studies:
        alike = [other for other in studies if other.key == study.key]
        for number, other in enumerate(alike[1:], start=2):
            other.name = f"{other.name}-{number}"
    return studies
