"""Load a data set by name, path or hub id."""

import dataclasses
import logging
import re
from pathlib import Path
from typing import Any

from trainact.errors import TrActValueError
from trainact.lab.data import photos
from trainact.lab.data.cifar import load_cifar
from trainact.lab.data.folder import has_classes, read_folder
from trainact.lab.data.hub import load_from_hub
from trainact.lab.data.images import DataError, ImageData, Images, Note, compute_fingerprint
from trainact.lab.data.names import COLLECTIONS, DETECTION, NAMES, PLACED
from trainact.lab.data.npz import read_npz
from trainact.lab.data.parquet import find_parquet, read_parquet
from trainact.lab.data.published import compare_counts
from trainact.lab.data.selection import Parts, select_images
from trainact.lab.data.shards import find_shards, read_shards
from trainact.lab.data.storage import store_images
from trainact.lab.recipes.recipe import DataFields
from trainact.lab.text import describe_unknown

__all__ = ["COLLECTIONS", "DETECTION", "NAMES", "PLACED", "find_parts", "load_data"]

LOGGER = logging.getLogger("trainact.lab.data")
ACCEPTED = (
    "Accepted besides names are the path of a folder of images (ROOT/train/CLASS/*), of parquet "
    "files or of WebDataset shards, shards by name (NAME-{train,val}-{00..09}.tar), the path of an "
    ".npz file, and owner/name on the Hugging Face hub."
)


def load_data(fields: DataFields, note: Note = LOGGER.warning) -> Any:
    """Return the data set of ``fields``: an `ImageData`, or for ``voc2007`` a `DetectionData`.

    ``note`` receives messages for the user, such as which source is asked, that a fifth of the
    images is used for testing, or that a named data set has other numbers of images than the
    published one; by default they go to the logger ``trainact.lab.data``.

    Raises:
        DataError: images are missing, damaged or not as expected.
        TrActValueError: there is no such data set.
    """
    if fields.name == DETECTION:
        from trainact.lab.data.voc import load_voc

        return _note_difference(load_voc(fields), note)
    if fields.folder and fields.name not in PLACED:
        raise TrActValueError(
            f"data.folder is for {', '.join(PLACED)} and voc2007, but data.name is "
            f"{fields.name!r}. To train on a folder of images, give its path as data.name."
        )
    if fields.name == "photos":
        name, classes, difference = "photos", photos.CLASSES, ""
        train, test = _draw_photos(fields)
    else:
        parts = find_parts(fields, note)
        name, classes = parts.name, parts.classes
        ImageData(name, parts.train, parts.test, classes, "")  # checks the labels
        _check_classes(parts, fields.classes)
        difference = compare_counts(fields.name, len(parts.train), len(parts.test), len(classes))
        train, test = select_images(parts, fields)
    train, test = store_images(train, test, fields, note)
    fingerprint = compute_fingerprint(train, test)
    return _note_difference(ImageData(name, train, test, classes, fingerprint, difference), note)


def _note_difference(data: Any, note: Note) -> Any:
    """Return the data set; report it if it is not the published one."""
    if data.difference:
        note(f"{data.name} has {data.difference} here; the records of its runs say so.")
    return data


def find_parts(fields: DataFields, note: Note) -> Parts:
    """Return the whole data set of a known name, else of a path, else of a hub id."""
    name = fields.name
    if name in {"cifar10", "cifar100"}:
        return load_cifar(name, fields.folder, note)
    if name in COLLECTIONS:
        if not fields.folder:
            raise DataError(
                f"{name} is not downloaded automatically. Give its path, --data PATH on the "
                "command line or data.folder in a recipe: a folder of images "
                "(PATH/train/CLASS/*), of parquet files or of shards, or a hub id."
            )
        return dataclasses.replace(_find_place(fields.folder, note), name=name)
    return _find_place(name, note)


def _find_place(name: str, note: Note) -> Parts:
    """Return the data set of a path, else of a hub id; a folder may be named like a data set."""
    if name.startswith("hf:"):
        return load_from_hub(name.removeprefix("hf:"), note)
    path = Path(name).expanduser()
    if name and path.is_dir():
        if files := find_parquet(path):
            return read_parquet(path, files, note)
        shards = [] if has_classes(path) else find_shards(name)  # ignore archives beside images
        return read_shards(path.resolve().name, shards, note) if shards else read_folder(path, note)
    if shards := find_shards(name):
        return read_shards(shards[0].resolve().parent.name, shards, note)
    if path.is_file():
        if path.suffix == ".npz":
            return read_npz(path)
        raise TrActValueError(f"{path} is a file of unknown type. {ACCEPTED}")
    if path.suffix == ".npz" or name.startswith((".", "/", "~")):
        raise DataError(f"data.name: there is no file or folder {path}.")
    if re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        try:
            return load_from_hub(name, note)
        except DataError as error:
            raise DataError(f"{error}; there is no folder of this name either.") from error
    raise TrActValueError(f"{describe_unknown(name, NAMES, 'data set')} {ACCEPTED}")


def _check_classes(parts: Parts, wanted: int) -> None:
    """Check that the number of classes is the recipe's."""
    if wanted and len(parts.classes) != wanted:
        raise DataError(
            f"{parts.name} has {len(parts.classes)} classes to train on, from {parts.classes[0]!r} "
            f"to {parts.classes[-1]!r}; the recipe is for {wanted} (data.classes). Check for "
            "missing or extra class folders, or set data.classes=0 for any number."
        )


def _draw_photos(fields: DataFields) -> tuple[Images, Images]:
    """Return the selected crops; unlike in other data sets, held-out images do not reduce them."""
    train = fields.train_images or photos.TRAIN_CROPS - fields.held_out
    if train < 1:
        raise DataError(
            f"data.held_out is {fields.held_out}, but photos has {photos.TRAIN_CROPS} training "
            "images. Hold out fewer, or set data.train_images, which can draw more crops."
        )
    crops = photos.draw_crops(train, fields.test_images or photos.TEST_CROPS, fields.held_out)
    return crops["train"], crops[fields.evaluate_on]
