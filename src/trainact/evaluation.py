"""A model in evaluation mode for a while: its flags and buffers are restored."""

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer

from trainact.torch_internals import read_buffers

__all__ = ["evaluation_mode"]


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


def _has_values(tensor: Tensor) -> bool:
    is_lazy = isinstance(tensor, UninitializedBuffer)
    return not is_lazy and not tensor.is_meta and tensor.layout == torch.strided
