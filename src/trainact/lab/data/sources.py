"""From the name of a data set to its images."""

import dataclasses
import difflib
import logging
import re
from pathlib import Path
from typing import Any

from trainact.errors import TrActValueError
from trainact.lab.data import photos
from trainact.lab.data.cifar import load_cifar
from trainact.lab.data.folder import has_classes, read_folder
from trainact.lab.data.hub import load_from_hub
from trainact.lab.data.images import (
    DataError,
    ImageData,
    Images,
    Note,
    compute_fingerprint,
)
from trainact.lab.data.npz import read_npz
from trainact.lab.data.parquet import find_parquet, read_parquet
from trainact.lab.data.selection import Parts, select_images
from trainact.lab.data.shards import find_shards, read_shards
from trainact.lab.data.storage import store_images
from trainact.lab.recipes.recipe import DataFields

__all__ = ["COLLECTIONS", "DETECTION", "NAMES", "PLACED", "load_data"]

LOGGER = logging.getLogger("trainact.lab.data")
COLLECTIONS = ("imagenet", "imagenette", "flowers102", "stanford_cars")
"""Data sets of which recipes speak and which their users have somewhere, in any layout."""
PLACED = ("cifar10", "cifar100", *COLLECTIONS)
"""Data sets whose place is a field by itself, ``data.folder``."""
DETECTION = "voc2007"
"""To find objects in; its place is ``data.folder`` too."""
NAMES = ("photos", *PLACED, DETECTION)
ACCEPTED = (
    f"Accepted are {', '.join(NAMES[:-1])}, the path of a folder of images (ROOT/train/CLASS/*), "
    "of parquet files or of WebDataset shards, shards by name (NAME-{train,val}-{00..09}.tar), the "
    "path of an .npz file, owner/name on the Hugging Face hub, and, to find objects in, voc2007."
)


def load_data(fields: DataFields, note: Note = LOGGER.warning) -> Any:
    """Return the data set of ``fields``: an `ImageData`, or for ``voc2007`` a `DetectionData`.

    Args:
        fields: name, place, selection and storage of the images.
        note: receives messages for the user, such as which source is asked or that a fifth of the
            images is used for testing. By default they go to the logger ``trainact.lab.data``.

    Raises:
        DataError: images are missing, damaged, or not what they should be.
        TrActValueError: there is no such data set.
    """
    if fields.name == DETECTION:
        from trainact.lab.data.voc import load_voc

        return load_voc(fields)
    if fields.folder and fields.name not in PLACED:
        raise TrActValueError(
            f"data.folder is where {', '.join(PLACED)} or voc2007 lies, but data.name is "
            f"{fields.name!r}. To train on a folder of images give its path as data.name."
        )
    if fields.name == "photos":
        name, classes = "photos", photos.CLASSES
        train, test = _draw_photos(fields)
    else:
        parts = _find_parts(fields, note)
        name, classes = parts.name, parts.classes
        _check_classes(parts, fields.classes)
        ImageData(name, parts.train, parts.test, classes, "")  # checks all labels
        train, test = select_images(parts, fields)
    train, test = store_images(train, test, fields, note)
    return ImageData(name, train, test, classes, compute_fingerprint(train, test))


def _find_parts(fields: DataFields, note: Note) -> Parts:
    """Return the data set that a name, a path or a hub id means, in this order."""
    name = fields.name
    if name in {"cifar10", "cifar100"}:
        return load_cifar(name, fields.folder, note)
    if name in COLLECTIONS:
        if not fields.folder:
            raise DataError(
                f"{name} is not fetched by itself. Give the place where it lies, --data PATH on "
                "the command line or data.folder in a recipe: a folder of images "
                "(PATH/train/CLASS/*), of parquet files or of shards, or a hub id."
            )
        parts = _find_parts(dataclasses.replace(fields, name=fields.folder, folder=""), note)
        return dataclasses.replace(parts, name=name)
    if name.startswith("hf:"):
        return load_from_hub(name.removeprefix("hf:"), note)
    path = Path(name).expanduser()
    if name and path.is_dir():
        if files := find_parquet(path):
            return read_parquet(path, files, note)
        shards = [] if has_classes(path) else find_shards(name)  # archives may lie beside images
        return read_shards(path.resolve().name, shards, note) if shards else read_folder(path, note)
    if shards := find_shards(name):
        return read_shards(shards[0].resolve().parent.name, shards, note)
    if path.is_file():
        if path.suffix == ".npz":
            return read_npz(path)
        raise TrActValueError(f"{path} is a file of an unknown kind. {ACCEPTED}")
    if path.suffix == ".npz" or name.startswith((".", "/", "~")):
        raise DataError(f"data.name: there is no file or folder {path}.")
    if re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        try:
            return load_from_hub(name, note)
        except DataError as error:
            raise DataError(f"{error}; a folder of this name is not there either.") from error
    near = difflib.get_close_matches(name.lower(), NAMES, cutoff=0.5)
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else "."
    raise TrActValueError(f"unknown data set {name!r}{hint} {ACCEPTED}")


def _check_classes(parts: Parts, wanted: int) -> None:
    """Refuse another number of classes than the recipe's.

    Raises:
        DataError: there are more or fewer.
    """
    if wanted and len(parts.classes) != wanted:
        raise DataError(
            f"{parts.name} has {len(parts.classes)} classes to train on, from {parts.classes[0]!r} "
            f"to {parts.classes[-1]!r}; the recipe is for {wanted} (data.classes). Look for class "
            "folders that are missing or do not belong there, or set data.classes=0 for any number."
        )


def _draw_photos(fields: DataFields) -> tuple[Images, Images]:
    """Return the crops that are asked for; unlike elsewhere there are always more."""
    train = fields.train_images or photos.TRAIN_CROPS - fields.held_out
    if train < 1:
        raise DataError(
            f"data.held_out is {fields.held_out}, but photos has {photos.TRAIN_CROPS} training "
            "images. Hold out fewer, or set data.train_images: more crops are drawn then."
        )
    crops = photos.draw_crops(train, fields.test_images or photos.TEST_CROPS, fields.held_out)
    return crops["train"], crops[fields.evaluate_on]
