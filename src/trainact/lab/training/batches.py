"""Batches of images: their order, each rank's share, augmentation and normalisation.

Random choices depend on the seed, the epoch and the position in it, not on earlier choices or on
the number of ranks. A run can therefore resume at any batch of any epoch.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trainact.errors import TrActValueError
from trainact.lab.augment.batch import (
    alternate_flips,
    augment,
    draw_augmentation,
    draw_mirrored,
)
from trainact.lab.augment.mixing import draw_mixture, mix_images, mix_labels, share_groups
from trainact.lab.data.images import ImageData, Images, ImageStream, ImageTensor, Standard
from trainact.lab.randomness import make_generator
from trainact.lab.recipes.recipe import DataFields
from trainact.lab.training.stream import StreamDataset, make_loader

__all__ = ["Batches", "EvaluationBatches", "Place", "Share", "measure_standard"]

EVALUATION_BATCH = 500
MEASURED_IMAGES = 512
"""Images of a stream that its mean and standard deviation are estimated from."""


class Share(NamedTuple):
    """The network's input [N, C, H, W] and the labels, int64 [N].

    The labels of mixed images are the share of each class, float32 [N, classes].
    """

    images: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Place:
    """The rank of this process, the number of ranks, and the device."""

    rank: int
    ranks: int
    device: torch.device


def measure_standard(data: ImageData, fields: DataFields) -> Standard:
    """Return the recipe's mean and standard deviation, or else those of the training images."""
    if fields.mean:
        return Standard(fields.mean, fields.std)
    if isinstance(data.train, ImageTensor):
        pixels = data.train.images
    else:
        chosen = torch.randperm(len(data.train), generator=make_generator("standard"))
        part = data.train.select(chosen[:MEASURED_IMAGES])
        dataset = StreamDataset(part, fields, fields.image_size, train=False, seed=0)
        pixels = torch.stack([dataset[0, i, i][0] for i in range(len(part))])
    channels = pixels.transpose(0, 1).flatten(1)
    means, deviations = [], []
    for channel in channels:
        counts = torch.bincount(channel, minlength=256).double() / channel.numel()
        levels = torch.arange(256, dtype=torch.float64) / 255
        mean = float((counts * levels).sum())
        means.append(mean)
        deviations.append(max(float((counts * (levels - mean) ** 2).sum().sqrt()), 1e-3))
    return Standard(tuple(means), tuple(deviations))


