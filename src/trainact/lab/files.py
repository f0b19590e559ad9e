"""Files that are whole or absent: written beside their place, then moved there."""

import contextlib
import errno
import os
import tempfile
from pathlib import Path

from trainact.errors import TrActError

__all__ = ["StorageError", "set_aside", "write_atomically"]


class StorageError(TrActError):
    """The disk is full, or a folder cannot be written."""


def write_atomically(path: Path, content: bytes) -> None:
    """Write ``content`` so that no reader, and no crash, ever meets a part of it.

    Raises:
        StorageError: the disk is full or the folder cannot be written; what was there is kept.
    """
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        if isinstance(error, OSError):
            raise StorageError(_describe(path, error)) from error
        raise


def set_aside(path: Path) -> Path:
    """Rename a file that is not to be trusted, keeping it; return its new place."""
    number = 1
    while (kept := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    path.rename(kept)
    return kept


def _describe(path: Path, error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return (
            f"the disk is full: {path} could not be written. What was written before is kept; free "
            "some space and give the same command again to go on."
        )
    return f"{path} could not be written: {error.strerror or error}."
