"""AutoAugment for a batch of images, with the policy of Cubuk et al. (2019) for CIFAR-10.

Each image gets one of 25 pairs of operations. Each operation of the pair is applied with its own
probability and, if it has a direction, with a random sign. Magnitudes are steps from 0 to 9.

The operations are those of torchvision (`OPERATIONS`), or those of the repository ViT-CIFAR
(`UPSTREAM_OPERATIONS`), which the paper's vision transformer for CIFAR-10 comes from: there images
always rotate anticlockwise, shears interpolate cubically, shifts are rounded instead of truncated,
and the thresholds of solarisation begin at 256 instead of 255. Upstream fills uncovered pixels with
grey; this is a field of the recipe, ``data.augment_fill``.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from trainact.errors import TrActValueError
from trainact.lab.augment import colour, warp

__all__ = [
    *("CIFAR10_POLICY", "OPERATIONS", "UPSTREAM_OPERATIONS", "Operation"),
    *("apply_policy", "find_probabilities"),
]

LARGEST_SHIFT = 150 / 331  # of the side; 150 of 331 pixels in the paper


class Operation(NamedTuple):
    """A function of images [N, C, H, W] and steps [N], -9 to 9, and whether it has a direction.

    One that moves pixels also takes the value of uncovered ones, 0 by default.
    """

    apply: Callable[..., Tensor]
    has_direction: bool
    moves_pixels: bool = False


def _shift(images: Tensor, axis: int, step: Tensor) -> Tensor:
    """Return the pixels [N] by which images [N, C, H, W] move along ``axis``."""
    return LARGEST_SHIFT * images.shape[axis] * step / 9


OPERATIONS: dict[str, Operation] = {
    "shear x": Operation(
        lambda images, step, fill=0: warp.shear_x(images, 0.3 * step / 9, fill), True, True
    ),
    "shear y": Operation(
        lambda images, step, fill=0: warp.shear_y(images, 0.3 * step / 9, fill), True, True
    ),
    "translate x": Operation(
        lambda images, step, fill=0: warp.translate_x(images, _shift(images, 3, step), fill),
        True,
        True,
    ),
    "translate y": Operation(
        lambda images, step, fill=0: warp.translate_y(images, _shift(images, 2, step), fill),
        True,
        True,
    ),
    "rotate": Operation(
        lambda images, step, fill=0: warp.rotate(images, 30 * step / 9, fill), True, True
    ),
    "brightness": Operation(colour.adjust_brightness, True),
    "colour": Operation(colour.adjust_colour, True),
    "contrast": Operation(colour.adjust_contrast, True),
    "sharpness": Operation(colour.adjust_sharpness, True),
    "posterize": Operation(
        lambda images, step: colour.posterize(images, 8 - torch.round(4 * step / 9).long()), False
    ),
    "solarize": Operation(
        lambda images, step: colour.solarize(images, 255 * (9 - step) / 9), False
    ),
    "autocontrast": Operation(lambda images, _: colour.stretch_contrast(images), False),
    "equalize": Operation(lambda images, _: colour.equalize(images), False),
    "invert": Operation(lambda images, _: colour.invert(images), False),
}

UPSTREAM_OPERATIONS: dict[str, Operation] = OPERATIONS | {
    "shear x": Operation(
        lambda images, step, fill=0: warp.shear_x_cubic(images, 0.3 * step.double() / 9, fill),
        True,
        True,
    ),
    "shear y": Operation(
        lambda images, step, fill=0: warp.shear_y_cubic(images, 0.3 * step.double() / 9, fill),
        True,
        True,
    ),
    "translate x": Operation(
        lambda images, step, fill=0: warp.translate_x(
            images, _shift(images, 3, step).round(), fill
        ),
        True,
        True,
    ),
    "translate y": Operation(
        lambda images, step, fill=0: warp.translate_y(
            images, _shift(images, 2, step).round(), fill
        ),
        True,
        True,
    ),
    "rotate": OPERATIONS["rotate"]._replace(has_direction=False),
    "solarize": Operation(
        lambda images, step: colour.solarize(images, 256 * (9 - step) / 9), False
    ),
}
"""The operations of the repository ViT-CIFAR; those of colour equal torchvision's."""

