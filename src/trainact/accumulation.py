"""Gradient accumulation with the second moment of the whole batch."""

import contextlib
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from trainact.errors import TrActValueError
from trainact.layers import TrActLayer, check_bias
from trainact.options import Options, choose_precision
from trainact.preconditioner import precondition_with_bias
from trainact.second_moment import SecondMoment
from trainact.sharding import reshard
from trainact.wrapped_layers import check_tract, list_tract_layers

__all__ = ["accumulate"]


@contextlib.contextmanager
def accumulate(model: nn.Module) -> Iterator[None]:
    """Precondition once, with the rows of all micro-batches, instead of once per backward.

    Inside the block, the gradients of TrAct's weights stay plain and backward adds up their second
    moments. At its end, each weight's gradient is preconditioned, with ``center=True`` together
    with that of the bias. The result in ``.grad`` is that of one backward on the concatenated
    batch. Forward and backward of each micro-batch must be inside the block::

        with accumulate(model):
            for images, labels in micro_batches:
                (loss(model(images), labels) / len(micro_batches)).backward()
        optimizer.step()

    For a layer that is called several times in one forward, this pooled second moment gives the
    exact least-squares solution. All of ``.grad`` is preconditioned: if the loss uses the weight in
    another place too, such as an L2 penalty, that part of the gradient as well; use weight decay of
    the optimizer instead. A gradient from before the block is added to the result, with a warning.
    Call ``zero_grad()`` and ``optimizer.step()`` outside the block: inside, ``zero_grad()`` drops
    the gradients of earlier micro-batches but not their rows. Call backward once for each forward
    if it is compiled or uses reentrant checkpointing: add the losses before. If the block raises,
    the gradients of TrAct's weights are reset to those before the block. With ``moment_decay``, the
    block counts as one step.

    In a distributed run, the second moments are summed over all ranks at the end of the block. So
    every rank must run the block, and its last backward must synchronise gradients (use ``no_sync``
    for the others).

    Raises:
        TrActValueError: the model has no TrAct layer or lost one, the weight of one is not a
            parameter, the model is inside another such block, forward and backward are on
            different sides of the block, or an optimizer's step is inside it.
    """
    check_tract(model)
    reshard(model)
    pools = _make_pools(list(list_tract_layers(model).values()))
    try:
        with _refused_steps(pools):
            for pool in pools:
                pool.open()
            yield
        for pool in pools:
            pool.begin_sum_over_ranks()
        for pool in pools:
            pool.moment.wait()
        for pool in pools:
            pool.check_grads()
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


