"""Second moments summed over the ranks of a distributed run.

A collective inside backward must not get mixed up with those of DistributedDataParallel, nor with
that of another TrAct layer which some rank reaches earlier. So every synchronised layer has a
process group of its own; all of them are made together, in the order in which the layers were
wrapped, when the first backward needs one.
"""

import itertools
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["count_ranks", "new_channel", "sum_over_ranks"]

_channels = itertools.count()
_last_channel = -1


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


def sum_over_ranks(total: Tensor, num_rows: Tensor, channel: int) -> tuple[Tensor, Tensor]:
    """Return Σ xᵀx and Σ b over all ranks, in one collective.

    Args:
        total: xᵀx of this rank's rows, shape [g, n, n].
        num_rows: b of this rank, a scalar of the same dtype.
        channel: the layer's channel, from :func:`new_channel`.
    """
    if count_ranks() == 1:
        return total, num_rows
    buffer = torch.cat([total.flatten(), num_rows.reshape(1)])
    dist.all_reduce(buffer, group=_find_group(channel))
    return buffer[:-1].view_as(total), buffer[-1]


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
