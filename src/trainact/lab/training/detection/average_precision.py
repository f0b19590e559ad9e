r"""Average precision as the PASCAL VOC development kit computes it.

The detections of a class, over all images, stand in one row, best score first. Each is compared
with the object of its class in its image that it overlaps most. With an overlap (intersection over
union) of at least 0.5 it is right, unless a better one already found that object: a second find is
wrong. If the object is marked difficult, the detection counts as neither. Precision :math:`p` and
recall :math:`r` after each detection give

- the 11-point rule of VOC2007: the mean over :math:`t = 0, 0.1, \ldots, 1` of the largest
  precision at a recall of at least :math:`t`, or 0 where none is;
- the all-point rule of later years: the area under the largest precision at a recall of at least
  :math:`t`, for :math:`t` from 0 to 1.
"""

import statistics
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from trainact.errors import TrActValueError
from trainact.lab.data.objects import Objects
from trainact.lab.models.detection.operators import box_iou

__all__ = ["Detections", "Rule", "average_over_classes", "compute_area", "judge"]

Rule = Literal["11-point", "all-point"]
OVERLAP = 0.5


class Detections(NamedTuple):
    """What was found in one image.

    Attributes:
        boxes: [N, 4], left, top, right, bottom.
        labels: int64 [N], from 0.
        scores: [N].
    """

    boxes: Tensor
    labels: Tensor
    scores: Tensor


class Verdicts(NamedTuple):
    """The detections of one class in one image that count, and how many objects there are to find.

    Attributes:
        scores: [N].
        right: bool [N].
        objects: that are not difficult.
    """

    scores: Tensor
    right: Tensor
    objects: int


def average_over_classes(
    found: Sequence[Detections], true: Sequence[Objects], num_classes: int, rule: Rule
) -> float:
    """Return the mean average precision, in [0, 1], over the classes that have an object to find.

    Args:
        found: the detections of each image.
        true: the objects of each image, in the same order.
        num_classes: classes are numbered from 0.
        rule: of VOC2007, or of later years.

    Raises:
        TrActValueError: the images differ in number, or no class has an object to find.
    """
    if len(found) != len(true):
        raise TrActValueError(f"{len(found)} images have detections and {len(true)} have objects.")
    areas = []
    for label in range(num_classes):
        verdicts = [judge(f, t, label) for f, t in zip(found, true, strict=True)]
        objects = sum(verdict.objects for verdict in verdicts)
        if objects:
            scores = torch.cat([verdict.scores for verdict in verdicts])
            right = torch.cat([verdict.right for verdict in verdicts])
            order = scores.argsort(descending=True, stable=True)
            areas.append(compute_area(right[order], objects, rule))
    if not areas:
        raise TrActValueError("no class has an object that is not difficult.")
    return statistics.fmean(areas)


def judge(found: Detections, true: Objects, label: int) -> Verdicts:
    """Return which detections of a class in an image are right; those of difficult objects go."""
    mine, objects = found.labels == label, true.select(true.labels == label)
    count = int((~objects.difficult).sum())
    order = found.scores[mine].argsort(descending=True, stable=True)
    boxes, scores = found.boxes[mine][order], found.scores[mine][order]
    right = torch.zeros(len(scores), dtype=torch.bool)
    counts = torch.ones(len(scores), dtype=torch.bool)
    if len(objects) and len(scores):
        overlap, nearest = box_iou(boxes.double(), objects.boxes.double()).max(1)
        taken: set[int] = set()
        for place in torch.nonzero(overlap >= OVERLAP).flatten().tolist():
            which = int(nearest[place])
            if objects.difficult[which]:
                counts[place] = False
            elif which not in taken:
                taken.add(which)
                right[place] = True
    return Verdicts(scores[counts], right[counts], count)


def compute_area(right: Tensor, objects: int, rule: Rule) -> float:
    """Return the average precision of one class.

    >>> compute_area(torch.tensor([True, False]), 2, "all-point")
    0.5

    Args:
        right: bool [N], whether each detection is right, best score first.
        objects: that there are to find.
        rule: of VOC2007, or of later years.
    """
    hits = right.long().cumsum(0)
    precision = hits.double() / torch.arange(1, len(right) + 1)
    best = precision.flip(0).cummax(0).values.flip(0)  # at this recall or a larger one
    if rule == "all-point":
        return float(best[right].sum()) / objects
    reached = [10 * hits >= tenth * objects for tenth in range(11)]  # whole numbers, no rounding
    return sum(float(best[r].max()) if r.any() else 0.0 for r in reached) / 11