class Batches:
    """The training batches of one rank; ``images`` are those of all ranks.

    ``seed`` is that of the order and the augmentation; mixup and cutmix need ``num_classes``.
    """

    mixes = False

    def __init__(
        self,
        images: Images,
        fields: DataFields,
        standard: Standard,
        seed: int,
        place: Place,
        num_classes: int = 0,
    ) -> None:
        self.num_classes, self.mixes = num_classes, bool(fields.mixup or fields.cutmix)
        self.fields, self.seed, self.place = fields, seed, place
        self.labels = images.labels
        self.normalise = _Normaliser(fields, standard, place.device)
        self.stream = None
        self.mirrored = None  # bool [N], which images alternating flips mirror first
        if fields.flip and fields.flip_order == "alternating":
            self.mirrored = draw_mirrored(len(images), seed)
        if isinstance(images, ImageStream):
            self.stream = StreamDataset(images, fields, fields.image_size, train=True, seed=seed)
        else:
            self.images = images.images.to(place.device)
        self.count_steps(len(images))

    def count_steps(self, count: int) -> None:
        """Set the steps of an epoch of ``count`` images and the size of its smallest batch."""
        fields = self.fields
        whole, rest = divmod(count, fields.batch_size)
        self.count = count
        self.steps = whole + (1 if rest and not fields.drop_last else 0)
        if not self.steps:
            raise TrActValueError(
                f"{count} training images do not fill one batch of {fields.batch_size}, and "
                "data.drop_last is true; set a smaller data.batch_size."
            )
        self.smallest = fields.batch_size if fields.drop_last or not rest else rest

    @property
    def smallest_share(self) -> int:
        """Return the smallest number of images on a rank, or of pairs if images are mixed."""
        return self.smallest // (self.place.ranks * (2 if self.mixes else 1))

    def order(self, epoch: int) -> Tensor:
        """Return the order [N] of the images in an epoch.

        With ``data.repeats`` each image is repeated that many times in a row, and the order is cut
        to the same length.
        """
        generator = make_generator(self.seed, "order", epoch)
        shuffled = torch.randperm(self.count, generator=generator)
        return shuffled.repeat_interleave(self.fields.repeats)[: len(shuffled)]

    def read(self, epoch: int, start: int) -> Iterator[tuple[Any, int]]:
        """Yield this rank's share of each batch from step ``start`` on, and the batch's size."""
        batches = self.order(epoch).split(self.fields.batch_size)[: self.steps]
        if self.stream is None:
            for step in range(start, self.steps):
                yield self._augment_share(epoch, step, batches[step]), len(batches[step])
            return
        shares = []
        for step in range(start, self.steps):
            mine, first = self.find_mine(len(batches[step])), step * self.fields.batch_size
            pairs = zip((first + mine).tolist(), batches[step][mine].tolist(), strict=True)
            shares.append([(epoch, position, index) for position, index in pairs])
        loader = make_loader(self.stream, shares, self.fields.workers)
        for step, (pixels, labels) in zip(range(start, self.steps), loader, strict=True):
            share = Share(self.normalise(pixels.to(self.place.device)), labels)
            yield self._mix(epoch, step, share, len(batches[step])), len(batches[step])

    def _augment_share(self, epoch: int, step: int, batch: Tensor) -> Share:
        generator = make_generator(self.seed, "augment", epoch, step)
        draws = draw_augmentation(len(batch), self.fields, generator)
        if self.mirrored is not None:
            draws = alternate_flips(draws, self.mirrored[batch], epoch)
        mine = self.find_mine(len(batch))
        indices = batch[mine].to(self.place.device)
        pixels = augment(self.images[indices], draws.select(mine))
        share = Share(self.normalise(pixels), self.labels[batch[mine]])
        return self._mix(epoch, step, share, len(batch))

    def find_mine(self, count: int) -> Tensor:
        """Return the positions [M] of this rank's images in a batch of ``count``."""
        if self.mixes:
            return torch.cat([indices for _, indices in self._find_groups(count)])
        return torch.arange(count).tensor_split(self.place.ranks)[self.place.rank]

    def _find_groups(self, count: int) -> list[tuple[int, Tensor]]:
        """Return the groups of this rank's images that are mixed, in a batch of ``count``."""
        return share_groups(count, self.place.rank, self.place.ranks, self.fields.mixing_batch)

    def _mix(self, epoch: int, step: int, share: Share, count: int) -> Share:
        """Apply mixup and cutmix if the recipe has them; move the labels to the device.

        ``count`` is the number of images of the whole batch.
        """
        share = Share(share.images, share.labels.to(self.place.device))
        if not self.mixes:
            return share
        height, width = share.images.shape[2:]
        groups, place = self._find_groups(count), (self.seed, "mixing", epoch, step)
        sizes = [len(indices) for _, indices in groups]
        mixed = []
        for (number, _), images, labels in zip(
            groups, share.images.split(sizes), share.labels.split(sizes), strict=True
        ):
            group = (number,) if self.fields.mixing_batch else ()
            mixture = draw_mixture(self.fields, height, width, *place, *group)
            targets = mix_labels(labels, self.num_classes, mixture)
            mixed.append(Share(mix_images(images, mixture), targets))
        return mixed[0] if len(mixed) == 1 else Share(*map(torch.cat, zip(*mixed, strict=True)))

    def hash_order(self, epoch: int, before: str) -> str:
        """Return a digest of this epoch's order and of ``before``, that of the earlier epochs."""
        return hashlib.sha256(before.encode() + self.order(epoch).numpy().tobytes()).hexdigest()


class EvaluationBatches:
    """The test images of one rank, in batches."""

    def __init__(
        self, images: Images, fields: DataFields, standard: Standard, place: Place
    ) -> None:
        self.place, self.fields = place, fields
        self.normalise = _Normaliser(fields, standard, place.device)
        mine = torch.arange(len(images)).tensor_split(place.ranks)[place.rank]
        self.images = images.select(mine)

    def read(self) -> Iterator[Share]:
        """Yield each image once."""
        size, device = EVALUATION_BATCH, self.place.device
        if isinstance(self.images, ImageTensor):
            for pixels, labels in zip(
                self.images.images.split(size), self.images.labels.split(size), strict=True
            ):
                yield Share(self.normalise(pixels.to(device)), labels.to(device))
            return
        dataset = StreamDataset(self.images, self.fields, self.fields.image_size, False, 0)
        positions = [(0, i, i) for i in range(len(self.images))]
        batches = [positions[i : i + size // 4] for i in range(0, len(positions), size // 4)]
        for pixels, labels in make_loader(dataset, batches, self.fields.workers):
            yield Share(self.normalise(pixels.to(device)), labels.to(device))


class _Normaliser:
    """Converts uint8 images to the recipe's range: standardised, [0, 1], or [0, 255]."""

    def __init__(self, fields: DataFields, standard: Standard, device: torch.device) -> None:
        self.values = fields.values
        self.mean = torch.tensor(standard.mean, device=device)[:, None, None] * 255
        self.factor = 1 / (torch.tensor(standard.std, device=device)[:, None, None] * 255)

    def __call__(self, pixels: Tensor) -> Tensor:
        match self.values:
            case "raw":
                return pixels.float()
            case "unit":
                return pixels.float() / 255
        if pixels.shape[1] != len(self.mean):
            raise TrActValueError(
                f"data.mean has {len(self.mean)} channels, the images have {pixels.shape[1]}."
            )
        return (pixels.float() - self.mean) * self.factor
