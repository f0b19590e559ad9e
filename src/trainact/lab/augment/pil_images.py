"""Augmentation of PIL images one by one: timm's 3-Augment and RandAugment, and colour jitter.

All draws depend only on the seed of the image; the global generators are left unchanged.

3-Augment: Touvron, Cord, Jégou: DeiT III: Revenge of the ViT, 2022.
RandAugment: Cubuk, Zoph, Shlens, Le: RandAugment: Practical Automated Data Augmentation with a
Reduced Search Space, 2020; the variant of DeiT.
"""

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np

from trainact.lab.recipes.recipe import DataFields
from trainact.lab.torchvision_import import import_torchvision

__all__ = ["RAND_AUGMENT", "THREE_AUGMENT", "PilAugment"]

RAND_AUGMENT = "rand-m9-mstd0.5-inc1"
THREE_AUGMENT = "3a"
"""Their names in timm."""


class PilAugment:
    """Augments PIL images in RGB, already cropped to the training size.

    3-Augment converts an image to grey, solarises it at 128 or blurs it with a radius of 0.1 to 2
    pixels, with equal probability. Colour jitter multiplies brightness, contrast and saturation, in
    a random order, by factors from 1 - ``colour_jitter`` to 1 + ``colour_jitter``. RandAugment's
    shifts are relative to ``image_size``, the pixels per side.
    """

    def __init__(self, fields: DataFields, image_size: int) -> None:
        self.policy, self.jitter = _make_policy(fields, image_size), fields.colour_jitter

    def __call__(self, picture: Any, seed: int) -> Any:
        """Return the augmented image, drawn with ``seed``."""
        with _seed_globally(seed):
            if self.policy is not None:
                picture = self.policy(picture)
            return _jitter(picture, self.jitter) if self.jitter else picture


def _jitter(picture: Any, largest: float) -> Any:
    from PIL import ImageEnhance

    kinds = [ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color]
    random.shuffle(kinds)
    for kind in kinds:
        picture = kind(picture).enhance(random.uniform(1 - largest, 1 + largest))
    return picture


def _make_policy(fields: DataFields, image_size: int) -> Any:
    """Return timm's transform for the policy of single images; None if there is none."""
    if fields.policy not in ("three-augment", "rand-augment"):
        return None
    import_torchvision()
    from timm.data.auto_augment import auto_augment_transform

    if fields.policy == "three-augment":
        return auto_augment_transform(THREE_AUGMENT)
    return _make_rand_augment(fields, image_size)


def _make_rand_augment(fields: DataFields, image_size: int) -> Any:
    """Return timm's transform, which fills uncovered pixels with the mean colour, or grey."""
    from PIL import Image
    from timm.data.auto_augment import rand_augment_transform

    mean = fields.mean if len(fields.mean) == 3 else (0.5, 0.5, 0.5)
    is_bilinear = fields.interpolation == "bilinear"
    kind = Image.Resampling.BILINEAR if is_bilinear else Image.Resampling.BICUBIC
    transform = rand_augment_transform(
        RAND_AUGMENT,
        {
            "translate_const": int(image_size * 0.45),
            "img_mean": tuple(min(255, round(255 * value)) for value in mean),
            "interpolation": kind,
        },
    )
    for operation in transform.ops:
        if operation.name.startswith("Posterize"):
            operation.aug_fn = _posterize
    return transform


def _posterize(picture: Any, bits: int, **options: Any) -> Any:
    """Keep the highest bits of each value; with 0 bits, which PIL may refuse, return black."""
    from PIL import Image, ImageOps

    del options
    if bits < 1:
        return Image.new("RGB", picture.size)
    return ImageOps.posterize(picture, bits) if bits < 8 else picture


@contextlib.contextmanager
def _seed_globally(seed: int) -> Iterator[None]:
    """Seed the global generators of Python and NumPy, which timm uses, and restore them."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        random.seed(seed)
        np.random.seed(seed % 2**32)
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
