"""Gradient accumulation with the second moment of the whole batch."""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from trainact.errors import TrActValueError
from trainact.layers import TrActLayer
from trainact.options import choose_precision
from trainact.preconditioner import precondition
from trainact.second_moment import SecondMoment
from trainact.sharding import reshard
from trainact.wrapped_layers import check_tract, list_tract_layers

__all__ = ["accumulate"]


@contextlib.contextmanager
def accumulate(model: nn.Module) -> Iterator[None]:
    """Precondition once, with the rows of all micro-batches, instead of once per backward.

    Inside the block, the gradients of TrAct's weights stay plain and backward adds up their second
    moments. At its end, each weight's gradient is preconditioned. The result in ``.grad`` is that
    of one backward on the concatenated batch::

        with accumulate(model):
            for images, labels in micro_batches:
                (loss(model(images), labels) / len(micro_batches)).backward()
        optimizer.step()

    For a layer that is called several times in one forward, this pooled second moment gives the
    exact least-squares solution. A gradient from before the block is added to the result. If the
    block raises, the gradients of TrAct's weights are reset to those before the block.

    In a distributed run, the second moments are summed over all ranks at the end of the block. So
    every rank must run the block, and its last backward must synchronise gradients (use ``no_sync``
    for the others).

    Raises:
        TrActValueError: the model has no TrAct layer or lost one, the weight of one is not a
            parameter, or the model is inside another such block.
    """
    check_tract(model)
    reshard(model)
    pools = _make_pools(list(list_tract_layers(model).values()))
    try:
        for pool in pools:
            pool.open()
        yield
        for pool in pools:
            pool.begin_sum_over_ranks()
        for pool in pools:
            pool.moment.wait()
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
    """A weight, the layers that share it, and the second moment of all their rows."""

    weight: Tensor
    lam: float
    moment: SecondMoment
    layers: list[TrActLayer] = field(default_factory=list)
    grad_before: Tensor | None = None
    grad_copy: Tensor | None = None  # a wrapper (DDP) may overwrite ``grad_before``

    def open(self) -> None:
        self.grad_before = self.weight.grad
        self.grad_copy = None if self.weight.grad is None else self.weight.grad.clone()
        self.weight.grad = None
        for layer in self.layers:
            layer.memory = layer.memory._replace(pool=self.moment)

    def close(self) -> None:
        for layer in self.layers:
            layer.memory = layer.memory._replace(pool=None)

    def begin_sum_over_ranks(self) -> None:
        """Begin the sum even without a gradient on this rank: another rank may have one."""
        sync_slot = self.layers[0].memory.sync_slot
        assert sync_slot is not None
        self.moment.begin_sum_over_ranks(sync_slot)

    def precondition(self) -> None:
        grad = self.weight.grad
        if grad is None:
            return
        with torch.no_grad():
            if hasattr(grad, "full_tensor"):
                self._precondition_sharded(grad)
            else:
                grad.copy_(self._precondition(grad))

    def _precondition_sharded(self, grad: Any) -> None:
        """Precondition a DTensor in place.

        If it is sharded by outputs, and all outputs have the same second moment, each rank
        preconditions its own shard. Otherwise (groups, or other shards) the gradient is gathered.
        """
        by_outputs = all(p.is_replicate() or p.is_shard(0) for p in grad.placements)
        if by_outputs and len(self.moment.total) == 1:
            local = grad.to_local()
            local.copy_(self._precondition(local))
        else:
            from torch.distributed.tensor import distribute_tensor

            tract = self._precondition(grad.full_tensor())
            grad.copy_(distribute_tensor(tract, grad.device_mesh, grad.placements))

    def _precondition(self, grad: Tensor) -> Tensor:
        """Return the TrAct gradient, or the gradient itself if no rows were added."""
        tract = precondition(grad, self.moment, self.lam)
        return torch.where(torch.as_tensor(self.moment.num_rows) > 0, tract, grad)

    def add_grad_back(self) -> None:
        if self.weight.grad is None:
            self.restore_grad()
        elif self.grad_copy is not None:
            self.weight.grad.add_(self.grad_copy)

    def restore_grad(self) -> None:
        self.weight.grad = self.grad_before
        if self.grad_before is not None and self.grad_copy is not None:
            self.grad_before.copy_(self.grad_copy)


def _make_pools(layers: list[TrActLayer]) -> list[_Pool]:
    if not layers:
        raise TrActValueError(
            "accumulate found no TrAct layer in the model; call trainact.apply_tract(model) first."
        )
    if any(layer.memory.pool is not None for layer in layers):
        raise TrActValueError("the model is inside another accumulate block; use one at a time.")
    pools: dict[int, _Pool] = {}
    for layer in layers:
        if not isinstance(layer.weight, nn.Parameter):
            raise TrActValueError(
                f"accumulate cannot precondition the weight of {type(layer).__name__}, which is "
                "computed from other parameters; take the gradient of the whole batch instead."
            )
        if not layer.weight.requires_grad:
            continue
        pool = pools.setdefault(id(layer.weight), _make_pool(layer))
        if pool.lam != layer.lam:
            raise TrActValueError(
                f"two TrAct layers share a weight but not lam ({pool.lam:g} and {layer.lam:g}); "
                "set the same lam on both."
            )
        pool.layers.append(layer)
    return list(pools.values())


def _make_pool(layer: TrActLayer) -> _Pool:
    weight = layer.weight
    groups = getattr(layer, "groups", 1)
    num_inputs = math.prod(weight.shape[1:])
    dtype = choose_precision(layer.options.moment_dtype, weight.dtype, weight.device).sums
    total = torch.zeros(groups, num_inputs, num_inputs, dtype=dtype, device=weight.device)
    return _Pool(weight, layer.lam, SecondMoment(total, total.new_zeros(())))
