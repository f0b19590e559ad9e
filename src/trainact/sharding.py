"""Weights that FSDP2 splits over the ranks: reshard them, read them whole, write them whole."""

import sys

import torch
from torch import Tensor, nn

__all__ = ["is_sharded_model", "read_whole", "reshard", "write_whole"]


def is_sharded_model(model: nn.Module) -> bool:
    """Return whether FSDP2's ``fully_shard`` was applied to the model or a part of it."""
    return bool(_list_fsdp_modules(model))


def reshard(model: nn.Module) -> None:
    """Reshard FSDP2's parameters: those are the ones that an optimizer trains.

    A forward without a backward leaves them unsharded.
    """
    for module in _list_fsdp_modules(model):
        module.reshard()  # type: ignore[operator]


def read_whole(weight: Tensor) -> Tensor:
    """Return the values of a weight; all ranks must call this if it is sharded."""
    return weight.full_tensor() if hasattr(weight, "full_tensor") else weight.detach()


def write_whole(weight: Tensor, values: Tensor) -> None:
    """Copy ``values``, of the whole weight's shape, into the weight or into each rank's shard.

    The parameter stays the same object with the same dtype and memory format.
    """
    with torch.no_grad():
        if hasattr(weight, "device_mesh"):
            from torch.distributed.tensor import distribute_tensor

            values = values.to(weight.device, weight.dtype)
            values = distribute_tensor(values, weight.device_mesh, weight.placements)  # type: ignore[attr-defined]
        weight.copy_(values)


def _list_fsdp_modules(model: nn.Module) -> list[nn.Module]:
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None:
        return []
    return [module for module in model.modules() if isinstance(module, fsdp.FSDPModule)]
