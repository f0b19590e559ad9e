"""Checks of a data set before it is trained on: its layout, its numbers of images, its pictures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trainact.lab.data.folder import FolderReader
from trainact.lab.data.images import DataError, ImageData, Images, ImageStream, Note
from trainact.lab.data.objects import AnnotatedImage
from trainact.lab.data.published import ImageCounts, compare_counts, find_published
from trainact.lab.data.sources import DETECTION, find_parts
from trainact.lab.recipes.recipe import DataFields

__all__ = ["DataCheck", "PartCheck", "check_data_set"]


@dataclass(frozen=True)
class PartCheck:
    """The training or the test images of a data set."""

    name: str  # training or test
    images: int
    per_class: tuple[int, int]  # smallest and largest number; of a detector, objects in an image
    decoded: int  # images that were decoded
    damaged: tuple[str, ...]  # messages about images that could not be


@dataclass(frozen=True)
class DataCheck:
    """What a data set holds, and how that differs from the published one."""

    name: str
    train: PartCheck
    test: PartCheck
    classes: int
    published: ImageCounts
    difference: str  # see compare_counts

    @property
    def is_right(self) -> bool:
        """Return whether all numbers are the published ones and no image is damaged."""
        return not (self.difference or self.train.damaged or self.test.damaged)


def check_data_set(name: str, place: str, images: int | None, note: Note) -> DataCheck:
    """Read a named data set as a run would, and compare it with the published one.

    Args:
        name: of a published data set.
        place: its path, or for some its hub id; empty to look in the cache or download it.
        images: how many images of each part to decode, spread evenly over it; None for all.
        note: receives messages.

    Raises:
        DataError: the data set is missing, or its layout is not one that can be read.
        TrActValueError: there is no data set of this name.
    """
    published = find_published(name)
    if published is None:
        raise DataError(f"the numbers of images of {name!r} are not published.")
    fields = DataFields(name=name, folder=place)
    if name == DETECTION:
        from trainact.lab.data.voc import load_voc

        data = load_voc(fields)
        parts = [
            _check_scenes(part, scenes, images)
            for part, scenes in (("training", data.train), ("test", data.test))
        ]
        classes = len(data.classes)
    else:
        whole = find_parts(fields, note)
        ImageData(name, whole.train, whole.test, whole.classes, "")  # checks the labels
        classes = len(whole.classes)
        parts = [
            _check_images(part, rows, classes, images)
            for part, rows in (("training", whole.train), ("test", whole.test))
        ]
    train, test = parts
    difference = compare_counts(name, train.images, test.images, classes)
    return DataCheck(name, train, test, classes, published, difference)


def _check_images(part: str, images: Images, classes: int, number: int | None) -> PartCheck:
    """Check the images of a classifier; those in memory have been decoded already."""
    counts = torch.bincount(images.labels, minlength=classes)
    if not isinstance(images, ImageStream):
        return _make_check(part, counts, len(images), len(images), [])
    chosen = _spread(len(images), number)
    damaged = _find_damaged(images.read, [images.items[i] for i in chosen])
    return _make_check(part, counts, len(images), len(chosen), damaged)


def _check_scenes(part: str, scenes: Sequence[AnnotatedImage], number: int | None) -> PartCheck:
    """Check the images of a detector, also that they have the size that their annotation says."""

    def read(scene: AnnotatedImage) -> None:
        width, height = FolderReader(scene.file.parent)(scene.file.name).size
        if (width, height) != (scene.width, scene.height):
            raise DataError(
                f"{scene.file} has {width} x {height} pixels; its annotation says {scene.width} x "
                f"{scene.height}."
            )

    counts = torch.tensor([len(scene.objects) for scene in scenes])
    chosen = _spread(len(scenes), number)
    damaged = _find_damaged(read, [scenes[i] for i in chosen])
    return _make_check(part, counts, len(scenes), len(chosen), damaged)


def _make_check(
    part: str, counts: Tensor, images: int, decoded: int, damaged: Sequence[str]
) -> PartCheck:
    smallest, largest = int(counts.min()), int(counts.max())
    return PartCheck(part, images, (smallest, largest), decoded, tuple(damaged))


def _spread(total: int, number: int | None) -> list[int]:
    """Return so many indices, spread evenly; all for None.

    >>> _spread(10, 4), _spread(2, 5), _spread(3, None)
    ([0, 3, 6, 9], [0, 1], [0, 1, 2])
    """
    if number is None or number >= total:
        return list(range(total))
    return torch.linspace(0, total - 1, number).round().int().tolist()


def _find_damaged(read: Callable[[Any], Any], items: Sequence[Any]) -> list[str]:
    """Return the messages about the images that cannot be read."""
    damaged = []
    for item in items:
        try:
            read(item)
        except DataError as error:
            damaged.append(str(error))
    return damaged
