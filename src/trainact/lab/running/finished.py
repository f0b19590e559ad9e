"""Finished runs of other experiments: a run that two recipes share is done once.

Two recipes may have the same run, such as plain training at 200 epochs. If one of them has done it,
the other takes its files: they are linked, or copied to another disk. No file of a run is changed
after it was written, so a link is as safe as a copy.
"""

import functools
import glob
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import filelock

from trainact.errors import TrActError
from trainact.lab.data.images import Note
from trainact.lab.files import StorageError, replace_atomically
from trainact.lab.records.checkpoint import remove_checkpoints
from trainact.lab.records.record import clear_failure, read_record
from trainact.lab.running.plan import PlannedRun
from trainact.lab.training.resume_checks import check_record

__all__ = ["find_copies", "take_finished"]

PLACES = ("", "*", "*/*")
"""Folders of experiments below a folder of results: its own, a recipe's, a network's of a table."""
FILES = ("recipe.toml", "weights.safetensors", "ema.safetensors", "record.json")
"""The files of a finished run; the record, which marks it as finished, is last."""


def take_finished(
    run: PlannedRun, roots: Sequence[Path], load: Callable[..., Any], note: Note
) -> bool:
    """Link the files of the same run, finished in another experiment, into the run's folder.

    A record is taken only if its seal fits, it is of this recipe, and its data and initial weights
    are those of this run. ``note`` says where a run was taken from, and why one was not taken.

    Args:
        run: a run; if it has its own record, nothing is done.
        roots: folders of results.
        load: loads the data set of a recipe's data table.
        note: receives the messages.
    """
    folder = run.folder
    if folder.record_path.exists():
        return False
    for found in find_copies(run, roots):
        try:
            record = read_record(found / "record.json")
            if record["recipe_id"] != folder.identity:
                raise TrActError("its record is of another recipe")
            check_record(record, run.recipe, functools.partial(load, note=note))
        except TrActError as error:
            note(f"the run in {found} is not taken: {error}")
            continue
        if _link_files(found, folder.path):
            note(f"taken from {found}, where the same run has ended")
            return True
    return False


def find_copies(run: PlannedRun, roots: Sequence[Path]) -> Iterator[Path]:
    """Yield the folders of the same run, with a record, in other experiments below ``roots``.

    The name of a run's folder contains its arm, budget, seed and the identity of its recipe. A run
    whose time is the result has no copies: others may have shared the machine.
    """
    if run.timed:
        return
    own = run.folder.path
    name = f"{own.parent.name}/{glob.escape(own.name)}/record.json"
    for root in roots:
        for place in PLACES:
            for record in sorted(root.glob(f"{place}/{name}".lstrip("/"))):
                if record.parent.resolve() != own.resolve():
                    yield record.parent


def _link_files(source: Path, target: Path) -> bool:
    """Link or copy the files of a run; return False if another process is doing the run here."""
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{target} cannot be made: {error.strerror}.") from error
    lock = filelock.FileLock(target / "run.lock")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        return False
    except OSError as error:
        raise StorageError(f"{target} cannot be written: {error.strerror}.") from error
    try:
        for name in FILES:
            if not (source / name).exists():
                continue
            with replace_atomically(target / name) as temporary:
                try:
                    os.link(source / name, temporary)
                except OSError:  # another disk, or one without links
                    shutil.copyfile(source / name, temporary)
    finally:
        lock.release()
    remove_checkpoints(target)
    clear_failure(target)
    return True
