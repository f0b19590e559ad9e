"""Gradient accumulation with the statistics of the whole batch."""

import contextlib
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from trainact.errors import TrActValueError
from trainact.gradient import PooledMoment, precondition_pooled
from trainact.layers import TrActLayer
from trainact.roster import check_tract
from trainact.settings import choose_solve_dtype, resolve_moment_dtype
from trainact.synchronisation import SumOverRanks

__all__ = ["accumulate"]


@contextlib.contextmanager
def accumulate(model: nn.Module) -> Iterator[None]:
    """Precondition once, with the rows of all micro-batches, instead of once per backward.

    Inside the block the gradients of TrAct's weights stay plain and their second moments add up in
    backward; on leaving, each weight's gradient is preconditioned. What is left in ``.grad`` equals
    one backward on the concatenated batch::

        with accumulate(model):
            for images, labels in micro_batches:
                (loss(model(images), labels) / len(micro_batches)).backward()
        optimizer.step()

    The same pooled moment is the exact least-squares answer where a layer is called several times
    in one forward. A gradient present on entering is set aside and added back. If the block raises,
    the gradients of TrAct's weights are what they were on entering.

    In a distributed run the moments are summed over all ranks on leaving, as the gradients are, so
    every rank must enter and leave the block, and the last backward must be one that synchronises
    gradients (``no_sync`` for the others).

    Raises:
        TrActValueError: the model has no TrAct layer or lost one, has one whose weight is not a
            parameter, or is inside another such block.
    """
    check_tract(model)
    _reshard(model)
    layers = [layer for layer in model.modules() if isinstance(layer, TrActLayer)]
    pools = _make_pools(layers)
    try:
        for pool in pools:
            pool.open()
        yield
        for pool in pools:
            pool.sum_over_ranks()
        for pool in pools:
            pool.precondition()
    except BaseException:
        for pool in pools:
            pool.restore_grad()
        raise
    finally:
        for pool in pools:
            pool.close()
    for pool in pools:
        pool.add_grad_back()


@dataclass
class _Pool:
    """One trained weight, the layers that share it, and the rows they have met."""

    weight: Tensor
    lam: float
    moment: PooledMoment
    layers: list[TrActLayer] = field(default_factory=list)
    grad_before: Tensor | None = None
    grad_copy: Tensor | None = None  # a wrapper may write into the tensor that ``.grad`` was

    def open(self) -> None:
        self.grad_before = self.weight.grad
        self.grad_copy = None if self.weight.grad is None else self.weight.grad.clone()
        self.weight.grad = None
        for layer in self.layers:
            layer.memory = layer.memory._replace(pooled=self.moment)

    def close(self) -> None:
        for layer in self.layers:
            layer.memory = layer.memory._replace(pooled=None)

    def sum_over_ranks(self) -> None:
        """Take part in the sum whether or not this rank has a gradient: others may."""
        channel = self.layers[0].memory.channel
        assert channel is not None
        self.moment = PooledMoment(*SumOverRanks(*self.moment, channel).wait())

    def precondition(self) -> None:
        grad = self.weight.grad
        if grad is None:
            return
        with torch.no_grad():
            if hasattr(grad, "full_tensor"):
                _precondition_sharded(grad, self.moment, self.lam)
            else:
                grad.copy_(precondition_pooled(grad, self.moment, self.lam))

    def add_grad_back(self) -> None:
        if self.weight.grad is None:
            self.restore_grad()
        elif self.grad_copy is not None:
            self.weight.grad.add_(self.grad_copy)

    def restore_grad(self) -> None:
        self.weight.grad = self.grad_before
        if self.grad_before is not None and self.grad_copy is not None:
            self.grad_before.copy_(self.grad_copy)


def _precondition_sharded(grad: Any, moment: PooledMoment, lam: float) -> None:
    """Precondition a DTensor in place: each rank its own rows, where the inverse treats all alike.

    With groups the rows differ, and a gradient sharded by columns has no whole rows: both are
    gathered first.
    """
    whole_rows = all(p.is_replicate() or p.is_shard(0) for p in grad.placements)
    if whole_rows and len(moment.total) == 1:
        local = grad.to_local()
        local.copy_(precondition_pooled(local, moment, lam))
    else:
        from torch.distributed.tensor import distribute_tensor

        tract = precondition_pooled(grad.full_tensor(), moment, lam)
        grad.copy_(distribute_tensor(tract, grad.device_mesh, grad.placements))


def _reshard(model: nn.Module) -> None:
    """Bring back FSDP2's sharded parameters, which hold the gradients, after a forward alone."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    for module in model.modules() if fsdp is not None else ():
        if isinstance(module, fsdp.FSDPModule):  # type: ignore[union-attr]
            module.reshard()


def _make_pools(layers: list[TrActLayer]) -> list[_Pool]:
    if not layers:
        raise TrActValueError(
            "accumulate found no TrAct layer in the model; call trainact.apply_tract(model) first."
        )
    if any(layer.memory.pooled is not None for layer in layers):
        raise TrActValueError("the model is inside another accumulate block; use one at a time.")
    pools: dict[int, _Pool] = {}
    for layer in layers:
        if layer._parameters.get("weight") is None:
            raise TrActValueError(
                f"accumulate cannot precondition the weight of {type(layer).__name__}, which is "
                "computed from other parameters; take the gradient of the whole batch."
            )
        if not layer.weight.requires_grad:
            continue
        pool = pools.setdefault(id(layer.weight), _make_pool(layer))
        if pool.lam != layer.lam:
            raise TrActValueError(
                f"two TrAct layers share a weight but not lam ({pool.lam:g} and {layer.lam:g}); "
                "give them the same."
            )
        pool.layers.append(layer)
    return list(pools.values())


def _make_pool(layer: TrActLayer) -> _Pool:
    weight = layer.weight
    groups = getattr(layer, "groups", 1)
    num_inputs = math.prod(weight.shape[1:])
    moment_dtype = resolve_moment_dtype(layer.options.moment_dtype, weight.dtype)
    dtype = choose_solve_dtype(weight.device, moment_dtype)
    total = torch.zeros(groups, num_inputs, num_inputs, dtype=dtype, device=weight.device)
    return _Pool(weight, layer.lam, PooledMoment(total, total.new_zeros(())))
