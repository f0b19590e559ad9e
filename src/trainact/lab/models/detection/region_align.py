r"""RoIAlign in plain torch, for where torchvision's compiled one is missing.

Averaging bilinear samples on a grid is a product of two small matrices with the feature map: with
weights :math:`A` [P, H] of the rows and :math:`B` [Q, W] of the columns, a region's value is
:math:`A f B^\top`. Nothing is gathered or scattered, so the gradient is the same every time.
"""

import torch
from torch import Tensor

from trainact.errors import TrActValueError

__all__ = ["align_regions"]


def align_regions(
    features: Tensor,
    regions: Tensor | list[Tensor],
    output_size: int | tuple[int, int],
    spatial_scale: float = 1.0,
    sampling_ratio: int = -1,
    aligned: bool = False,
) -> Tensor:
    """Return regions of feature maps [N, C, H, W], each averaged into a grid: [K, C, P, Q].

    The arguments are those of ``torchvision.ops.roi_align``.

    Args:
        features: one map an image.
        regions: boxes [L, 4] of each image, or [K, 5] with the number of the image first.
        output_size: P and Q, or both in one number.
        spatial_scale: from a box's pixels to the map's.
        sampling_ratio: samples of a grid cell in either direction; must be positive.
        aligned: whether pixel centres are at halves.

    Raises:
        TrActValueError: the number of samples is to depend on the region.
    """
    if sampling_ratio < 1:
        raise TrActValueError(
            f"sampling_ratio must be positive where torchvision's operators are missing; got "
            f"{sampling_ratio}."
        )
    back = None
    if isinstance(regions, Tensor):
        back = regions[:, 0].argsort(stable=True).argsort()
        regions = [regions[regions[:, 0] == i, 1:] for i in range(len(features))]
    rows, columns = (output_size,) * 2 if isinstance(output_size, int) else output_size
    pooled = []
    for image, boxes in zip(features, regions, strict=True):
        left, top, right, bottom = (boxes * spatial_scale - (0.5 if aligned else 0.0)).unbind(1)
        sampling = (sampling_ratio, aligned)
        down = _weigh(top, bottom, rows, image.shape[1], *sampling).to(image.dtype)
        across = _weigh(left, right, columns, image.shape[2], *sampling).to(image.dtype)
        partial = torch.einsum("kph,chw->kpcw", down, image)
        pooled.append(torch.einsum("kpcw,kqw->kcpq", partial, across))
    whole = torch.cat(pooled)
    return whole if back is None else whole[back]


def _weigh(
    start: Tensor, end: Tensor, cells: int, length: int, samples: int, aligned: bool
) -> Tensor:
    """Return how much each place of an axis counts in each cell of each region: [K, cells, length].

    A sample between two places counts them by its nearness; one up to a place outside counts the
    border, one farther out counts nothing.
    """
    extent = end - start if aligned else (end - start).clamp(min=1.0)
    parts = torch.arange(cells * samples, device=start.device, dtype=start.dtype) + 0.5
    places = start[:, None] + extent[:, None] * parts / (cells * samples)  # [K, cells * samples]
    inside = (places >= -1) & (places <= length)
    grid = torch.arange(length, device=start.device, dtype=start.dtype)
    distance = (places.clamp(0, length - 1)[..., None] - grid).abs()
    weights = (1 - distance).clamp(min=0) * inside[..., None]
    return weights.unflatten(1, (cells, samples)).mean(2)
