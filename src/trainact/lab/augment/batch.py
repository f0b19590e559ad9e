"""Augmentation of a batch in memory: each image has its own crop, angle and operations.

The random choices are drawn on the CPU for the whole batch of a step, and each rank applies those
of its own images. The result depends neither on the device nor on the number of ranks.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trainact.errors import TrActTypeError, TrActValueError
from trainact.lab.augment.autoaugment import (
    CIFAR10_POLICY,
    OPERATIONS,
    UPSTREAM_OPERATIONS,
    Operation,
    apply_policy,
    find_probabilities,
)
from trainact.lab.augment.warp import crop_and_flip, rotate
from trainact.lab.randomness import make_generator
from trainact.lab.recipes.recipe import DataFields

__all__ = [
    *("POLICIES", "Draws", "alternate_flips", "augment"),
    *("draw_augmentation", "draw_mirrored"),
]

POLICIES: dict[str, dict[str, Operation]] = {
    "autoaugment-cifar10": OPERATIONS,
    "autoaugment-cifar10-upstream": UPSTREAM_OPERATIONS,
}
"""The operations of each ``data.policy`` that takes batches; the others take single images."""
FILLS = {"black": 0, "grey": 128}
"""The value of uncovered pixels, by ``data.augment_fill``."""


@dataclass(frozen=True, eq=False)
class Draws:
    """The random choices for the N images of a batch, on the CPU."""

    padding: int  # pixels around an image before it is cropped
    policy: str  # data.policy
    fill: int  # value of the pixels that rotation and policy uncover
    top: Tensor  # int64 [N], the first row of the crop, 0 to 2 padding
    left: Tensor  # int64 [N], the first column of the crop
    flip: Tensor  # bool [N], whether the image is flipped horizontally
    angle: Tensor  # float64 [N], degrees, anticlockwise
    pair: Tensor  # int64 [N], the image's row of the AutoAugment policy
    applied: Tensor  # bool [N, 2], which operations of the row are applied; none without a policy
    negative: Tensor  # bool [N, 2], which of them have a negative sign, if they have a direction
    reflect: bool = False  # whether the padding is reflected, not black

    def __len__(self) -> int:
        return len(self.flip)

    def select(self, indices: Tensor | slice) -> "Draws":
        """Return the choices of some of the images: a slice, or indices [M]."""
        chosen: dict[str, Any] = {
            name: value[indices] for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        return dataclasses.replace(self, **chosen)


def draw_augmentation(count: int, fields: DataFields, generator: torch.Generator) -> Draws:
    """Draw the choices for ``count`` images, those of all ranks, with a CPU generator.

    All choices are always drawn, so two recipes that differ in the policy have the same crops.

    Raises:
        TrActValueError: a field needs images that are read one by one.
    """
    if single := fields.find_single():
        raise TrActValueError(
            f"{single} needs images that are read one by one: set data.storage='stream'."
        )
    padding = fields.crop_padding if fields.crop == "pad" else 0
    top, left = torch.randint(2 * padding + 1, (2, count), generator=generator)
    flip, turn = torch.rand(2, count, generator=generator, dtype=torch.float64)
    pair = torch.randint(len(CIFAR10_POLICY), (count,), generator=generator)
    chance, sign = torch.rand(2, count, 2, generator=generator)
    return Draws(
        padding=padding,
        policy=fields.policy,
        fill=FILLS[fields.augment_fill],
        top=top,
        left=left,
        flip=(flip < 0.5) & fields.flip,
        angle=(2 * turn - 1) * fields.rotation,
        pair=pair,
        applied=(chance < find_probabilities(pair)) & (fields.policy in POLICIES),
        negative=sign < 0.5,
        reflect=fields.crop_fill == "reflect",
    )


def draw_mirrored(count: int, seed: int) -> Tensor:
    """Draw which of ``count`` training images alternating flips mirror in the first epoch, [N]."""
    return torch.rand(count, generator=make_generator(seed, "mirrored")) < 0.5


def alternate_flips(draws: Draws, mirrored: Tensor, epoch: int) -> Draws:
    """Return the draws with alternating flips.

    ``mirrored`` [N] says which of these images are mirrored in the first epoch, which has number 0;
    in every odd epoch the others are.
    """
    return dataclasses.replace(draws, flip=mirrored ^ (epoch % 2 == 1))


def augment(images: Tensor, draws: Draws) -> Tensor:
    """Crop, flip and rotate images [N, C, H, W], uint8, and apply the policy, in this order.

    Raises:
        TrActTypeError: the images are not uint8.
        TrActValueError: the numbers of images and draws differ, or the policy does not accept the
            number of channels.
    """
    if images.dtype != torch.uint8:
        raise TrActTypeError(f"augment takes images of uint8; got {images.dtype}.")
    if images.ndim != 4 or len(images) != len(draws):
        raise TrActValueError(
            f"augment takes images of shape [{len(draws)}, C, H, W], one for each draw; got "
            f"{list(images.shape)}."
        )
    if draws.padding or draws.flip.any():
        places = draws.top, draws.left, draws.flip, draws.padding
        images = crop_and_flip(images, *places, reflect=draws.reflect)
    if draws.angle.any():
        images = rotate(images, draws.angle, draws.fill)
    if draws.applied.any():
        images = apply_policy(
            images,
            draws.pair,
            draws.applied,
            draws.negative,
            POLICIES[draws.policy],
            draws.fill,
        )
    return images
