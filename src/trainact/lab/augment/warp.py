"""Geometric operations on a batch of images, each image with its own strength.

They use nearest-neighbour interpolation, or cubic where the name says so. Uncovered pixels get the
value ``fill``, black by default; crops may be reflected instead. Source pixels are computed in
integers, with coefficients as multiples of 2⁻³²: every device, and every split of a batch, gives
the same bytes. Pixel i covers [i, i + 1), with its centre at i + ½.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from trainact.errors import TrActValueError

__all__ = [
    *("crop_and_flip", "rotate", "translate_x", "translate_y"),
    *("shear_x", "shear_x_cubic", "shear_y", "shear_y_cubic"),
]

FRACTION_BITS = 32
WEIGHT_BITS = 22  # of the weights of cubic interpolation; sums of four pixels stay below 2³¹


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


def rotate(images: Tensor, angle: Tensor, fill: int = 0) -> Tensor:
    """Rotate images [N, C, H, W] about their centres by ``angle`` [N] degrees, anticlockwise."""
    height, width = images.shape[-2:]
    radians = torch.deg2rad(angle.double())
    cos, sin = radians.cos(), radians.sin()
    x, y = width / 2, height / 2
    x_source = (cos, -sin, x - cos * x + sin * y)
    return _warp(images, x_source, (sin, cos, y - sin * x - cos * y), fill)


def shear_x(images: Tensor, slope: Tensor, fill: int = 0) -> Tensor:
    """Shift each row of images [N, C, H, W] left by ``slope`` [N] times its distance from top."""
    return _warp(images, (1, slope, 0), (0, 1, 0), fill)


def shear_y(images: Tensor, slope: Tensor, fill: int = 0) -> Tensor:
    """Shift each column of images [N, C, H, W] up by ``slope`` [N] times its distance from left."""
    return _warp(images, (1, 0, 0), (slope, 1, 0), fill)


def shear_x_cubic(images: Tensor, slope: Tensor, fill: int = 0) -> Tensor:
    """Shear as ``shear_x`` does, with cubic interpolation along the rows."""
    return shear_y_cubic(images.mT, slope, fill).mT


def shear_y_cubic(images: Tensor, slope: Tensor, fill: int = 0) -> Tensor:
    """Shear as ``shear_y`` does, with cubic interpolation along the columns, as in PIL.

    At a fraction d between the second and the third of four pixels v₁ to v₄, the value is v₂ +
    d (v₃ - v₁) + d² (2 v₁ - 2 v₂ + v₃ - v₄) + d³ (v₂ - v₁ + v₄ - v₃), truncated. Pixels beyond the
    border repeat it; a pixel whose centre comes from outside is filled.
    """
    height, width = images.shape[-2:]
    offset = slope.double().cpu().reshape(-1, 1) * (torch.arange(width) + 0.5)  # [N, W], on the CPU
    whole = offset.floor()
    d = offset - whole
    outer = torch.stack([-d + 2 * d**2 - d**3, d + d**2 - d**3, -(d**2) + d**3])
    first, third, fourth = torch.round(outer * 2**WEIGHT_BITS).int().to(images.device)
    weights = (first, 2**WEIGHT_BITS - first - third - fourth, third, fourth)
    rows, columns = torch.arange(height)[:, None], torch.arange(width, device=images.device)
    source = rows + whole[:, None].long()  # [N, H, W], of the second pixel
    total = torch.zeros((), dtype=torch.int32, device=images.device)
    for tap, weight in enumerate(weights, -1):
        row = (source + tap).clamp_(0, height - 1).to(images.device)
        total = total + weight[:, None, None] * _look_up(images, row, columns[None, None]).int()
    centre = rows + 0.5 + offset[:, None]
    inside = ((centre >= 0) & (centre < height)).to(images.device)[:, None]
    values = total.bitwise_right_shift(WEIGHT_BITS).clamp_(0, 255).to(torch.uint8)
    return torch.where(inside, values, fill)


def translate_x(images: Tensor, pixels: Tensor, fill: int = 0) -> Tensor:
    """Move images [N, C, H, W] right by ``pixels`` [N], truncated to integers."""
    return _warp(images, (1, 0, -pixels.trunc()), (0, 1, 0), fill)


def translate_y(images: Tensor, pixels: Tensor, fill: int = 0) -> Tensor:
    """Move images [N, C, H, W] down by ``pixels`` [N], truncated to integers."""
    return _warp(images, (1, 0, 0), (0, 1, -pixels.trunc()), fill)


Line = tuple[Tensor | int, Tensor | int, Tensor | int]
"""(a, b, c), each [N] or one number: the source coordinate is a x + b y + c at the pixel centre
(x, y)."""


def _warp(images: Tensor, x_source: Line, y_source: Line, fill: int) -> Tensor:
    """Take every pixel from the coordinates of ``x_source`` and ``y_source``."""
    height, width = images.shape[-2:]
    columns = _find_pixels(x_source, height, width, images.device).clamp_(-1, width)
    rows = _find_pixels(y_source, height, width, images.device).clamp_(-1, height)
    return _look_up(F.pad(images, (1, 1, 1, 1), value=fill), rows.add_(1), columns.add_(1))


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