@contextlib.contextmanager
def _refused_steps(pools: "list[_Pool]") -> Iterator[None]:
    """Let optimizers raise if they train the weights of these pools."""
    trained = {id(held.parameter) for pool in pools for held in pool.set_aside}

    def refuse(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        groups = optimizer.param_groups
        if any(id(parameter) in trained for group in groups for parameter in group["params"]):
            raise TrActValueError(
                "optimizer.step() was called inside accumulate, where the gradient of a TrAct "
                "weight is still the plain one; call it after the block."
            )

    def refuse_before(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not any(map(callable, (*args, *kwargs.values()))):  # a closure may end the block
            refuse(optimizer, args, kwargs)

    handles = (
        register_optimizer_step_pre_hook(refuse_before),
        register_optimizer_step_post_hook(refuse),
    )
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@dataclass
class _SetAside:
    """A parameter whose gradient from before the block is set aside."""

    parameter: Tensor
    before: Tensor | None = None
    copy: Tensor | None = None  # a wrapper (DDP) may overwrite ``before``
    is_open: bool = False

    def open(self) -> None:
        grad = self.parameter.grad
        self.before, self.is_open = grad, True
        self.copy = None if grad is None else grad.clone()
        self.parameter.grad = None
        if grad is not None and grad.any():
            warnings.warn(
                "a TrAct layer already has a gradient at the beginning of accumulate; it is added "
                "to the block's, even if the block calls zero_grad(): call it before the block.",
                stacklevel=5,
            )

    def add_back(self) -> None:
        if self.parameter.grad is None:
            self.restore()
        elif self.copy is not None:
            self.parameter.grad.add_(self.copy)

    def restore(self) -> None:
        if not self.is_open:
            return
        self.parameter.grad = self.before
        if self.before is not None and self.copy is not None:
            self.before.copy_(self.copy)


@dataclass
class _Pool:
    """A weight, the layers that share it, and the second moment of all their rows."""

    weight: Tensor
    bias: Tensor | None  # only if its gradient is preconditioned too
    options: Options
    moment: SecondMoment
    layers: list[TrActLayer] = field(default_factory=list)

    def __post_init__(self) -> None:
        parameters = [self.weight] if self.bias is None else [self.weight, self.bias]
        self.set_aside = [_SetAside(parameter) for parameter in parameters]
        self.own_total, self.own_rows = self.moment.total, self.moment.num_rows  # of this rank

    @property
    def lam(self) -> float:
        return self.layers[0].lam

    def open(self) -> None:
        for held in self.set_aside:
            held.open()
        for layer in self.layers:
            layer.memory = layer.memory._replace(pool=self.moment)

    def close(self) -> None:
        for layer in self.layers:
            layer.memory = layer.memory._replace(pool=None)
        self.own_total.resize_(0)  # a later backward of a forward inside the block sees this

    def begin_sum_over_ranks(self) -> None:
        """Begin the sum even without a gradient on this rank: another rank may have one."""
        self.moment.begin_sum_over_ranks(sync_slot=None)

    def check_grads(self) -> None:
        """Raise if the gradients are not those of the rows."""
        if not self.has_grads:
            if self.own_rows > 0:
                raise TrActValueError(
                    "accumulate found no .grad of a TrAct layer, although backward reached the "
                    "layer: it works with backward() and parameters that keep their .grad until "
                    "the end of the block, not with torch.autograd.grad or functional_call."
                )
        elif not self.moment.has_calls:
            raise TrActValueError(
                "accumulate found a gradient of a TrAct layer, but the layer was not called inside "
                "the block; put forward and backward of each micro-batch inside the block."
            )

    @property
    def has_grads(self) -> bool:
        return all(held.parameter.grad is not None for held in self.set_aside)

    def precondition(self) -> None:
        """Precondition the gradients; a moving average takes in the rows even without them.

        Layers that share the weight have averages of their own; all take in the same.
        """
        used = self.moment
        for layer in self.layers:
            if layer.memory.average is not None:
                used = layer.memory.average.update_average_(self.moment, self.options.moment_decay)
        if not self.has_grads:
            return
        grads: list[Any] = [held.parameter.grad for held in self.set_aside]
        with torch.no_grad():
            if hasattr(grads[0], "full_tensor"):
                self._precondition_sharded(grads, used)
            else:
                self._precondition(grads, used)

    def _precondition_sharded(self, grads: list[Any], used: SecondMoment) -> None:
        """Precondition DTensors in place.

        If they are sharded by outputs, and all outputs have the same second moment, each rank
        preconditions its own shards. Otherwise (groups, or other shards) gradients are gathered.
        """
        placements = [placement for grad in grads for placement in grad.placements]
        by_outputs = all(p.is_replicate() or p.is_shard(0) for p in placements)
        if by_outputs and len(self.moment.total) == 1:
            self._precondition([grad.to_local() for grad in grads], used)
        else:
            from torch.distributed.tensor import distribute_tensor

            whole = [grad.full_tensor() for grad in grads]
            self._precondition(whole, used)
            for grad, tract in zip(grads, whole, strict=True):
                grad.copy_(distribute_tensor(tract, grad.device_mesh, grad.placements))

    def _precondition(self, grads: list[Any], used: SecondMoment) -> None:
        """Precondition the gradients of weight and perhaps bias in place, if rows were added."""
        grad_weight, grad_bias = grads[0], grads[1] if self.bias is not None else None
        results: tuple[Any, Any] = precondition_with_bias(
            grad_weight, grad_bias, used, self.lam, relative=self.options.relative
        )
        has_rows = torch.as_tensor(self.moment.num_rows) > 0
        for grad, tract in zip(grads, results, strict=False):
            grad.copy_(torch.where(has_rows, tract, grad))

    def add_grad_back(self) -> None:
        for held in self.set_aside:
            held.add_back()

    def restore_grad(self) -> None:
        for held in self.set_aside:
            held.restore()


def _make_pools(layers: list[TrActLayer]) -> list[_Pool]:
    if not layers:
        raise TrActValueError(
            "accumulate found no TrAct layer in the model; call trainact.apply_tract(model) first."
        )
    if any(layer.memory.pool is not None for layer in layers):
        raise TrActValueError("the model is inside another accumulate block; use one at a time.")
    pools: dict[int, _Pool] = {}
    for layer in layers:
        _check_parameter("weight", layer)
        if not layer.weight.requires_grad:
            continue
        if layer.weight.dim() < 2:
            raise TrActValueError(
                f"the weight of {type(layer).__name__} has {layer.weight.dim()} dimensions: "
                "FullyShardedDataParallel has divided it. accumulate works with FSDP2 "
                "(torch.distributed.fsdp.fully_shard); without it, pass sync=True."
            )
        if layer.options.changes_bias:
            check_bias(layer, layer.options)
            _check_parameter("bias", layer)
        pool = pools.setdefault(id(layer.weight), _make_pool(layer))
        pool.layers.append(layer)
        _check_same(pool, layer)
    _check_separate([pool.bias for pool in pools.values() if pool.bias is not None])
    return list(pools.values())


def _check_parameter(name: str, layer: TrActLayer) -> None:
    if not isinstance(getattr(layer, name), nn.Parameter):
        raise TrActValueError(
            f"accumulate cannot precondition the {name} of {type(layer).__name__}, which is "
            "computed from other parameters; take the gradient of the whole batch instead."
        )


def _check_same(pool: _Pool, layer: TrActLayer) -> None:
    """Raise if a layer needs another gradient of the weight than the layers that share it."""
    if pool.lam != layer.lam:
        raise TrActValueError(
            f"two TrAct layers share a weight but not lam ({pool.lam:g} and {layer.lam:g}); "
            "set the same lam on both."
        )
    for name in ("center", "relative", "moment_decay"):
        ours, theirs = getattr(pool.options, name), getattr(layer.options, name)
        if ours != theirs:
            raise TrActValueError(
                f"two TrAct layers share a weight but not {name} ({ours} and {theirs}); use the "
                "same options for both."
            )
    ours, theirs = len(pool.moment.total), getattr(layer, "groups", 1)
    if ours != theirs:
        raise TrActValueError(
            f"two TrAct layers share a weight but not the number of groups ({ours} and {theirs}); "
            "take the gradient of the whole batch instead."
        )
    if pool.bias is not None and pool.bias is not layer.bias:
        raise TrActValueError(
            "two TrAct layers with center=True share a weight but not the bias; accumulate needs "
            "them to share both."
        )


def _check_separate(biases: list[Tensor]) -> None:
    if len({id(bias) for bias in biases}) < len(biases):
        raise TrActValueError(
            "two TrAct layers with center=True share a bias but not the weight; accumulate needs "
            "them to share both."
        )


def _make_pool(layer: TrActLayer) -> _Pool:
    weight, options = layer.weight, layer.options
    shape = (getattr(layer, "groups", 1), math.prod(weight.shape[1:]))
    dtype = choose_precision(options.moment_dtype, weight.dtype, weight.device).sums
    center = bool(options.center)
    moment = SecondMoment.without_rows(shape, dtype, weight.device, center=center)
    return _Pool(weight, layer.bias if options.changes_bias else None, options, moment)