Choice = tuple[str, float, int]
"""An operation, its probability and its step; the step is 0 if the operation has none."""

CIFAR10_POLICY: tuple[tuple[Choice, Choice], ...] = (
    (("invert", 0.1, 0), ("contrast", 0.2, 6)),
    (("rotate", 0.7, 2), ("translate x", 0.3, 9)),
    (("sharpness", 0.8, 1), ("sharpness", 0.9, 3)),
    (("shear y", 0.5, 8), ("translate y", 0.7, 9)),
    (("autocontrast", 0.5, 0), ("equalize", 0.9, 0)),
    (("shear y", 0.2, 7), ("posterize", 0.3, 7)),
    (("colour", 0.4, 3), ("brightness", 0.6, 7)),
    (("sharpness", 0.3, 9), ("brightness", 0.7, 9)),
    (("equalize", 0.6, 0), ("equalize", 0.5, 0)),
    (("contrast", 0.6, 7), ("sharpness", 0.6, 5)),
    (("colour", 0.7, 7), ("translate x", 0.5, 8)),
    (("equalize", 0.3, 0), ("autocontrast", 0.4, 0)),
    (("translate y", 0.4, 3), ("sharpness", 0.2, 6)),
    (("brightness", 0.9, 6), ("colour", 0.2, 8)),
    (("solarize", 0.5, 2), ("invert", 0.0, 0)),
    (("equalize", 0.2, 0), ("autocontrast", 0.6, 0)),
    (("equalize", 0.2, 0), ("equalize", 0.6, 0)),
    (("colour", 0.9, 9), ("equalize", 0.6, 0)),
    (("autocontrast", 0.8, 0), ("solarize", 0.2, 8)),
    (("brightness", 0.1, 3), ("colour", 0.7, 0)),
    (("solarize", 0.4, 5), ("autocontrast", 0.9, 0)),
    (("translate y", 0.9, 9), ("translate y", 0.7, 9)),
    (("autocontrast", 0.9, 0), ("solarize", 0.8, 3)),
    (("equalize", 0.8, 0), ("invert", 0.1, 0)),
    (("translate y", 0.7, 9), ("autocontrast", 0.9, 0)),
)


def find_probabilities(pair: Tensor) -> Tensor:
    """Return the probabilities [N, 2] of the two operations of pairs [N] of the policy."""
    return torch.tensor([[chance for _, chance, _ in row] for row in CIFAR10_POLICY])[pair]


def apply_policy(
    images: Tensor,
    pair: Tensor,
    applied: Tensor,
    negative: Tensor,
    operations: Mapping[str, Operation] = OPERATIONS,
    fill: int = 0,
) -> Tensor:
    """Apply to each of the images [N, C, H, W], uint8, its pair of operations.

    All images of one operation are processed together. ``pair`` [N], ``applied`` [N, 2] and
    ``negative`` [N, 2] are those of `Draws`, on the CPU. Uncovered pixels get the value ``fill``.

    Raises:
        TrActValueError: the images have neither one channel nor three.
    """
    if images.shape[1] not in (1, 3):
        raise TrActValueError(
            f"AutoAugment takes images with 1 or 3 channels; got {images.shape[1]}: set "
            "data.policy='none'."
        )
    names = list(operations)
    numbers = torch.tensor([[names.index(name) for name, _, _ in row] for row in CIFAR10_POLICY])
    steps = torch.tensor([[step for _, _, step in row] for row in CIFAR10_POLICY])
    images = images.clone()
    for half in range(2):
        number = torch.where(applied[:, half], numbers[pair, half], -1)
        step = steps[pair, half]
        signed = torch.where(negative[:, half], -step, step)
        for i, operation in enumerate(operations.values()):
            chosen = torch.nonzero(number == i).squeeze(1)
            if len(chosen):
                where = chosen.to(images.device)
                amount = (signed if operation.has_direction else step)[chosen]
                filling = (fill,) if operation.moves_pixels else ()
                images[where] = operation.apply(images[where], amount, *filling)
    return images
