r"""Average precision as the PASCAL VOC development kit computes it.

The detections of a class in all images are sorted by score, best first. Each is matched to the
object of its class in its image that it overlaps most. It is correct if the overlap (intersection
over union) is at least 0.5 and no better detection was matched to the same object. A detection
matched to a difficult object is ignored. From the precision :math:`p` and the recall :math:`r`
after each detection follow

- the 11-point rule of VOC2007: the mean over :math:`t = 0, 0.1, \ldots, 1` of the largest
  precision at a recall of at least :math:`t`, or 0 if there is none;
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
from trainact.lab.torchvision_import import import_torchvision

__all__ = ["Detections", "Rule", "average_over_classes", "compute_area", "match_objects"]

Rule = Literal["11-point", "all-point"]
OVERLAP = 0.5


class Detections(NamedTuple):
    """The detections in one image."""

    boxes: Tensor  # [N, 4], left, top, right, bottom
    labels: Tensor  # int64 [N], from 0
    scores: Tensor  # [N]


class Matches(NamedTuple):
    """The detections of one class in one image, without those of difficult objects."""

    scores: Tensor  # [N]
    correct: Tensor  # bool [N]
    objects: int  # that are not difficult


def average_over_classes(
    found: Sequence[Detections], true: Sequence[Objects], num_classes: int, rule: Rule
) -> float:
    """Return the mean average precision, in [0, 1], over the classes that have objects.

    ``found`` and ``true`` are the detections and the objects of each image, in the same order.

    Raises:
        TrActValueError: the numbers of images differ, or every object is difficult.
    """
    if len(found) != len(true):
        raise TrActValueError(f"{len(found)} images have detections and {len(true)} have objects.")
    areas = []
    for label in range(num_classes):
        matches = [match_objects(f, t, label) for f, t in zip(found, true, strict=True)]
        objects = sum(match.objects for match in matches)
        if objects:
            scores = torch.cat([match.scores for match in matches])
            correct = torch.cat([match.correct for match in matches])
            order = scores.argsort(descending=True, stable=True)
            areas.append(compute_area(correct[order], objects, rule))
    if not areas:
        raise TrActValueError("no image has an object that is not difficult.")
    return statistics.fmean(areas)


def match_objects(found: Detections, true: Objects, label: int) -> Matches:
    """Match the detections of a class in an image to its objects."""
    mine, objects = found.labels == label, true.select(true.labels == label)
    count = int((~objects.difficult).sum())
    order = found.scores[mine].argsort(descending=True, stable=True)
    boxes, scores = found.boxes[mine][order], found.scores[mine][order]
    correct = torch.zeros(len(scores), dtype=torch.bool)
    counts = torch.ones(len(scores), dtype=torch.bool)
    if len(objects) and len(scores):
        box_iou = import_torchvision().ops.box_iou
        overlap, nearest = box_iou(boxes.double(), objects.boxes.double()).max(1)
        taken: set[int] = set()
        for place in torch.nonzero(overlap >= OVERLAP).flatten().tolist():
            which = int(nearest[place])
            if objects.difficult[which]:
                counts[place] = False
            elif which not in taken:
                taken.add(which)
                correct[place] = True
    return Matches(scores[counts], correct[counts], count)


def compute_area(correct: Tensor, objects: int, rule: Rule) -> float:
    """Return the average precision of a class; ``correct``, bool [N], is sorted by score.

    >>> compute_area(torch.tensor([True, False]), 2, "all-point")
    0.5
    """
    hits = correct.long().cumsum(0)
    precision = hits.double() / torch.arange(1, len(correct) + 1)
    best = precision.flip(0).cummax(0).values.flip(0)  # at this or a larger recall
    if rule == "all-point":
        return float(best[correct].sum()) / objects
    reached = [10 * hits >= tenth * objects for tenth in range(11)]  # in integers, without rounding
    return sum(float(best[r].max()) if r.any() else 0.0 for r in reached) / 11
