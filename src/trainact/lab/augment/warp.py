"""Geometric operations on a batch of images, each image with its own strength.

They use nearest-neighbour interpolation and fill with black, except for reflected crops. Source
pixels are computed in integers, with coefficients as multiples of 2⁻³²: every device, and every
split of a batch, gives the same bytes. Pixel i covers [i, i + 1), with its centre at i + ½.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from trainact.errors import TrActValueError

__all__ = ["crop_and_flip", "rotate", "shear_x", "shear_y", "translate_x", "translate_y"]

FRACTION_BITS = 32


def crop_and_flip(
    images: Tensor,
    top: Tensor,
    left: Tensor,
    flip: Tensor,
    padding: int,
    *,
    reflect: bool = False,
) -> Tensor:
    """Pad images [N, C, H, W], crop them to their original size, and flip some.

    ``top`` and ``left`` [N], 0 to 2 ``padding``, are the corners of the crops; ``flip`` [N] says
    which are flipped horizontally. The padding is black, or with ``reflect`` the image mirrored at
    its border pixels.

    Raises:
        TrActValueError: the image is too small to be reflected.
    """
    height, width = images.shape[-2:]
    top, left, flip = (amount.to(images.device)[:, None] for amount in (top, left, flip))
    rows = torch.arange(height, device=images.device) + top
    columns = torch.arange(width, device=images.device)
    columns = torch.where(flip, width - 1 - columns, columns) + left
    if reflect:
        if padding >= min(height, width):
            raise TrActValueError(
                f"an image of {height} x {width} pixels cannot be reflected by {padding}; set a "
                "smaller data.crop_padding."
            )
        rows, columns = _reflect(rows - padding, height), _reflect(columns - padding, width)
        return _look_up(images, rows[:, :, None], columns[:, None, :])
    return _look_up(F.pad(images, (padding,) * 4), rows[:, :, None], columns[:, None, :])


def _reflect(places: Tensor, size: int) -> Tensor:
    """Return places outside 0 to ``size`` - 1 mirrored at the first or the last pixel."""
    return size - 1 - (size - 1 - places.abs()).abs()


def rotate(images: Tensor, angle: Tensor) -> Tensor:
    """Rotate images [N, C, H, W] about their centres by ``angle`` [N] degrees, anticlockwise."""
    height, width = images.shape[-2:]
    radians = torch.deg2rad(angle.double())
    cos, sin = radians.cos(), radians.sin()
    x, y = width / 2, height / 2
    return _warp(images, (cos, -sin, x - cos * x + sin * y), (sin, cos, y - sin * x - cos * y))


def shear_x(images: Tensor, slope: Tensor) -> Tensor:
    """Shift each row of images [N, C, H, W] left by ``slope`` [N] times its distance from top."""
    return _warp(images, (1, slope, 0), (0, 1, 0))


def shear_y(images: Tensor, slope: Tensor) -> Tensor:
    """Shift each column of images [N, C, H, W] up by ``slope`` [N] times its distance from left."""
    return _warp(images, (1, 0, 0), (slope, 1, 0))


def translate_x(images: Tensor, pixels: Tensor) -> Tensor:
    """Move images [N, C, H, W] right by ``pixels`` [N], truncated to integers."""
    return _warp(images, (1, 0, -pixels.trunc()), (0, 1, 0))


def translate_y(images: Tensor, pixels: Tensor) -> Tensor:
    """Move images [N, C, H, W] down by ``pixels`` [N], truncated to integers."""
    return _warp(images, (1, 0, 0), (0, 1, -pixels.trunc()))


Line = tuple[Tensor | int, Tensor | int, Tensor | int]
"""(a, b, c), each [N] or one number: the source coordinate is a x + b y + c at the pixel centre
(x, y)."""


def _warp(images: Tensor, x_source: Line, y_source: Line) -> Tensor:
    """Take every pixel from the coordinates of ``x_source`` and ``y_source``."""
    height, width = images.shape[-2:]
    columns = _find_pixels(x_source, height, width, images.device).clamp_(-1, width)
    rows = _find_pixels(y_source, height, width, images.device).clamp_(-1, height)
    return _look_up(F.pad(images, (1, 1, 1, 1)), rows.add_(1), columns.add_(1))


def _find_pixels(line: Line, height: int, width: int, device: torch.device) -> Tensor:
    """Return the integer part of the source coordinate of every pixel, int64 [N or 1, H, W]."""
    numbers = (torch.as_tensor(number, dtype=torch.float64).reshape(-1, 1) for number in line)
    a, b, c = (torch.round(number * 2**FRACTION_BITS).long().to(device) for number in numbers)
    # twice the coordinates, in which pixel centres are odd integers
    along_x = a * (2 * torch.arange(width, device=device) + 1)
    along_y = b * (2 * torch.arange(height, device=device) + 1) + 2 * c
    return (along_y[:, :, None] + along_x[:, None, :]).bitwise_right_shift_(FRACTION_BITS + 1)


def _look_up(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return the pixels of images [N, C, H', W'] at rows and columns, broadcast to [N, H, W]."""
    count, channels, height, width = images.shape
    small = images.numel() < 2**31
    dtype = torch.int32 if small else torch.int64  # flat lookups by int32 are the fastest
    inside = rows.to(dtype) * width + columns.to(dtype)
    planes = torch.arange(count * channels, dtype=dtype, device=images.device) * (height * width)
    index = planes.view(count, channels, 1, 1) + inside[:, None]
    return images.reshape(-1).index_select(0, index.reshape(-1)).view(index.shape)
