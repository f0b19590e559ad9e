"""Import torchvision also where its compiled operators do not fit the torch at hand.

A torchvision built for CUDA beside a CPU build of torch fails on import, because the operators that
its Python code registers rules for were never defined. Then, and only then, their schemas are
defined here and the import is tried again: all but the compiled operators works.
"""

import sys
from types import ModuleType

import torch

__all__ = ["import_torchvision"]

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_library: list[torch.library.Library] = []  # kept alive, or the definitions are withdrawn


def import_torchvision() -> ModuleType:
    """Return torchvision; call this before anything that imports it, such as timm."""
    try:
        import torchvision
    except RuntimeError as error:
        if "torchvision::nms does not exist" not in str(error):
            raise
        _define_missing_operators()
        import torchvision
    return torchvision


def _define_missing_operators() -> None:
    library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in _SCHEMAS:
        library.define(schema)
    _library.append(library)
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]
