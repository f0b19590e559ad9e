"""Import torchvision even if its compiled operators do not fit the installed torch.

A torchvision built for CUDA fails to import beside a CPU build of torch: its Python code registers
rules for operators that were never defined. In that case their schemas are defined while the import
is repeated, and withdrawn afterwards. Everything except the compiled operators then works, and a
message says so.
"""

import contextlib
import functools
import importlib.metadata
import logging
import sys
from collections.abc import Iterator
from types import ModuleType

import torch

from trainact.lab.ranks import is_first_rank

__all__ = ["import_torchvision", "report_mismatch"]

LOGGER = logging.getLogger("trainact.lab.torchvision_import")
SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


def import_torchvision() -> ModuleType:
    """Return torchvision; call this before importing anything that imports it, such as timm."""
    try:
        import torchvision
    except RuntimeError as error:
        if "torchvision::nms does not exist" not in str(error):
            raise
        report_mismatch()
        with _define_operators():
            import torchvision
    return torchvision


@functools.cache
def report_mismatch() -> None:
    """Say, once in a process, that torchvision does not match torch."""
    if is_first_rank():
        LOGGER.warning(
            f"torchvision {importlib.metadata.version('torchvision')} does not match torch "
            f"{torch.__version__}: its compiled operators are missing. Networks and transforms "
            "work without them; detectors use slower operators written in Python. To have the "
            "compiled ones, install torchvision from where torch came from."
        )


@contextlib.contextmanager
def _define_operators() -> Iterator[None]:
    """Remove the submodules that the failed import left, and define the missing operators."""
    for name in [name for name in sys.modules if name.startswith("torchvision.")]:
        del sys.modules[name]
    library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in SCHEMAS:
        library.define(schema)
    yield
    del library  # withdraws the definitions
