"""The multiply-adds of a Faster R-CNN, which shapes alone do not carry to its end."""

from typing import Any

import torch

from trainact.lab.cost.multiply_adds import count_forward
from trainact.lab.models.detection.faster_rcnn import (
    RATIOS,
    STAGES,
    WIDTH,
    FasterRcnnFields,
    VggBackbone,
    VggHead,
)
from trainact.lab.models.zoos import hide_values
from trainact.lab.schema import build_table

__all__ = ["count_detector"]


def count_detector(
    arguments: dict[str, Any], num_classes: int, image_size: int
) -> tuple[float, float]:
    """Return the multiply-adds of a forward of one image in training and in testing.

    An image has sides of 3 : 4, as most of VOC2007 have. In training the head sees the regions that
    the loss looks at, in testing all proposals.

    >>> train, test = count_detector({}, 20, 600)
    >>> f"{train:.4g} {test:.4g}"
    '1.664e+11 1.87e+11'

    Args:
        arguments: see `FasterRcnnFields`.
        num_classes: without the background.
        image_size: pixels of the short side.
    """
    fields: FasterRcnnFields = build_table(FasterRcnnFields, arguments, "model.arguments")
    backbone = hide_values(lambda: VggBackbone(fields.width))
    channels = STAGES[-1][0] * fields.width // WIDTH
    head = hide_values(lambda: VggHead(channels, fields.hidden, fields.dropout))
    width = min(image_size * 4 // 3, fields.longest)
    convolutions = count_forward(backbone, torch.zeros(1, 3, image_size, width, device="meta"))
    assert convolutions is not None
    places = backbone(torch.zeros(1, 3, image_size, width, device="meta"))[0, 0].numel()
    anchors = len(fields.anchors) * len(RATIOS)
    proposing = places * (9 * channels**2 + channels * anchors * 5)
    linear = sum(p.numel() for p in head.parameters() if p.ndim == 2)
    region = linear + fields.hidden * 5 * (num_classes + 1)
    regions = fields.regions_per_image, fields.test_proposals[1]
    train, test = (convolutions + proposing + region * number for number in regions)
    return train, test
