"""Images in one folder per class, the usual layout of ImageNet and many other data sets."""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trainact.lab.data.decoding import open_picture
from trainact.lab.data.images import DataError, ImageStream, Note
from trainact.lab.data.selection import Parts, note_unused

__all__ = ["FolderReader", "has_classes", "read_folder"]

TEST_FOLDERS = ("test", "val", "valid", "validation")
EXTENSIONS = "avif bmp dib gif jfif jp2 jpe jpeg jpg pbm pgm png pnm ppm tga tif tiff webp"
Files = dict[str, list[str]]  # class -> names below the root, sorted


@dataclass(frozen=True)
class FolderReader:
    """Reads images by their names below a folder."""

    root: Path

    def __call__(self, name: str) -> Any:
        """Return the image as a PIL image in RGB."""
        file = self.root / name
        try:
            encoded = file.read_bytes()
        except OSError as error:
            raise DataError(f"{file} cannot be read ({error.strerror}).") from error
        return open_picture(encoded, str(file))

    def describe(self, name: str) -> tuple[str, int]:
        """Return the name, and the size of the file in bytes."""
        try:
            return name, (self.root / name).stat().st_size
        except OSError as error:  # such as a broken link
            raise DataError(f"{self.root / name} cannot be read ({error.strerror}).") from error


def read_folder(root: Path, note: Note) -> Parts:
    """Return the images of ``ROOT/train/CLASS`` and ``ROOT/test/CLASS``, or of ``ROOT/CLASS``.

    The test images are in the first folder of `TEST_FOLDERS` that has class folders. If there is
    none, a fifth of the images of each class is used for testing: those whose names have the
    smallest SHA-256. Classes are sorted by name and include the files of their subfolders. Hidden
    files and files that are not images are ignored.

    Raises:
        DataError: there are no classes, a class is empty, a test class is not a training class, or
            test images are not in class folders.
    """
    top = _list_folders(root)
    if top and set(top) <= set(TEST_FOLDERS):
        raise DataError(f"{root} has {' and '.join(top)}, but no folder 'train' to train on.")
    if "train" not in top:
        return _make_parts(root, *_split(root, _list_files(root, root), note))
    train = _list_files(root, root / "train")
    for name in TEST_FOLDERS:
        if name in top and _list_folders(root / name):
            test = _list_files(root, root / name)
            _check_classes(train, test, root / name, note)
            unused = [other for other in TEST_FOLDERS if other != name and other in top]
            note_unused(unused, root, note)
            return _make_parts(root, train, test)
    for name in TEST_FOLDERS[1:]:  # a flat test folder is usual for secret labels
        if name in top and (loose := sum(1 for _ in _walk(root / name))):
            raise DataError(
                f"{root / name} holds {loose} images, but no class folders, so their labels are "
                f"unknown. Sort them into {root / name}/CLASS/*, with the class names of train, or "
                "move them away to test on a fifth of train."
            )
    return _make_parts(root, *_split(root / "train", train, note))


def has_classes(folder: Path) -> bool:
    """Return whether ``FOLDER/train`` contains folders."""
    return (folder / "train").is_dir() and bool(_list_folders(folder / "train"))


def _list_folders(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def _list_files(root: Path, folder: Path) -> Files:
    """Return the images of each class folder in ``folder``."""
    files = {
        name: sorted(file.relative_to(root).as_posix() for file in _walk(folder / name))
        for name in _list_folders(folder)
    }
    if not files:
        raise DataError(
            f"{folder} contains no folders. Images must be in one folder per class: "
            "ROOT/train/CLASS/* and ROOT/test/CLASS/*, or ROOT/CLASS/*."
        )
    for name, found in files.items():
        if not found:
            raise DataError(
                f"the class folder {folder / name} contains no image. Delete it or add images; "
                f"known extensions are {EXTENSIONS}."
            )
    return files


def _walk(folder: Path) -> Iterator[Path]:
    """Yield all images below a folder; links are followed, but each folder is read once."""
    seen, known = set(), EXTENSIONS.split()
    for place, folders, names in os.walk(folder, followlinks=True):
        if (real := os.path.realpath(place)) in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in names:
            if not name.startswith(".") and name.rpartition(".")[2].lower() in known:
                yield Path(place, name)


def _split(folder: Path, files: Files, note: Note) -> tuple[Files, Files]:
    """Return four fifths and one fifth of the images of each class."""
    train: Files = {}
    test: Files = {}
    for name, found in files.items():
        shuffled = sorted(found, key=lambda file: hashlib.sha256(os.fsencode(file)).digest())
        num_test = min(max(round(len(found) / 5), 1), len(found) - 1)
        test[name] = sorted(shuffled[:num_test])
        train[name] = sorted(shuffled[num_test:])
    note(
        f"{folder} has no test images in class folders: a fifth of each class, "
        f"{sum(map(len, test.values()))} images, is used for testing and never trained on."
    )
    return train, test


def _check_classes(train: Files, test: Files, folder: Path, note: Note) -> None:
    """Refuse test classes without training images; report training classes without test images."""
    for name in test:
        if name not in train:
            raise DataError(
                f"{folder} has the class {name!r}, which has no training images. Training classes "
                f"are {', '.join(map(repr, list(train)[:5]))}{', ...' if len(train) > 5 else ''}."
            )
    missing = [name for name in train if name not in test]
    if missing:
        note(
            f"{folder} lacks {len(missing)} of {len(train)} classes, such as {missing[0]!r}: they "
            "are trained on, but not tested."
        )


def _make_parts(root: Path, train: Files, test: Files) -> Parts:
    classes = tuple(train)
    streams = []
    for files in (train, test):
        rows = [(file, label) for label, c in enumerate(classes) for file in files.get(c, [])]
        labels = torch.tensor([label for _, label in rows], dtype=torch.int64)
        streams.append(ImageStream(FolderReader(root), tuple(file for file, _ in rows), labels))
    return Parts(root.resolve().name, streams[0], streams[1], classes)
