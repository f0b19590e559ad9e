"""Everything in trainact that torch does not document, each with the reason for its use.

``tests/test_torch_internals.py`` fails when torch changes one of them.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, nn
from torch._library.custom_ops import OPDEFS
from torch.nn.modules.conv import _ConvNd as ConvNd
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves, tree_map

__all__ = [
    "ConvNd",
    "TorchDispatchMode",
    "find_backward_id",
    "find_base",
    "find_custom_operator",
    "has_autocast",
    "is_exporting",
    "is_inside_transform",
    "is_transform_tensor",
    "is_wrapper_tensor",
    "read_buffers",
    "read_group_timeout",
    "read_padding",
    "runs_in_this_backward",
    "tree_leaves",
    "tree_map",
]

# ConvNd: the common base of Conv1d, Conv2d and Conv3d has no public name. TrAct's convolutions
# also call its method _conv_forward, which takes the weight as an argument and is what forward
# calls; a wrapper function here could not be scripted by torch.jit.
#
# Module._apply: .to(), .cuda() and to_empty() have no other method in common that a layer could
# override; TrAct's layers move the tensors of a moving average in it.
#
# TorchDispatchMode, tree_leaves, tree_map: torch documents them but keeps them in private modules.

_DEVICE_TYPES = ("cpu", "cuda", "hpu", "mps", "mtia", "xla", "xpu")
_AUTOCAST_TYPES = tuple(
    device_type
    for device_type in (*_DEVICE_TYPES, torch._C._get_privateuse1_backend_name())
    if torch.amp.is_autocast_available(device_type)
)


def is_inside_transform() -> bool:
    """Return whether a transform of torch.func is running.

    Inside one, ``weight.requires_grad`` reads False although a gradient is taken. torch.compile
    cannot trace this call inside a transform and leaves that transform to eager mode, which is
    wanted: traced, a custom Function's backward would be dropped (pytorch#193279).
    """
    return torch._C._functorch.maybe_current_level() is not None


def is_transform_tensor(tensor: Tensor) -> bool:
    """Return whether a transform of torch.func wraps ``tensor``, so its values cannot be read."""
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def is_exporting() -> bool:
    """Return whether torch.export is tracing.

    ``torch.compiler.is_exporting`` reads this flag. But up to torch 2.11, torch.compile replaces
    a call of that function by True (pytorch#176347), and would train without TrAct.
    """
    return torch.compiler._is_exporting_flag


def has_autocast(device_type: str) -> bool:
    """Return whether autocast exists on a kind of device.

    Older versions of torch.compile cannot trace the question, so it reads the answers.
    """
    if torch.compiler.is_compiling():
        return device_type in _AUTOCAST_TYPES
    return torch.amp.is_autocast_available(device_type)


def is_wrapper_tensor(tensor: Tensor) -> bool:
    """Return whether ``tensor`` holds other tensors, as quantised and sharded weights do."""
    return is_traceable_wrapper_subclass(tensor)


def find_backward_id() -> int:
    """Return the number of the backward pass that is running, -1 outside of one.

    It tells the backward passes of one graph apart (``retain_graph=True``).
    """
    return torch._C._current_graph_task_id()


def find_base(tensor: Tensor) -> Tensor | None:
    """Return the tensor that ``tensor`` is a view of, also one made without gradients, or None."""
    return tensor._base


def find_custom_operator(operator: Any) -> Callable[..., Any] | None:
    """Return the Python function behind an operator of ``torch.library.custom_op``, or None.

    A dispatch mode sees such an operator as one call; what it calls can be counted only inside.
    """
    definition = OPDEFS.get(operator._schema.name)
    return None if definition is None else definition._init_fn


def runs_in_this_backward(node: Any) -> bool:
    """Return whether the running backward pass will reach, or has reached, a graph node.

    Only the autograd engine knows: a backward may start anywhere and skip parts of the graph.
    """
    return torch._C._will_engine_execute_node(node)


def read_buffers(module: nn.Module) -> dict[str, Tensor | None]:
    """Return the dict of a module's own buffers, which may be changed to restore it.

    ``named_buffers`` leaves out those that are None, and a forward may set them.
    """
    return module._buffers


def read_padding(layer: ConvNd) -> list[int]:
    """Return a convolution's padding as F.pad takes it, also for ``padding='same'``.

    ``trainact.reference`` takes torch's own numbers, so that it does not depend on trainact's.
    """
    return layer._reversed_padding_repeated_twice


def read_group_timeout(group: Any) -> timedelta | None:
    """Return the timeout of a process group, None if it is unknown.

    ``dist.new_group`` does not take over the timeout given to ``init_process_group``.
    """
    try:
        return group._get_backend(group._device_types[0]).options._timeout
    except (AttributeError, IndexError, RuntimeError):
        return None
