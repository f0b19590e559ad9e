r"""RoIAlign and non-maximum suppression in plain torch, for a torchvision without its operators.

RoIAlign averages bilinear samples on a grid. That is a product of two small matrices with the
feature map: with weights :math:`A` [P, H] of the rows and :math:`B` [Q, W] of the columns, the
value of a region is :math:`A f B^\top`. Nothing is gathered or scattered, so the gradient is
deterministic. That of torchvision's own RoIAlign in Python is not, and it has to be compiled first.
"""

import contextlib
import functools
import importlib
from collections.abc import Iterator

import torch
from torch import Tensor

from trainact.errors import TrActValueError
from trainact.lab.torchvision_import import import_torchvision, report_mismatch

__all__ = ["nms", "roi_align", "use_plain_operators"]


@contextlib.contextmanager
def use_plain_operators() -> Iterator[None]:
    """Let torchvision's detectors call `nms` and `roi_align`, if its own operators are missing.

    The two functions are replaced in ``torchvision.ops`` while the context is open, for all
    threads.
    """
    if has_compiled_operators():
        yield
        return
    report_mismatch()
    boxes = importlib.import_module("torchvision.ops.boxes")
    poolers = importlib.import_module("torchvision.ops.poolers")
    before = boxes.nms, poolers.roi_align
    boxes.nms, poolers.roi_align = nms, roi_align  # type: ignore[attr-defined]
    try:
        yield
    finally:
        boxes.nms, poolers.roi_align = before  # type: ignore[attr-defined]


@functools.cache
def has_compiled_operators() -> bool:
    """Return whether torchvision's compiled operators can be called."""
    import_torchvision()
    boxes = importlib.import_module("torchvision.ops.boxes")
    try:
        boxes.nms(torch.tensor([[0.0, 0.0, 1.0, 1.0]]), torch.tensor([1.0]), 0.5)
    except (RuntimeError, NotImplementedError):
        return False
    return True


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Return the indices of the boxes that non-maximum suppression keeps, best score first.

    The best box is kept and every box that overlaps it by more than the threshold is removed, and
    so on with the best of the rest. Of equal scores the first is better. The arguments are those
    of ``torchvision.ops.nms``: boxes [N, 4], left, top, right, bottom, and scores [N].

    >>> boxes = torch.tensor([[0.0, 0.0, 4.0, 4.0], [0.0, 0.0, 4.0, 5.0], [9.0, 9.0, 12.0, 12.0]])
    >>> nms(boxes, torch.tensor([0.5, 0.9, 0.1]), 0.5).tolist()
    [1, 2]
    """
    box_iou = import_torchvision().ops.box_iou
    order = scores.argsort(descending=True, stable=True)
    kept = []
    while len(order):
        best, order = order[:1], order[1:]
        kept.append(best)
        overlap = box_iou(boxes[best], boxes[order])[0]
        order = order[~(overlap > iou_threshold)]
    return torch.cat(kept) if kept else order


def roi_align(
    features: Tensor,
    regions: Tensor | list[Tensor],
    output_size: int | tuple[int, int],
    spatial_scale: float = 1.0,
    sampling_ratio: int = -1,
    aligned: bool = False,
) -> Tensor:
    """Return regions of feature maps [N, C, H, W], each averaged into a grid: [K, C, P, Q].

    The arguments are those of ``torchvision.ops.roi_align``: regions are boxes [L, 4] of each
    image, or [K, 5] with the index of the image first, and ``output_size`` is P and Q, or one
    number for both.

    Raises:
        TrActValueError: ``sampling_ratio`` is not positive, which in torchvision means a number
            that depends on the region.
    """
    if sampling_ratio < 1:
        raise TrActValueError(
            "sampling_ratio must be positive if torchvision's compiled operators are missing; got "
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
        down = _compute_weights(top, bottom, rows, image.shape[1], *sampling).to(image.dtype)
        across = _compute_weights(left, right, columns, image.shape[2], *sampling).to(image.dtype)
        partial = torch.einsum("kph,chw->kpcw", down, image)
        pooled.append(torch.einsum("kpcw,kqw->kcpq", partial, across))
    whole = torch.cat(pooled)
    return whole if back is None else whole[back]


def _compute_weights(
    start: Tensor, end: Tensor, cells: int, length: int, samples: int, aligned: bool
) -> Tensor:
    """Return the weight of each pixel of an axis in each cell of each region [K, cells, length].

    A sample interpolates between its two neighbours. Up to one pixel outside the map it takes the
    value of the border, farther outside it counts as zero.
    """
    extent = end - start if aligned else (end - start).clamp(min=1.0)
    parts = torch.arange(cells * samples, device=start.device, dtype=start.dtype) + 0.5
    places = start[:, None] + extent[:, None] * parts / (cells * samples)  # [K, cells * samples]
    inside = (places >= -1) & (places <= length)
    grid = torch.arange(length, device=start.device, dtype=start.dtype)
    distance = (places.clamp(0, length - 1)[..., None] - grid).abs()
    weights = (1 - distance).clamp(min=0) * inside[..., None]
    return weights.unflatten(1, (cells, samples)).mean(2)
