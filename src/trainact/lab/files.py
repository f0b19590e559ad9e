"""Atomic writes, and damaged files."""

import contextlib
import errno
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

from trainact.errors import TrActError

__all__ = ["StorageError", "replace_atomically", "set_aside", "write_atomically"]


class StorageError(TrActError):
    """A file cannot be written, for example because the disk is full."""


@contextlib.contextmanager
def replace_atomically(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to, which becomes ``path`` if the block succeeds.

    Raises:
        StorageError: the file cannot be written; an earlier file of that name is kept.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise StorageError(_describe(path, error)) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file whole or not at all, as ``replace_atomically`` does."""
    with replace_atomically(path) as temporary:
        temporary.write_bytes(content)


def set_aside(path: Path) -> Path:
    """Rename a damaged file so that it is kept but not used; return its new path.

    Raises:
        StorageError: the folder cannot be written.
    """
    number = 1
    while (kept := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    try:
        path.rename(kept)
    except OSError as error:
        raise StorageError(
            f"{path} is damaged and cannot be renamed: {error.strerror or error}."
        ) from error
    return kept


def _describe(path: Path, error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return (
            f"the disk is full: {path} could not be written. Earlier files are kept; free some "
            "space, then give the same command again to continue."
        )
    return f"{path} could not be written: {error.strerror or error}."
