"""Non-maximum suppression in plain torch, for where torchvision's compiled one is missing."""

import torch
from torch import Tensor

__all__ = ["compute_overlap", "suppress"]


def compute_overlap(one: Tensor, other: Tensor) -> Tensor:
    """Return intersection over union [N, M] of boxes [N, 4] and [M, 4]; 0 where both are empty.

    >>> one = torch.tensor([[0.0, 0.0, 2.0, 2.0]])
    >>> other = torch.tensor([[1.0, 0.0, 3.0, 2.0], [5.0, 5.0, 6.0, 6.0]])
    >>> compute_overlap(one, other)
    tensor([[0.3333, 0.0000]])
    """
    corner = torch.maximum(one[:, None, :2], other[None, :, :2])
    opposite = torch.minimum(one[:, None, 2:], other[None, :, 2:])
    shared = (opposite - corner).clamp(min=0).prod(2)
    areas = [(boxes[:, 2:] - boxes[:, :2]).prod(1) for boxes in (one, other)]
    union = areas[0][:, None] + areas[1][None] - shared
    return torch.where(union > 0, shared / union, torch.zeros_like(union))


def suppress(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Return the indices of the boxes that stay, best score first.

    The best box stays and every box goes that overlaps it by more than the threshold; then the best
    of those left, and so on. Of equal scores the first is better. The arguments are those of
    ``torchvision.ops.nms``.

    >>> boxes = torch.tensor([[0.0, 0.0, 4.0, 4.0], [0.0, 0.0, 4.0, 5.0], [9.0, 9.0, 12.0, 12.0]])
    >>> suppress(boxes, torch.tensor([0.5, 0.9, 0.1]), 0.5).tolist()
    [1, 2]

    Args:
        boxes: [N, 4], left, top, right, bottom.
        scores: [N].
        iou_threshold: of intersection over union.
    """
    order = scores.argsort(descending=True, stable=True)
    kept = []
    while len(order):
        best, order = order[:1], order[1:]
        kept.append(best)
        overlap = compute_overlap(boxes[best], boxes[order])[0]
        order = order[~(overlap > iou_threshold)]
    return torch.cat(kept) if kept else order
