"""Records of runs, and the folder of a run: its recipe, checkpoints and, at the end, its record.

A folder without ``record.json`` belongs to a run that was interrupted or is still going on.
``failure.json`` keeps the reason why a run failed until the run ends; a failed run has no record,
so the same command tries it again. A record carries a seal, the SHA-256 of its other fields, so
that a damaged or edited one is noticed.
"""

import contextlib
import datetime
import hashlib
import json
import platform
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import filelock

from trainact.errors import TrActValueError
from trainact.lab.files import StorageError, set_aside, write_atomically
from trainact.lab.recipes.recipe import Recipe, identify, write_recipe

__all__ = [
    "FORMAT",
    "Record",
    "RunFolder",
    "clear_failure",
    "hide_data_folder",
    "list_environments",
    "parse_record",
    "read_failure",
    "read_record",
    "seal",
    "write_failure",
]

Record = Mapping[str, Any]
"""Everything about a run that has ended, complete or diverged, as JSON values."""
FORMAT = 1
"""The version of a record's fields."""
FAILURE = "failure.json"
FIELDS = {
    **dict.fromkeys(("arm", "status", "kind", "recipe_id", "data.fingerprint"), str),
    **dict.fromkeys(("model.name", "model.initial_weights"), str),
    **dict.fromkeys(("budget", "seed"), int),
    **dict.fromkeys(("recipe", "environment", "data", "model"), dict),
    "epochs": list,
}
"""Fields that every record has, by dotted name, and their types."""


class RunFolder:
    """The folder of one run, named after its arm, budget, seed and the hash of its recipe."""

    def __init__(self, root: Path, recipe: Recipe) -> None:
        self.recipe, self.identity = recipe, identify(recipe)
        epochs, seed = recipe.schedule.epochs, recipe.run.seed
        kind = "smoke" if recipe.run.smoke else "runs"
        self.path = root / kind / f"{recipe.arm}-{epochs}ep-seed{seed}-{self.identity}"
        self.record_path = self.path / "record.json"
        self.weights_path = self.path / "weights.safetensors"

    def prepare(self) -> None:
        """Make the folder and write the resolved recipe into it."""
        write_recipe(self.recipe, self.path / "recipe.toml")

    @contextlib.contextmanager
    def hold(self, report: Callable[[str], None], ranks: int = 1) -> Iterator[None]:
        """Lock the run for this process; if another process has it, report that and wait.

        Raises:
            StorageError: the folder cannot be made or written; or another process has the run and
                this one is the first of several ranks, which would time out before the run ends.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"{self.path} cannot be made: {error.strerror}.") from error
        lock = filelock.FileLock(self.path / "run.lock")
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            if ranks > 1:
                raise StorageError(
                    f"another process is doing the run in {self.path}; wait until it has ended, or "
                    "choose another --out."
                ) from None
            report("another process is doing this run; waiting for it")
            lock.acquire()
        except OSError as error:
            raise StorageError(f"{self.path} cannot be written: {error.strerror}.") from error
        try:
            yield
        finally:
            lock.release()

    def load_record(self, report: Callable[[str], None]) -> dict[str, Any] | None:
        """Return the record if the run has ended, else None; set a damaged record aside."""
        if not self.record_path.exists():
            return None
        try:
            record = read_record(self.record_path)
            if record["recipe_id"] == self.identity:
                return record
            problem = "is of another recipe"
        except TrActValueError as error:
            problem = str(error)
        kept = set_aside(self.record_path)
        report(f"the record {problem}; it is kept as {kept.name} and the run is done again")
        return None

    def write_record(self, record: Record) -> None:
        """Seal and write the record, which marks the run as ended."""
        text = json.dumps({**record, "seal": seal(record)}, indent=1)
        write_atomically(self.record_path, text.encode())


def seal(record: Record) -> str:
    """Return the SHA-256 of a record without its seal; the order of its keys does not matter."""
    content = {key: value for key, value in record.items() if key != "seal"}
    text = json.dumps(json.loads(json.dumps(content)), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def hide_data_folder(record: Record) -> Record:
    """Return the record with the name of the data folder instead of its path on this machine."""
    data = record["recipe"].get("data", {})
    folder = Path(data.get("folder", ""))
    if not folder.is_absolute():
        return record
    data = {**data, "folder": folder.name}
    shown = {**record, "recipe": {**record["recipe"], "data": data}}
    return {**shown, "seal": seal(shown)}


def list_environments(record: Record) -> list[Mapping[str, Any]]:
    """Return the environments of a run's sessions: more than one if it was interrupted."""
    return [*record.get("earlier_environments", []), record["environment"]]


def read_record(path: Path) -> dict[str, Any]:
    """Return the record in a file.

    Raises:
        TrActValueError: the file cannot be read, or does not hold a record as it was written.
    """
    try:
        return parse_record(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise TrActValueError(f"{path} cannot be read: {error}") from error


def parse_record(text: str, source: str) -> dict[str, Any]:
    """Return the record in a JSON text from ``source``, which messages name.

    Raises:
        TrActValueError: it is not a record of this format, or its seal does not fit.
    """
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TrActValueError(f"{source} cannot be read: {error}") from error
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise TrActValueError(f"{source} is not a run's record of format {FORMAT}")
    if record.get("seal") != seal(record):
        raise TrActValueError(f"{source} is not as it was written: its seal does not fit")
    for dotted, kind in FIELDS.items():
        value: Any = record
        for key in dotted.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        if not isinstance(value, kind) or isinstance(value, bool):
            raise TrActValueError(f"{source} is not a whole record: {dotted} is {value!r:.50}")
    if not all(isinstance(row, dict) for row in (*record["recipe"].values(), *record["epochs"])):
        raise TrActValueError(f"{source} is not a whole record: a table of it is none")
    return record


def write_failure(folder: Path, failure: str, trace: str = "") -> Path:
    """Write the reason, one sentence, into the run's folder if possible; return the file's path."""
    before = read_failure(folder)
    content = {
        "failure": failure,
        "attempts": 1 + (before["attempts"] if before else 0),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "host": platform.node(),
        "trace": trace.splitlines(),
    }
    with contextlib.suppress(StorageError):  # the failure is also printed
        write_atomically(folder / FAILURE, json.dumps(content, indent=1).encode())
    return folder / FAILURE


def read_failure(folder: Path) -> dict[str, Any] | None:
    """Return what the last ``write_failure`` wrote, or None."""
    try:
        content = json.loads((folder / FAILURE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    whole = isinstance(content, dict) and isinstance(content.get("attempts"), int)
    return content if whole and isinstance(content.get("failure"), str) else None


def clear_failure(folder: Path) -> None:
    """Remove the reason of an earlier failure, because the run has ended."""
    with contextlib.suppress(OSError):
        (folder / FAILURE).unlink(missing_ok=True)
