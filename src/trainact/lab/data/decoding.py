"""Decode image files with PIL: bytes to RGB pixels, at their own size or a given one."""

import io
from typing import Any

import torch
from torch import Tensor

from trainact.lab.data.images import DataError

__all__ = ["fit_picture", "open_picture", "picture_to_tensor", "tensor_to_picture"]

NARROWEST = 2000
"""Largest ratio of an image's sides; a narrower one, scaled to a usual size, fills the memory."""
REMEDY = (
    "Delete or replace it; a run that was started with it must then be started again in another "
    "folder, because its images are no longer the same."
)


def open_picture(encoded: bytes, name: str) -> Any:
    """Return the PIL image in RGB: the first frame, without the rotation of its EXIF data.

    ``encoded`` is an image file in any format that PIL reads; ``name`` is for error messages.

    Raises:
        DataError: the bytes are not a complete image.
    """
    from PIL import Image, UnidentifiedImageError

    if not encoded:
        raise DataError(f"{name} is empty (0 bytes). {REMEDY}")
    try:
        with Image.open(io.BytesIO(encoded)) as picture:
            if not 0 < max(picture.size) <= NARROWEST * min(picture.size):
                raise ValueError(f"{picture.width} x {picture.height} pixels are too narrow")
            return _convert_to_rgb(picture, name)
    except DataError:
        raise
    except UnidentifiedImageError as error:
        raise DataError(f"{name} is not an image that PIL can read. {REMEDY}") from error
    except Exception as error:  # PIL's readers raise almost anything for damaged files
        raise DataError(
            f"{name} cannot be read as an image ({type(error).__name__}: {error}). It may be "
            f"truncated. {REMEDY}"
        ) from error


def fit_picture(picture: Any, size: int) -> Any:
    """Return the centre crop of a PIL image whose short side is scaled to ``size``.

    Every pixel equals that of torchvision's ``resize`` (bilinear, with antialiasing) and
    ``center_crop``, so images in memory equal the test images of a stream.
    """
    from PIL import Image

    if picture.size == (size, size):
        return picture
    short = min(picture.size)
    width, height = (int(size * side / short) for side in picture.size)
    left, top = round((width - size) / 2), round((height - size) / 2)
    scaled = picture.resize((width, height), Image.Resampling.BILINEAR)
    return scaled.crop((left, top, left + size, top + size))


def picture_to_tensor(picture: Any) -> Tensor:
    """Return the pixels of a PIL image in RGB, uint8 [3, H, W]."""
    width, height = picture.size
    pixels = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8)
    return pixels.reshape(height, width, 3).permute(2, 0, 1)


def tensor_to_picture(pixels: Tensor) -> Any:
    """Return the PIL image in RGB of grey or RGB pixels, uint8 [1, H, W] or [3, H, W]."""
    from PIL import Image

    return Image.fromarray(pixels.expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy())


def _convert_to_rgb(picture: Any, name: str) -> Any:
    """Return the image in RGB: transparency is dropped, 16-bit grey keeps its high byte."""
    import numpy as np
    from PIL import Image

    if picture.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8)).convert("RGB")
    if picture.mode in {"I", "F"}:
        raise DataError(
            f"{name} has grey values of 32 bits (PIL mode {picture.mode}) of unknown range. Save "
            "it with 8 bits per channel."
        )
    if picture.mode == "P":
        picture = picture.convert("RGBA")  # PIL warns about transparent palettes otherwise
    return picture.convert("RGB")
