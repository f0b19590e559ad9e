"""Augmentation of a batch in memory: every image has its own crop, mirror image and angle.

The choices are drawn on the CPU for the whole batch of a step; each rank applies those of its own
images. So the images that are trained on depend neither on the device nor on the number of ranks.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from trainact.errors import TrActTypeError, TrActValueError
from trainact.lab.recipe import DataFields
from trainact.lab.warp import crop_and_flip, rotate

__all__ = ["Draws", "augment", "draw_augmentation"]


@dataclass(frozen=True, eq=False)
class Draws:
    """The random choices for the N images of a batch, on the CPU.

    Attributes:
        padding: black pixels around an image before it is cropped.
        top: int64 [N], the first row of the crop, 0 to 2 ``padding``.
        left: int64 [N], the first column of the crop.
        flip: bool [N], whether left and right are exchanged.
        angle: float64 [N], degrees, anticlockwise.
    """

    padding: int
    top: Tensor
    left: Tensor
    flip: Tensor
    angle: Tensor

    def __len__(self) -> int:
        return len(self.flip)

    def select(self, indices: Tensor | slice) -> "Draws":
        """Return the choices of some of the images: a slice, or indices [M]."""
        return Draws(
            self.padding,
            self.top[indices],
            self.left[indices],
            self.flip[indices],
            self.angle[indices],
        )


def draw_augmentation(count: int, fields: DataFields, generator: torch.Generator) -> Draws:
    """Draw the choices for ``count`` images.

    Everything is drawn whatever the fields say, so that two recipes that differ in the angle have
    the same crops.

    Args:
        count: images of the whole batch, over all ranks.
        fields: which augmentation, and how much.
        generator: of the CPU; the only source of randomness.

    Raises:
        TrActValueError: the fields ask for what a batch in memory cannot have.
    """
    if fields.crop == "resized":
        raise TrActValueError(
            "data.crop='resized' needs images one by one, in their own sizes: set "
            "data.storage='stream'."
        )
    if fields.policy != "none":
        raise TrActValueError(f"data.policy={fields.policy!r} is not for batches in memory.")
    padding = fields.crop_padding if fields.crop == "pad" else 0
    top, left = torch.randint(2 * padding + 1, (2, count), generator=generator)
    flip, turn = torch.rand(2, count, generator=generator, dtype=torch.float64)
    return Draws(
        padding=padding,
        top=top,
        left=left,
        flip=(flip < 0.5) & fields.flip,
        angle=(2 * turn - 1) * fields.rotation,
    )


def augment(images: Tensor, draws: Draws) -> Tensor:
    """Crop, mirror and rotate, in this order, each image by its own draws.

    Args:
        images: [N, C, H, W], uint8, on any device.
        draws: the choices for these N images.

    Returns:
        [N, C, H, W], uint8, on the device of ``images``.

    Raises:
        TrActTypeError: the images are not uint8.
        TrActValueError: the images are not a batch of as many as there are draws.
    """
    if images.dtype != torch.uint8:
        raise TrActTypeError(f"augment takes images of uint8; got {images.dtype}.")
    if images.ndim != 4 or len(images) != len(draws):
        raise TrActValueError(
            f"augment takes images of shape [{len(draws)}, C, H, W], one for each draw; got "
            f"{list(images.shape)}."
        )
    if draws.padding or draws.flip.any():
        images = crop_and_flip(images, draws.top, draws.left, draws.flip, draws.padding)
    if draws.angle.any():
        images = rotate(images, draws.angle)
    return images
