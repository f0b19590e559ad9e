"""Images that are read one by one, cut to size and augmented, by worker processes if there are any.

What is random about an image depends on the seed, the epoch, its position in it and its index, and
on nothing else: not on the workers, nor on what was read before. No global generator is moved.
"""

import signal
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from trainact.errors import TrActValueError
from trainact.lab.augment.batch import augment, draw_augmentation
from trainact.lab.augment.pil_images import PilAugment
from trainact.lab.data.decoding import picture_to_tensor
from trainact.lab.data.images import DataError, ImageStream
from trainact.lab.randomness import make_generator, mix
from trainact.lab.recipes.recipe import DataFields
from trainact.lab.torchvision_import import import_torchvision

__all__ = ["Position", "StreamDataset", "StreamLoader", "make_loader"]

Position = tuple[int, int, int]
"""(epoch, position in the epoch, index of the image)."""

TEST_CROP = 0.875  # of the side of a test image, where training cuts parts: 224 of 256
AREA = (0.08, 1.0)  # of the image, that a random part covers
RATIO = (3 / 4, 4 / 3)  # of its width to its height


class StreamDataset(Dataset[tuple[Tensor, int]]):
    """Items are `Position`s; each gives an image, uint8 [3, S, S], and its label.

    Args:
        images: where they come from.
        fields: how training images are cropped and augmented.
        image_size: S, pixels of a side.
        train: whether images are augmented; otherwise their centres are taken.
        seed: of the augmentation.

    Raises:
        TrActValueError: there is no image size; images of a stream differ in theirs.
    """

    def __init__(
        self, images: ImageStream, fields: DataFields, image_size: int, train: bool, seed: int
    ) -> None:
        if image_size < 1:
            raise TrActValueError(
                f"images that stream need one size; got data.image_size={image_size}: set it to "
                "the pixels of a side, such as 224."
            )
        import_torchvision()  # here too, so that forked workers need not
        self.images, self.fields, self.size = images, fields, image_size
        self.train, self.seed = train, seed
        self.retouch = PilAugment(fields, image_size)
        policy = fields.policy if fields.policy == "autoaugment-cifar10" else "none"
        self.batch_fields = DataFields(
            crop="none", flip=fields.flip, rotation=fields.rotation, policy=policy
        )  # what is done to tensors; the rest is done to pictures

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, position: Position) -> tuple[Tensor, int]:
        index = position[2]
        picture = self.images.read(self.images.items[index])
        label = int(self.images.labels[index])
        if not self.train:
            usual = TEST_CROP if self.fields.crop == "resized" else 1.0
            larger = round(self.size / (self.fields.test_crop or usual))
            picture = _cut_centre(picture, larger, self.size, self.fields.interpolation)
            return picture_to_tensor(picture).contiguous(), label
        generator = make_generator(self.seed, "stream", *position)
        kind = self.fields.interpolation
        if self.fields.crop == "resized":
            picture = _cut_part(picture, self.size, mix(self.seed, "part", *position), kind)
        elif self.fields.crop == "pad":
            picture = _cut_square(picture, self.size, self.fields, generator)
        else:
            picture = _cut_centre(picture, self.size, self.size, kind)
        picture = self.retouch(picture, mix(self.seed, "retouch", *position))
        draws = draw_augmentation(1, self.batch_fields, generator)
        return augment(picture_to_tensor(picture)[None], draws)[0].contiguous(), label

    def __getitems__(self, positions: list[Position]) -> Any:
        """Return the items of a batch, or the error that one of them gave.

        As a value, an error comes out of a worker process with its own text.
        """
        try:
            return [self[position] for position in positions]
        except DataError as error:
            return error


class StreamLoader(DataLoader[Any]):
    """A loader that raises the `DataError` of an image as it was raised, also out of a worker."""

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        error = None
        for batch in super().__iter__():
            if isinstance(batch, DataError):
                error = batch
                break
            yield batch
        if error is not None:  # the workers have ended with the loop
            raise error


def make_loader(
    dataset: Dataset[Any],
    batches: list[list[Position]],
    workers: int,
    collate: Callable[[Any], Any] | None = None,
) -> StreamLoader:
    """Return a loader of exactly these batches: images, uint8 [B, 3, S, S], and labels, int64 [B].

    Args:
        dataset: gives the images.
        batches: the positions of each batch: a whole epoch's, or those that are left of it.
        workers: processes that read images; 0 to read them in this one.
        collate: makes something else than two tensors of a batch.
    """
    return StreamLoader(
        dataset,
        batch_sampler=batches,
        num_workers=workers,
        collate_fn=collate or _collate,
        generator=torch.Generator(),  # or the loader takes a number from the global one
        worker_init_fn=_leave_signals_to_the_run,
    )


def _leave_signals_to_the_run(worker: int) -> None:
    """Ignore what ends a run: it may need images until it is saved, and then ends its workers."""
    del worker
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _collate(items: Any) -> Any:
    return items if isinstance(items, DataError) else default_collate(items)


def _cut_part(picture: Any, size: int, seed: int, interpolation: str) -> Any:
    """Return a random part of a PIL image, of a random area and shape, scaled to a square."""
    import_torchvision()
    from torchvision.transforms import InterpolationMode, RandomResizedCrop
    from torchvision.transforms.functional import resized_crop

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed the GPUs too
        box = RandomResizedCrop.get_params(picture, list(AREA), list(RATIO))
    kind = InterpolationMode(interpolation)
    return resized_crop(picture, *box, size=[size, size], interpolation=kind)


def _cut_square(picture: Any, size: int, fields: DataFields, generator: torch.Generator) -> Any:
    """Scale the short side of a PIL image to ``size``, pad, and cut a random square out."""
    import_torchvision()
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms.functional import crop, pad, resize

    mode = "constant" if fields.crop_fill == "black" else "reflect"
    picture = resize(picture, [size], InterpolationMode(fields.interpolation))
    picture = pad(picture, [fields.crop_padding] * 4, padding_mode=mode)
    width, height = picture.size
    top = int(torch.randint(height - size + 1, (), generator=generator))
    left = int(torch.randint(width - size + 1, (), generator=generator))
    return crop(picture, top, left, size, size)


def _cut_centre(picture: Any, larger: int, size: int, interpolation: str) -> Any:
    """Scale the short side of a PIL image to ``larger`` and cut the middle square out."""
    import_torchvision()
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms.functional import center_crop, resize

    return center_crop(resize(picture, [larger], InterpolationMode(interpolation)), [size])
