"""Second moments summed over the ranks of a distributed run.

A collective inside backward must not get mixed up with those of DistributedDataParallel, nor with
that of another TrAct layer which some rank reaches earlier. So every synchronised layer has a
process group of its own; all of them are made together, in the order in which the layers were
wrapped, when the first backward needs one.
"""

import itertools
import warnings
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["FEW_ROWS", "SumOverRanks", "count_ranks", "new_channel", "warn_of_few_rows"]

FEW_ROWS = 8
"""Rows per column below which the second moments of the ranks differ too much to pass unsaid."""

_channels = itertools.count()
_last_channel = -1
_warned: set[int] = set()


def new_channel() -> int:
    """Return the number of a new channel; all ranks must ask for theirs in the same order."""
    global _last_channel
    _last_channel = next(_channels)
    return _last_channel


def count_ranks() -> int:
    """Return the number of processes, 1 outside a distributed run."""
    if not (dist.is_available() and dist.is_initialized()):
        return 1
    return dist.get_world_size()


class SumOverRanks:
    """Σ xᵀx and Σ b over all ranks, in one collective that begins now and is waited for later."""

    def __init__(self, total: Tensor, num_rows: Tensor, channel: int) -> None:
        """Take xᵀx, shape [g, n, n], and b, a scalar, of this rank, and the layer's channel."""
        self._shape = total.shape
        self._buffer = torch.cat([total.flatten(), num_rows.reshape(1)])
        self._work: Any = None
        if torch.compiler.is_compiling():
            self._buffer = _sum_now(self._buffer, channel)
        elif count_ranks() > 1:
            group = _find_group(channel)
            self._work = dist.all_reduce(self._buffer, group=group, async_op=True)

    def wait(self) -> tuple[Tensor, Tensor]:
        """Return Σ xᵀx, shape [g, n, n], and Σ b."""
        if self._work is not None:
            self._work.wait()
            self._work = None
        return self._buffer[:-1].view(self._shape), self._buffer[-1]


@torch.library.custom_op("trainact::sum_over_ranks", mutates_args=())
def _sum_now(buffer: Tensor, channel: int) -> Tensor:
    """Sum in one step that torch.compile keeps whole."""
    buffer = buffer.clone()
    if count_ranks() > 1:
        dist.all_reduce(buffer, group=_find_group(channel))
    return buffer


@_sum_now.register_fake
def _(buffer: Tensor, channel: int) -> Tensor:
    return torch.empty_like(buffer)


def warn_of_few_rows(num_rows: int, num_inputs: int, channel: int) -> None:
    """Say once for each layer that its ranks precondition by second moments that differ.

    Args:
        num_rows: b of this rank.
        num_inputs: n.
        channel: the layer's channel.
    """
    if torch.compiler.is_compiling() or count_ranks() == 1 or channel in _warned:
        return
    if num_rows >= FEW_ROWS * num_inputs:
        return
    _warned.add(channel)
    warnings.warn(
        f"TrAct preconditions each rank's gradient by its own {num_rows} rows, which is less than "
        f"{FEW_ROWS} for each of the {num_inputs} columns: the average over ranks differs from the "
        "whole batch's gradient. Pass sync=True to sum the second moment over the ranks.",
        UserWarning,
        stacklevel=2,
    )


@dataclass
class _Groups:
    """The channels' process groups, valid for one initialisation of torch.distributed."""

    world: Any = None
    groups: list[Any] = field(default_factory=list)


_made = _Groups()


def _find_group(channel: int) -> Any:
    world = dist.group.WORLD
    if _made.world is not world:
        _made.world, _made.groups = world, []
    while len(_made.groups) <= max(_last_channel, channel):
        _made.groups.append(dist.new_group(timeout=_read_timeout(world)))
    return _made.groups[channel]


def _read_timeout(world: Any) -> Any:
    """Return the timeout that the user gave to the default group; a new group would forget it."""
    try:
        backend = world._get_backend(world._device_types[0])
        return backend.options._timeout
    except (AttributeError, IndexError, RuntimeError):
        return None
