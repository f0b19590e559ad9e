"""Gradient accumulation with the statistics of the whole batch."""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from trainact.errors import TrActValueError
from trainact.gradient import PooledMoment, precondition_pooled
from trainact.layers import TrActLayer
from trainact.roster import check_tract
from trainact.settings import choose_solve_dtype, resolve_moment_dtype

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

    Raises:
        TrActValueError: the model has no TrAct layer or lost one, or is inside another such block.
    """
    check_tract(model)
    layers = [layer for layer in model.modules() if isinstance(layer, TrActLayer)]
    pools = _make_pools(layers)
    try:
        for pool in pools:
            pool.open()
        yield
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

    def precondition(self) -> None:
        if self.weight.grad is not None:
            tract = precondition_pooled(self.weight.grad, self.moment, self.lam)
            self.weight.grad.copy_(tract)

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
    if any(layer.memory.pooled is not None for layer in layers):
        raise TrActValueError("the model is inside another accumulate block; use one at a time.")
    pools: dict[int, _Pool] = {}
    for layer in layers:
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
