"""From encoded bytes to RGB pixels, at their own size or at a given one."""

import io
from typing import Any

import torch
from torch import Tensor

from trainact.lab.data.images import DataError

__all__ = ["fit_picture", "open_picture", "picture_to_tensor", "tensor_to_picture"]

MEND = (
    "Delete it or put the image there again; a run that began with it must then begin again, in "
    "another folder, because its images are no longer the same."
)


def open_picture(encoded: bytes, name: str) -> Any:
    """Return the PIL image in RGB; of several frames the first; not turned as its EXIF may say.

    Args:
        encoded: the content of an image file, of any format that PIL reads.
        name: what an error calls it.

    Raises:
        DataError: the bytes are no image, or not all of one.
    """
    from PIL import Image, UnidentifiedImageError

    if not encoded:
        raise DataError(f"{name} is empty (0 bytes). {MEND}")
    try:
        with Image.open(io.BytesIO(encoded)) as picture:
            return _turn_to_rgb(picture, name)
    except DataError:
        raise
    except UnidentifiedImageError as error:
        raise DataError(f"{name} is not an image that PIL can read. {MEND}") from error
    except Exception as error:  # PIL's readers raise almost anything for damaged files
        raise DataError(
            f"{name} cannot be read as an image ({type(error).__name__}: {error}). It may be cut "
            f"short. {MEND}"
        ) from error


def fit_picture(picture: Any, size: int) -> Any:
    """Return a PIL image with its short side scaled to ``size``, and the middle square cut out.

    Pixel for pixel what torchvision's ``resize`` (bilinear, with antialiasing) and ``center_crop``
    give, so images in memory are those that a stream is tested on.
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


def _turn_to_rgb(picture: Any, name: str) -> Any:
    """Return the picture in RGB: transparency is dropped, 16-bit grey keeps its high byte."""
    if picture.mode.startswith("I;16"):
        return _take_high_bytes(picture).convert("RGB")
    if picture.mode in {"I", "F"}:
        raise DataError(
            f"{name} has grey values of 32 bits (PIL mode {picture.mode}), whose range is not "
            "known. Save it with 8 bits a channel."
        )
    if picture.mode == "P":
        picture = picture.convert("RGBA")  # PIL warns about transparent palettes otherwise
    return picture.convert("RGB")


def _take_high_bytes(picture: Any) -> Any:
    import numpy as np
    from PIL import Image

    return Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8))
