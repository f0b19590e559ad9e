"""Images annotated with objects for detection; an object is a box and a class."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from trainact.lab.data.images import DataError

__all__ = ["AnnotatedImage", "DetectionData", "Objects"]


@dataclass(frozen=True, eq=False)
class Objects:
    """The objects of an image."""

    boxes: Tensor  # float32 [N, 4]: left, top, right, bottom in pixels, in [0, W] x [0, H]
    labels: Tensor  # int64 [N], from 0
    difficult: Tensor  # bool [N]; excluded from training and from the evaluation

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, chosen: Tensor) -> "Objects":
        """Return the objects at ``chosen``, a mask [N] or indices [M]."""
        return Objects(self.boxes[chosen], self.labels[chosen], self.difficult[chosen])

    def flip(self, width: int) -> "Objects":
        """Return the objects of the horizontally flipped image of this width.

        >>> boxes = torch.tensor([[10.0, 5.0, 30.0, 9.0]])
        >>> objects = Objects(boxes, torch.tensor([0]), torch.tensor([False]))
        >>> objects.flip(100).boxes.tolist()
        [[70.0, 5.0, 90.0, 9.0]]
        """
        left, top, right, bottom = self.boxes.unbind(1)
        boxes = torch.stack([width - right, top, width - left, bottom], 1)
        return Objects(boxes, self.labels, self.difficult)


@dataclass(frozen=True, eq=False)
class AnnotatedImage:
    """An image file, its size by the annotation, which the file must match, and its objects."""

    name: str  # for messages
    file: Path
    width: int
    height: int
    objects: Objects  # including difficult ones


@dataclass(frozen=True, eq=False)
class DetectionData:
    """A data set for object detection."""

    name: str  # for messages and records
    train: tuple[AnnotatedImage, ...]
    test: tuple[AnnotatedImage, ...]
    classes: tuple[str, ...]  # in the order of the labels
    fingerprint: str  # hexadecimal SHA-256 of names, file sizes and objects
    difference: str = ""  # of the whole set from the published one; see compare_counts

    def __post_init__(self) -> None:
        for part, images in (("training", self.train), ("test", self.test)):
            if not images:
                raise DataError(f"{self.name} has no {part} images.")
            if not any(bool((~image.objects.difficult).any()) for image in images):
                raise DataError(
                    f"{self.name}: no {part} image has an object that is not difficult."
                )
