"""Images that are decoded, cropped and augmented one by one, by worker processes if there are any.

Augmentation depends only on the seed, the epoch, the image's position in it and its index: not on
the workers or on earlier images. Global random generators are not used.
"""

import signal
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from trainact.errors import TrActValueError
from trainact.lab.augment.batch import (
    POLICIES,
    alternate_flips,
    augment,
    draw_augmentation,
    draw_mirrored,
)
from trainact.lab.augment.pil_images import PilAugment
from trainact.lab.data.decoding import picture_to_tensor
from trainact.lab.data.images import DataError, ImageStream
from trainact.lab.randomness import make_generator, mix
from trainact.lab.recipes.recipe import DataFields
from trainact.lab.torchvision_import import import_torchvision

__all__ = ["Position", "PositionDataset", "StreamDataset", "StreamLoader", "make_loader"]

Position = tuple[int, int, int]
"""(epoch, position in the epoch, index of the image)."""

TEST_CROP = 0.875  # part of a test image's side, if training crops are resized: 224 of 256
AREA = (0.08, 1.0)  # part of the image that a random crop covers
RATIO = (3 / 4, 4 / 3)  # width to height of a random crop


class PositionDataset(Dataset[Any]):
    """A data set indexed by `Position`; a batch may be the `DataError` of one of its items."""

    def __getitems__(self, positions: list[Position]) -> Any:
        """Return the items of a batch, or the error of one of them.

        An error that a worker process returns, rather than raises, keeps its type and text.
        """
        try:
            return [self[position] for position in positions]
        except DataError as error:
            return error

    def collate(self, items: Any) -> Any:
        """Return the batch of some items; by default a list."""
        return items


class StreamDataset(PositionDataset):
    """Images, uint8 [3, S, S] with S = ``image_size``, and their labels.

    With ``train`` they are cropped and augmented at random, otherwise their centres are cropped.

    Raises:
        TrActValueError: ``image_size`` is not positive.
    """

    def __init__(
        self, images: ImageStream, fields: DataFields, image_size: int, train: bool, seed: int
    ) -> None:
        if image_size < 1:
            raise TrActValueError(
                f"streamed images need one size; got data.image_size={image_size}: set it to the "
                "pixels of a side, such as 224."
            )
        import_torchvision()  # before workers are forked
        self.images, self.fields, self.size = images, fields, image_size
        self.train, self.seed = train, seed
        self.mirrored = None
        if fields.flip and fields.flip_order == "alternating":
            self.mirrored = draw_mirrored(len(images), seed)
        self.augment_pil = PilAugment(fields, image_size)
        self.batch_fields = DataFields(
            crop="none",
            flip=fields.flip,
            rotation=fields.rotation,
            policy=fields.policy if fields.policy in POLICIES else "none",
            augment_fill=fields.augment_fill,
        )  # the augmentation of tensors; the rest is applied to PIL images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, position: Position) -> tuple[Tensor, int]:
        index = position[2]
        picture = self.images.read(self.images.items[index])
        label = int(self.images.labels[index])
        if not self.train:
            usual = TEST_CROP if self.fields.crop == "resized" else 1.0
            larger = round(self.size / (self.fields.test_crop or usual))
            picture = _crop_centre(picture, larger, self.size, self.fields.interpolation)
            return picture_to_tensor(picture).contiguous(), label
        generator = make_generator(self.seed, "stream", *position)
        kind = self.fields.interpolation
        if self.fields.crop == "resized":
            picture = _crop_resized(picture, self.size, mix(self.seed, "part", *position), kind)
        elif self.fields.crop == "pad":
            picture = _crop_padded(picture, self.size, self.fields, generator)
        else:
            picture = _crop_centre(picture, self.size, self.size, kind)
        picture = self.augment_pil(picture, mix(self.seed, "retouch", *position))
        draws = draw_augmentation(1, self.batch_fields, generator)
        if self.mirrored is not None:
            draws = alternate_flips(draws, self.mirrored[index, None], position[0])
        return augment(picture_to_tensor(picture)[None], draws)[0].contiguous(), label

    def collate(self, items: Any) -> Any:
        """Return images, uint8 [B, 3, S, S], and labels, int64 [B]."""
        return items if isinstance(items, DataError) else default_collate(items)


class StreamLoader(DataLoader[Any]):
    """A loader that raises the `DataError` of an image unchanged, even from a worker process."""

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        error = None
        for batch in super().__iter__():
            if isinstance(batch, DataError):
                error = batch
                break
            yield batch
        if error is not None:  # after the loop, which ends the workers
            raise error


def make_loader(
    dataset: PositionDataset,
    batches: list[list[Position]],
    workers: int,
) -> StreamLoader:
    """Return a loader of the given batches; with 0 workers, this process reads the images."""
    return StreamLoader(
        dataset,
        batch_sampler=batches,
        num_workers=workers,
        collate_fn=dataset.collate,
        generator=torch.Generator(),  # else the global generator is used
        worker_init_fn=_ignore_signals,
    )


def _ignore_signals(worker: int) -> None:
    """Ignore Ctrl-C and SIGTERM: the run needs its workers until it is saved, then ends them."""
    del worker
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _crop_resized(picture: Any, size: int, seed: int, interpolation: str) -> Any:
    """Crop a random area of a PIL image and resize it to a square."""
    import_torchvision()
    from torchvision.transforms import RandomResizedCrop
    from torchvision.transforms.functional import InterpolationMode, resized_crop

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed the GPUs too
        box = RandomResizedCrop.get_params(picture, list(AREA), list(RATIO))
    kind = InterpolationMode(interpolation)
    return resized_crop(picture, *box, size=[size, size], interpolation=kind)


def _crop_padded(picture: Any, size: int, fields: DataFields, generator: torch.Generator) -> Any:
    """Resize the short side of a PIL image to ``size``, pad it, and crop a random square."""
    import_torchvision()
    from torchvision.transforms.functional import InterpolationMode, crop, pad, resize

    mode = "constant" if fields.crop_fill == "black" else "reflect"
    picture = resize(picture, [size], InterpolationMode(fields.interpolation))
    picture = pad(picture, [fields.crop_padding] * 4, padding_mode=mode)
    width, height = picture.size
    top = int(torch.randint(height - size + 1, (), generator=generator))
    left = int(torch.randint(width - size + 1, (), generator=generator))
    return crop(picture, top, left, size, size)


def _crop_centre(picture: Any, larger: int, size: int, interpolation: str) -> Any:
    """Resize the short side of a PIL image to ``larger`` and crop the central square."""
    import_torchvision()
    from torchvision.transforms.functional import InterpolationMode, center_crop, resize

    return center_crop(resize(picture, [larger], InterpolationMode(interpolation)), [size])
