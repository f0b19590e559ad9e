"""One folder a run: its recipe, its checkpoints while it lasts, its record once it has ended.

A folder without ``record.json`` is a run that was interrupted or still goes on. A record carries a
seal, the SHA-256 of everything else in it: one that was damaged or edited is set aside.
"""

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import filelock

from trainact.errors import TrActValueError
from trainact.lab.files import StorageError, set_aside, write_atomically
from trainact.lab.recipes.recipe import Recipe, identify
from trainact.lab.recipes.recipe_file import write_recipe

__all__ = ["FORMAT", "RunFolder", "find_records", "read_record", "seal"]

FORMAT = 1


class RunFolder:
    """The folder of one run, named after its arm, budget, seed and the identity of its recipe."""

    def __init__(self, root: Path, recipe: Recipe) -> None:
        self.recipe, self.identity = recipe, identify(recipe)
        arm = recipe.run.arm or ("tract" if recipe.tract.enabled else "plain")
        epochs, seed = recipe.schedule.epochs, recipe.run.seed
        kind = "smoke" if recipe.run.smoke else "runs"
        self.path = root / kind / f"{arm}-{epochs}ep-seed{seed}-{self.identity}"
        self.record_path = self.path / "record.json"
        self.weights_path = self.path / "weights.safetensors"

    def prepare(self) -> None:
        """Make the folder and write the resolved recipe into it."""
        write_recipe(self.recipe, self.path / "recipe.toml")

    @contextlib.contextmanager
    def hold(self, report: Callable[[str], None], ranks: int = 1) -> Iterator[None]:
        """Hold the run for this process; where another has it, say so and wait until it ends.

        Raises:
            StorageError: the folder cannot be made; or another process has the run and this one is
                the first of several ranks, whose patience is shorter than a run.
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
        try:
            yield
        finally:
            lock.release()

    def load_record(self, report: Callable[[str], None]) -> dict[str, Any] | None:
        """Return the record of a run that has ended, or None; set a damaged one aside."""
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

    def write_record(self, record: dict[str, Any]) -> None:
        """Seal the record and write it: from then on the run has ended."""
        text = json.dumps({**record, "seal": seal(record)}, indent=1)
        write_atomically(self.record_path, text.encode())


def seal(record: dict[str, Any]) -> str:
    """Return the SHA-256 of a record without its seal."""
    content = {key: value for key, value in record.items() if key != "seal"}
    text = json.dumps(json.loads(json.dumps(content)), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def read_record(path: Path) -> dict[str, Any]:
    """Return the record of a file.

    Raises:
        TrActValueError: it is no record, of another format, or not what was written.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TrActValueError(f"{path} cannot be read: {error}") from error
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise TrActValueError(f"{path} is not a run's record of format {FORMAT}")
    if record.get("seal") != seal(record):
        raise TrActValueError(f"{path} is not as it was written: its seal does not fit")
    return record


def find_records(root: Path) -> list[dict[str, Any]]:
    """Return the records of all ended runs below a folder, in the order of their folders' names."""
    return [read_record(path) for path in sorted(root.rglob("record.json"))]
