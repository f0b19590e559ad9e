"""Sums over the ranks of a distributed run, inside backward.

A collective inside backward must not be mixed up with those of DistributedDataParallel or of
another TrAct layer that some rank reaches earlier. So every layer with ``sync=True`` has its own
process group. All groups are created together, in the order in which the layers were wrapped, when
the first backward needs one; a layer's slot is its place among all layers.

Two ranks may also reach two layers in different orders. Each would then wait for a sum that the
other begins later: a deadlock, even with separate process groups. So the first call that a backward
reaches begins the sums of all calls that this backward will reach. The sums of one layer begin in
the order of its calls.
"""

import itertools
import warnings
import weakref
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainact.torch_internals import find_backward_id, read_group_timeout, runs_in_this_backward

__all__ = [
    "SumOverRanks",
    "add_group",
    "get_world_size",
    "needs_group",
    "new_sync_slot",
    "record_call",
    "take_calls_of_this_backward",
    "warn_of_few_rows",
]

FEW_ROWS = 8
"""With fewer rows per column, the second moments of the ranks differ enough for a warning."""

_slots = itertools.count()
_grouped_slots: dict[int, None] = {}  # in their order
_warned_slots: set[int] = set()
_calls: list[weakref.ref[Any]] = []


def new_sync_slot(sync: bool) -> int:
    """Return the slot of a new layer; all ranks must create their layers in the same order."""
    slot = next(_slots)
    if sync:
        add_group(slot)
    return slot


def add_group(slot: int) -> None:
    """Give a slot a process group, if it has none."""
    _grouped_slots.setdefault(slot)


def needs_group(slot: int | None) -> bool:
    """Return whether the layer with this slot has a process group of its own."""
    return slot in _grouped_slots


def get_world_size() -> int:
    """Return the number of ranks in torch.distributed's default group, 1 without one."""
    if not (dist.is_available() and dist.is_initialized()):
        return 1
    return dist.get_world_size()


class SumOverRanks:
    """The sum of a tensor over all ranks; it begins now and is waited for later."""

    def __init__(self, tensor: Tensor, sync_slot: int | None) -> None:
        """Begin to sum ``tensor``, which is overwritten, in the process group of a layer.

        None means the default group.
        """
        self._tensor = tensor
        self._work: Any = None
        if torch.compiler.is_compiling():
            self._tensor = _sum_now(tensor, sync_slot)
        elif get_world_size() > 1:
            self._work = dist.all_reduce(tensor, group=_find_group(sync_slot), async_op=True)

    def wait(self) -> Tensor:
        """Return the sum."""
        if self._work is not None:
            self._work.wait()
            self._work = None
        return self._tensor


@torch.library.custom_op("trainact::sum_over_ranks", mutates_args=())
def _sum_now(tensor: Tensor, sync_slot: int | None) -> Tensor:
    """Sum without overlap, as one operator that torch.compile does not look into."""
    tensor = tensor.clone()
    if get_world_size() > 1:
        dist.all_reduce(tensor, group=_find_group(sync_slot))
    return tensor


@_sum_now.register_fake
def _(tensor: Tensor, sync_slot: int | None) -> Tensor:
    return torch.empty_like(tensor)


def record_call(node: Any) -> None:
    """Store a weak reference to the graph node of a call that will need a sum over ranks."""
    node.backward_id = None
    _calls[:] = [call for call in _calls if call() is not None]
    _calls.append(weakref.ref(node))


def take_calls_of_this_backward() -> list[Any]:
    """Return the recorded nodes that the running backward will reach, in forward order.

    Each backward gets a node only once.
    """
    current = find_backward_id()
    taken = []
    for node in (call() for call in tuple(_calls)):
        if node is not None and node.backward_id != current and runs_in_this_backward(node):
            node.backward_id = current
            taken.append(node)
    return taken


def warn_of_few_rows(num_rows: int, num_inputs: int, sync_slot: int) -> None:
    """Warn once per layer if the ranks have few rows and each uses its own second moment.

    Args:
        num_rows: b of this rank.
        num_inputs: n.
        sync_slot: the layer's slot.
    """
    if torch.compiler.is_compiling() or get_world_size() == 1 or sync_slot in _warned_slots:
        return
    if num_rows >= FEW_ROWS * num_inputs:
        return
    _warned_slots.add(sync_slot)
    warnings.warn(
        f"TrAct preconditions each rank's gradient with its own {num_rows} rows, fewer than "
        f"{FEW_ROWS} for each of the {num_inputs} columns: the average over ranks differs from the "
        "whole batch's gradient. Pass sync=True to sum the second moment over the ranks.",
        UserWarning,
        stacklevel=2,
    )


@dataclass
class _Groups:
    """The layers' process groups, valid for one initialisation of torch.distributed."""

    world: Any = None
    groups: dict[int, Any] = field(default_factory=dict)  # by slot


_made = _Groups()


def _find_group(sync_slot: int | None) -> Any:
    world = dist.group.WORLD
    if sync_slot is None:
        return world
    if _made.world is not world:
        _made.world, _made.groups = world, {}
    for slot in tuple(_grouped_slots)[len(_made.groups) :]:
        _made.groups[slot] = dist.new_group(timeout=read_group_timeout(world))
    return _made.groups[sync_slot]
