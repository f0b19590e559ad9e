"""Labelled images, in memory as one tensor or read one by one, and their fingerprint."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trainact.errors import TrActValueError

__all__ = [
    *("DataError", "ImageData", "ImageStream", "ImageTensor", "Images", "Note", "Standard"),
    *("compute_fingerprint", "hash_tensor"),
]

Note = Callable[[str], None]
"""Receives one message for the user, such as a display or a logger."""


class DataError(TrActValueError):
    """Images, labels or weights that are missing, damaged or not as expected."""


@dataclass(frozen=True, eq=False)
class ImageTensor:
    """Images in memory."""

    images: Tensor  # uint8 [N, C, H, W]
    labels: Tensor  # int64 [N]

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, indices: Tensor) -> "ImageTensor":
        """Return the images at ``indices`` [M]."""
        return ImageTensor(self.images[indices], self.labels[indices])


@dataclass(frozen=True, eq=False)
class ImageStream:
    """Images that are read when they are needed.

    ``read`` returns the image of an item as a PIL image in RGB, or raises `DataError` with the
    item's name. It can be pickled for worker processes.
    """

    read: Callable[[Any], Any]
    items: tuple[Any, ...]  # arguments of read: paths or row numbers
    labels: Tensor  # int64 [N]

    def __len__(self) -> int:
        return len(self.items)

    def select(self, indices: Tensor) -> "ImageStream":
        """Return the images at ``indices`` [M]."""
        items = tuple(self.items[i] for i in indices.tolist())
        return ImageStream(self.read, items, self.labels[indices])


Images = ImageTensor | ImageStream


@dataclass(frozen=True, eq=False)
class ImageData:
    """A data set: training and test images of the same classes."""

    name: str  # for messages and records
    train: Images
    test: Images
    classes: tuple[str, ...]  # in the order of the labels
    fingerprint: str  # see compute_fingerprint
    difference: str = ""  # of the whole set from the published one; see compare_counts

    def __post_init__(self) -> None:
        if len(self.classes) < 2:
            raise DataError(
                f"{self.name} has {len(self.classes)} class; a classifier needs at least two."
            )
        for part, images in (("training", self.train), ("test", self.test)):
            if not len(images):
                raise DataError(f"{self.name} has no {part} images.")
            wrong = torch.nonzero((images.labels < 0) | (images.labels >= len(self.classes)))
            if len(wrong):
                at = int(wrong[0])
                raise DataError(
                    f"{self.name}: the label of {part} image {at} is {int(images.labels[at])}; the "
                    f"{len(self.classes)} classes are numbered 0 to {len(self.classes) - 1}."
                )


class Standard(NamedTuple):
    """Mean and standard deviation of each channel, of values in [0, 1]."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


def compute_fingerprint(train: Images, test: Images) -> str:
    """Return the hexadecimal SHA-256 of both parts: images, labels and order.

    Images in memory are hashed byte by byte. Of a stream, the name and the encoded size of each
    image are hashed, from the ``describe`` method of its reader: reading all images would take as
    long as an epoch.
    """
    total = hashlib.sha256()
    for images in (train, test):
        if isinstance(images, ImageTensor):
            total.update(repr(tuple(images.images.shape)).encode())
            total.update(hash_tensor(images.images).encode())
        else:
            for item in images.items:
                name, size = images.read.describe(item)  # type: ignore[attr-defined]
                total.update(f"{name!r} {size}\n".encode())
        total.update(hash_tensor(images.labels).encode())
    return total.hexdigest()


def hash_tensor(values: Tensor) -> str:
    """Return the hexadecimal SHA-256 of a tensor's bytes, in index order."""
    return hashlib.sha256(values.contiguous().numpy().data).hexdigest()
