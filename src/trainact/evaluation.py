"""A model in evaluation mode, or without compiled code, for a while."""

import contextlib
import sys
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer

from trainact.torch_internals import read_buffers

__all__ = ["eager_mode", "evaluation_mode"]


@contextlib.contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Set the training flags to False; restore flags and buffers at the end of the block.

    Only the flags are set: a model's own ``train`` method may change weights. A forward may change
    buffers even in evaluation mode, in place or by new tensors.
    """
    flags = {module: module.training for module in model.modules()}
    buffers = {module: dict(read_buffers(module)) for module in flags}
    values = [
        (tensor, tensor.detach().clone())
        for own in buffers.values()
        for tensor in own.values()
        if tensor is not None and _has_values(tensor)
    ]
    for module in flags:
        module.training = False
    try:
        yield
    finally:
        for module, flag in flags.items():
            module.training = flag
            own = read_buffers(module)
            own.clear()
            own.update(buffers[module])
        for tensor, value in values:
            if not torch.equal(tensor, value):
                with torch.no_grad():
                    tensor.copy_(value)


@contextlib.contextmanager
def eager_mode() -> Iterator[None]:
    """Run compiled models as they were before ``torch.compile``.

    Compiled code ignores function modes and hooks, or is compiled again because of them.
    """
    if "torch._dynamo" not in sys.modules:  # nothing is compiled
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


def _has_values(tensor: Tensor) -> bool:
    is_lazy = isinstance(tensor, UninitializedBuffer)
    return not is_lazy and not tensor.is_meta and tensor.layout == torch.strided
