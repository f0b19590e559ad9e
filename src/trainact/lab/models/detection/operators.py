"""The one place where torchvision's missing compiled operators are replaced."""

import functools
import importlib
from types import ModuleType

import torch

from trainact.lab.models.detection.region_align import align_regions
from trainact.lab.models.detection.suppression import suppress
from trainact.lab.torchvision_import import import_torchvision

__all__ = ["import_detection"]


@functools.cache
def import_detection() -> ModuleType:
    """Return ``torchvision.models.detection``, able to run here.

    Where torchvision's compiled non-maximum suppression answers, nothing is touched. Where it does
    not, torchvision's detection models are given `suppress` and `align_regions` in its place and
    that of RoIAlign.
    """
    import_torchvision()
    boxes = importlib.import_module("torchvision.ops.boxes")
    if not _answers(boxes):
        boxes.nms = suppress  # type: ignore[attr-defined]
        poolers = importlib.import_module("torchvision.ops.poolers")
        poolers.roi_align = align_regions  # type: ignore[attr-defined]
    return importlib.import_module("torchvision.models.detection")


def _answers(boxes: ModuleType) -> bool:
    """Return whether the compiled operator can be called."""
    try:
        boxes.nms(torch.tensor([[0.0, 0.0, 1.0, 1.0]]), torch.tensor([1.0]), 0.5)
    except (RuntimeError, NotImplementedError):
        return False
    return True
