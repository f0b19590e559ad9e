"""Batches of images with objects; augmentation depends only on seed, epoch and position."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trainact.lab.data.decoding import picture_to_tensor
from trainact.lab.data.folder import FolderReader
from trainact.lab.data.images import DataError
from trainact.lab.data.objects import AnnotatedImage, Objects
from trainact.lab.randomness import make_generator
from trainact.lab.recipes.recipe import DataFields
from trainact.lab.training.batches import Batches, Place
from trainact.lab.training.stream import Position, PositionDataset, make_loader

__all__ = ["DetectionBatches", "DetectionShare", "SceneDataset", "make_target"]

Scene = tuple[Tensor, Objects]
"""An image, uint8 [3, H, W], and its objects."""


class DetectionShare(NamedTuple):
    """Images in [0, 1], each [3, H, W] of any size, and their targets; see `make_target`."""

    images: list[Tensor]
    targets: list[dict[str, Tensor]]


class SceneDataset(PositionDataset):
    """Images with objects; training images are flipped with probability 0.5."""

    def __init__(
        self, images: tuple[AnnotatedImage, ...], train: bool, flip: bool, seed: int
    ) -> None:
        self.images, self.flip, self.seed = images, train and flip, seed

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, position: Position) -> Scene:
        image = self.images[position[2]]
        picture = FolderReader(image.file.parent)(image.file.name)
        if picture.size != (image.width, image.height):
            width, height = picture.size
            raise DataError(
                f"{image.file} has {width} x {height} pixels; its annotation says {image.width} x "
                f"{image.height}."
            )
        pixels = picture_to_tensor(picture).contiguous()
        if self.flip and bool(
            torch.rand((), generator=make_generator(self.seed, "flip", *position)) < 0.5
        ):
            return pixels.flip(2), image.objects.flip(image.width)
        return pixels, image.objects


def make_target(objects: Objects, device: torch.device) -> dict[str, Tensor]:
    """Return the target for torchvision's detectors: label 0 is the background.

    Difficult objects are left out.
    """
    easy = objects.select(~objects.difficult)
    return {"boxes": easy.boxes.to(device), "labels": easy.labels.to(device) + 1}


class DetectionBatches(Batches):
    """The training batches of one rank."""

    def __init__(
        self, images: tuple[AnnotatedImage, ...], fields: DataFields, seed: int, place: Place
    ) -> None:
        self.fields, self.seed, self.place = fields, seed, place
        self.scenes = SceneDataset(images, train=True, flip=fields.flip, seed=seed)
        self.count_steps(len(images))

    def read(self, epoch: int, start: int) -> Iterator[tuple[Any, int]]:
        """Yield this rank's share of each batch from step ``start`` on, and the batch's size."""
        order = self.order(epoch)
        positions = [(epoch, place, index) for place, index in enumerate(order.tolist())]
        size = self.fields.batch_size
        batches = [positions[i * size : (i + 1) * size] for i in range(start, self.steps)]
        shares = [[batch[i] for i in self.find_mine(len(batch)).tolist()] for batch in batches]
        device = self.place.device
        for batch, scenes in zip(
            batches, make_loader(self.scenes, shares, self.fields.workers), strict=True
        ):
            images = [pixels.to(device).float() / 255 for pixels, _ in scenes]
            targets = [make_target(objects, device) for _, objects in scenes]
            yield DetectionShare(images, targets), len(batch)
