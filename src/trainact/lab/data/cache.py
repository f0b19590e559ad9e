"""The cache of downloaded data sets: one safetensors file each.

The folder is ``$TRAINACT_CACHE``, or else the platform's folder for caches: on Linux
``$XDG_CACHE_HOME/trainact`` or ``~/.cache/trainact``. A file that an earlier version wrote into
``~/.cache/trainact`` is read from there. A file is written atomically and holds the checksum of its
tensors, which is verified on reading.
"""

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

from trainact.lab import files
from trainact.lab.data.images import DataError, Note, hash_tensor

__all__ = ["cache_file", "lock_cache", "rename_damaged_cache", "read_cache", "write_cache"]

LOCK_SECONDS = 1800


def cache_file(name: str) -> Path:
    """Return the cache file of a data set, whether or not it exists."""
    file = _find_folder() / f"{name}.safetensors"
    earlier = Path("~/.cache/trainact").expanduser() / file.name
    if os.environ.get("TRAINACT_CACHE") or file.is_file() or not earlier.is_file():
        return file
    return earlier


def _find_folder() -> Path:
    """Return the folder that files are written to."""
    if folder := os.environ.get("TRAINACT_CACHE"):
        return Path(folder).expanduser()
    import platformdirs

    return platformdirs.user_cache_path("trainact", appauthor=False)


def read_cache(name: str) -> dict[str, Tensor] | None:
    """Return the tensors of a cached data set; None if it is not cached.

    Raises:
        DataError: the file is damaged.
    """
    from safetensors import safe_open

    file = cache_file(name)
    if not file.is_file():
        return None
    try:
        with safe_open(file, framework="pt") as opened:
            recorded = (opened.metadata() or {}).get("sha256")
            tensors = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118
        found = _hash_all(tensors)
    except Exception as error:  # raised by safetensors, torch and numpy
        raise DataError(f"the cache file {file} is damaged ({error}).") from error
    if recorded != found:
        raise DataError(f"the cache file {file} is damaged (its checksum is wrong).")
    return tensors


def write_cache(name: str, tensors: dict[str, Tensor], note: Note) -> None:
    """Write the tensors to the cache; if that fails, report it and go on without."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    file = _find_folder() / f"{name}.safetensors"
    whole = {key: tensor.contiguous() for key, tensor in tensors.items()}
    try:
        with files.replace_atomically(file) as temporary:
            save_file(whole, temporary, metadata={"sha256": _hash_all(whole)})
    except (files.StorageError, SafetensorError) as error:
        note(
            f"{name} cannot be cached in {file.parent} ({error}); set TRAINACT_CACHE to a folder "
            "that can be written."
        )


def rename_damaged_cache(name: str, reason: DataError, note: Note) -> None:
    """Rename a damaged cache file, so that it can be inspected, and report it."""
    try:
        aside = files.set_aside(cache_file(name))
    except files.StorageError as error:
        note(f"{reason} It cannot be renamed ({error}).")
    else:
        note(f"{reason} It was renamed to {aside.name}; {name} is loaded again.")


@contextlib.contextmanager
def lock_cache(name: str) -> Iterator[None]:
    """Let one process at a time download a data set; without a lock if none can be created."""
    import filelock

    file = _find_folder() / f"{name}.lock"
    lock = filelock.FileLock(file, timeout=LOCK_SECONDS)
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # includes filelock.Timeout
            file.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(lock)
        yield


def _hash_all(tensors: dict[str, Tensor]) -> str:
    total = hashlib.sha256()
    for key in sorted(tensors):
        total.update(f"{key} {tuple(tensors[key].shape)} {hash_tensor(tensors[key])}\n".encode())
    return total.hexdigest()
