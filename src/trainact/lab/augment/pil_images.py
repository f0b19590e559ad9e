"""Augmentation of PIL images one by one: 3-Augment, RandAugment and colour jitter.

All draws depend only on the seed of the image; the global generators are left unchanged.

3-Augment: Touvron, Cord, Jégou: DeiT III: Revenge of the ViT, 2022.
RandAugment: Cubuk, Zoph, Shlens, Le: RandAugment: Practical Automated Data Augmentation with a
Reduced Search Space, 2020; the variant of DeiT, ``rand-m9-mstd0.5-inc1`` in timm.
"""

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np

from trainact.lab.recipes.recipe import DataFields
from trainact.lab.torchvision_import import import_torchvision

__all__ = ["BLUR_RADII", "RAND_AUGMENT", "PilAugment"]

BLUR_RADII = (0.1, 2.0)  # pixels
RAND_AUGMENT = "rand-m9-mstd0.5-inc1"


class PilAugment:
    """Augments PIL images in RGB, already cropped to the training size.

    3-Augment converts an image to grey, solarises it at 128 or blurs it, with equal probability.
    Colour jitter multiplies brightness, contrast and saturation, in a random order, by factors from
    1 - ``colour_jitter`` to 1 + ``colour_jitter``. RandAugment's shifts are relative to
    ``image_size``, the pixels per side.
    """

    def __init__(self, fields: DataFields, image_size: int) -> None:
        self.policy, self.jitter = fields.policy, fields.colour_jitter
        self.rand_augment: Any = None
        if self.policy == "rand-augment":
            self.rand_augment = _make_rand_augment(fields, image_size)

    def __call__(self, picture: Any, seed: int) -> Any:
        """Return the augmented image, drawn with ``seed``."""
        draw = random.Random(seed)
        if self.policy == "three-augment":
            picture = _change_one_of_three(picture, draw)
        if self.rand_augment is not None:
            with _seed_globally(seed):
                picture = self.rand_augment(picture)
        return _jitter(picture, self.jitter, draw) if self.jitter else picture


def _change_one_of_three(picture: Any, draw: random.Random) -> Any:
    from PIL import ImageFilter, ImageOps

    kind = draw.choice(("grey", "solarise", "blur"))
    if kind == "grey":
        return picture.convert("L").convert("RGB")
    if kind == "solarise":
        return ImageOps.solarize(picture)
    return picture.filter(ImageFilter.GaussianBlur(draw.uniform(*BLUR_RADII)))


def _jitter(picture: Any, largest: float, draw: random.Random) -> Any:
    from PIL import ImageEnhance

    kinds = [ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color]
    draw.shuffle(kinds)
    for kind in kinds:
        picture = kind(picture).enhance(draw.uniform(1 - largest, 1 + largest))
    return picture


def _make_rand_augment(fields: DataFields, image_size: int) -> Any:
    """Return timm's transform, which fills uncovered pixels with the mean colour, or grey."""
    import_torchvision()
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
