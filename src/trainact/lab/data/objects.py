"""Images annotated with objects for detection; an object is a box and a class."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from trainact.lab.data.images import DataError

__all__ = ["AnnotatedImage", "DetectionData", "Objects"]


@dataclass(frozen=True, eq=False)
class Objects:
    """The objects of an image.

    Attributes:
        boxes: float32 [N, 4], left, top, right, bottom in pixels; the image is [0, W] x [0, H].
        labels: int64 [N], from 0.
        difficult: bool [N]; excluded from training and from the evaluation.
    """

    boxes: Tensor
    labels: Tensor
    difficult: Tensor

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
    """An image file and its objects.

    Attributes:
        name: for messages.
        file: its path.
        width: pixels, from the annotation; must match the file when it is read.
        height: likewise.
        objects: all of them, including difficult ones.
    """

    name: str
    file: Path
    width: int
    height: int
    objects: Objects


@dataclass(frozen=True, eq=False)
class DetectionData:
    """A data set for object detection.

    Attributes:
        name: for messages and records.
        train: training images.
        test: test images.
        classes: names, in the order of the labels.
        fingerprint: hexadecimal SHA-256 of names, file sizes and objects.
    """

    name: str
    train: tuple[AnnotatedImage, ...]
    test: tuple[AnnotatedImage, ...]
    classes: tuple[str, ...]
    fingerprint: str

    def __post_init__(self) -> None:
        for part, images in (("training", self.train), ("test", self.test)):
            if not images:
                raise DataError(f"{self.name} has no {part} images.")
            if not any(bool((~image.objects.difficult).any()) for image in images):
                raise DataError(
                    f"{self.name}: no {part} image has an object that is not difficult."
                )
