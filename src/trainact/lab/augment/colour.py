"""Colour operations on a batch of images, each image with its own strength.

Blending factors are whole tenths and values are integers, which float32 represents exactly: every
device gives the same bytes. Fractions are truncated, as in PIL.
"""

import torch
from torch import Tensor

__all__ = [
    *("adjust_brightness", "adjust_colour", "adjust_contrast", "adjust_sharpness"),
    *("equalize", "invert", "posterize", "solarize", "stretch_contrast"),
]


def invert(images: Tensor) -> Tensor:
    """Return the inverted images [N, C, H, W], uint8."""
    return 255 - images


def solarize(images: Tensor, threshold: Tensor) -> Tensor:
    """Invert the values of images [N, C, H, W] that are at least ``threshold`` [N]."""
    return torch.where(images >= _per_image(threshold, images), 255 - images, images)


def posterize(images: Tensor, bits: Tensor) -> Tensor:
    """Keep the highest ``bits`` [N] bits, 1 to 8, of each value of images [N, C, H, W]."""
    lowest = 2 ** (8 - bits)
    return images & _per_image((256 - lowest).to(torch.uint8), images)


def stretch_contrast(images: Tensor) -> Tensor:
    """Stretch each channel of images [N, C, H, W] to the range 0 to 255 (AutoContrast).

    A channel of constant value is unchanged.
    """
    low, high = torch.aminmax(images.flatten(2).float(), dim=2, keepdim=True)
    flat = high == low
    unit = torch.where(flat, 1.0, (high - low) * (1 / 255))
    values = torch.arange(256, device=images.device)
    table = (values - torch.where(flat, 0.0, low)) / unit
    return _look_up(images, table.clamp_(0, 255).to(torch.uint8))


def equalize(images: Tensor) -> Tensor:
    """Equalize the histogram of each channel of images [N, C, H, W], as PIL does.

    A value becomes the number of darker pixels, in units of 1/255 of all but the brightest pixels.
    If this unit is less than one pixel, the channel is unchanged.
    """
    values = images.flatten(2).long()
    counts = values.new_zeros(*values.shape[:2], 256)
    counts.scatter_add_(2, values, values.new_ones(1).expand_as(values))
    darker = counts.cumsum(2) - counts
    brightest = counts.gather(2, values.amax(2, keepdim=True))
    step = (values.shape[2] - brightest) // 255
    table = ((darker + step // 2) // step.clamp(min=1)).clamp_(max=255)
    table = torch.where(step > 0, table, torch.arange(256, device=images.device))
    return _look_up(images, table.to(torch.uint8))


def adjust_brightness(images: Tensor, tenths: Tensor) -> Tensor:
    """Blend images [N, C, H, W] with black; ``tenths`` [N], -9 to 9, are factors 0.1 to 1.9."""
    return _mix(images, _per_image(tenths, images), 0)


def adjust_colour(images: Tensor, tenths: Tensor) -> Tensor:
    """Blend images [N, C, H, W] with their grey versions; ``tenths`` as for brightness."""
    if images.shape[1] == 1:
        return images
    tenths = _per_image(tenths, images)
    return _mix(images, tenths, tenths * _to_grey(images))


def adjust_contrast(images: Tensor, tenths: Tensor) -> Tensor:
    """Blend images [N, C, H, W] with their mean grey; ``tenths`` as for brightness."""
    tenths = _per_image(tenths, images)
    grey = images if images.shape[1] == 1 else _to_grey(images)
    total = grey.long().sum((1, 2, 3), keepdim=True)
    share = -(-tenths * total // grey[0].numel())  # rounded up, so that the difference is truncated
    return _mix(images, tenths, share)


def adjust_sharpness(images: Tensor, tenths: Tensor) -> Tensor:
    """Blend images [N, C, H, W], except borders, with smooth ones; ``tenths`` as for brightness.

    A smooth pixel is the mean of nine, in which the centre has weight five.
    """
    if min(images.shape[-2:]) <= 2:
        return images
    values = images.short()
    sums = values[..., :-2] + values[..., 1:-1] + values[..., 2:]
    sums = sums[..., :-2, :] + sums[..., 1:-1, :] + sums[..., 2:, :]
    smooth = torch.round((sums + 4 * values[..., 1:-1, 1:-1]) / 13)
    tenths = _per_image(tenths, images)
    result = images.clone()
    result[..., 1:-1, 1:-1] = _mix(images[..., 1:-1, 1:-1], tenths, tenths * smooth)
    return result


def _per_image(amount: Tensor, images: Tensor) -> Tensor:
    """Return [N] as [N, 1, 1, 1] on the device of the images."""
    return amount.to(images.device).view(-1, 1, 1, 1)


def _mix(images: Tensor, tenths: Tensor, other: Tensor | int) -> Tensor:
    """Return (1 + tenths / 10) images - other / 10, truncated to integers from 0 to 255."""
    mixed = images.float() * (10 + tenths) - other
    return ((mixed + 0.5) / 10).clamp_(0, 255).to(torch.uint8)  # a half avoids rounding errors


def _to_grey(images: Tensor) -> Tensor:
    """Return the luma of images [N, 3, H, W], integers in float32, [N, 1, H, W]."""
    red, green, blue = images.float().split(1, dim=1)
    return ((2989 * red + 5870 * green + 1140 * blue + 0.5) / 10_000).floor_()


def _look_up(images: Tensor, table: Tensor) -> Tensor:
    """Replace each value of images [N, C, H, W] by its entry in table [N, C, 256], uint8."""
    count, channels = images.shape[:2]
    rows = torch.arange(count * channels, dtype=torch.int32, device=images.device) * 256
    index = images.int() + rows.view(count, channels, 1, 1)
    return table.reshape(-1).index_select(0, index.reshape(-1)).view(images.shape)
