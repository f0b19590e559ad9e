"""TrAct as an identity on the weight: the forward stays PyTorch's own, one gradient is replaced.

``F.conv2d(x, apply_precondition(weight, x, ...), bias, ...)`` equals ``F.conv2d(x, weight, bias,
...)`` bit for bit, and so do its gradients by ``x`` and ``bias``. In backward, the plain gradient G
of the weight becomes G (xᵀx/b + λI)⁻¹. With ``center=True``, weight and bias pass through the
identity together, and both gradients are replaced.
"""

import contextlib
import inspect
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trainact.errors import TrActTypeError, TrActValueError, UnsupportedLayerError
from trainact.options import Options, Precision, choose_precision
from trainact.preconditioner import precondition_few_rows, precondition_with_bias
from trainact.rows import Patches, RowSample, count_inputs, count_rows, unfold_rows
from trainact.second_moment import KeptMoment, SecondMoment, Sums, measure_mean
from trainact.synchronisation import (
    add_group,
    get_world_size,
    needs_group,
    record_call,
    take_calls_of_this_backward,
    warn_of_few_rows,
)
from trainact.torch_internals import has_autocast, is_exporting, is_inside_transform

__all__ = [
    "Memory",
    "apply_precondition",
    "apply_precondition_with_bias",
    "find_bias_problem",
]


class Memory(NamedTuple):
    """What a layer keeps from one backward to the next; none of it is in the state dict.

    A copy of the layer is not inside ``accumulate``. It shares the process group, so that one rank
    alone may make a copy, such as an average of the weights.
    """

    sync_slot: int | None = None
    """The layer's process group in :mod:`trainact.synchronisation`."""
    kept: KeptMoment | None = None
    """For ``every``."""
    seed: Tensor | None = None
    """For ``rows``: an int64 scalar that grows by one in each backward."""
    average: SecondMoment | None = None
    """For ``moment_decay``: its tensors are changed in place."""
    pool: SecondMoment | None = None
    """Inside ``accumulate``: gradients stay plain and rows are added here."""

    def __reduce__(self) -> Any:
        return _restore_memory, (needs_group(self.sync_slot), *self[:-1])

    def list_tensors(self) -> dict[str, Tensor]:
        """Return the tensors that change from step to step, by name."""
        tensors: dict[str, Any] = {"seed": self.seed}
        if self.average is not None:
            total, num_rows, row_sum = self.average.sums
            tensors |= {"average.total": total, "average.num_rows": num_rows}
            tensors |= {"average.row_sum": row_sum}
        return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def _restore_memory(has_group: bool, sync_slot: int | None, *kept: Any) -> Memory:
    if has_group and sync_slot is not None:
        add_group(sync_slot)  # this may be another process
    return Memory(sync_slot, *kept)


def apply_precondition(
    weight: Tensor, x: Tensor, patches: Patches, lam: float, options: Options, memory: Memory
) -> Tensor:
    """Do what :func:`trainact.precondition_grad` does, with arguments that are already checked."""
    if not _is_training(weight):
        return weight
    return _apply(weight, None, x, patches, lam, options, memory)


def apply_precondition_with_bias(
    weight: Tensor,
    bias: Tensor | None,
    x: Tensor,
    patches: Patches,
    lam: float,
    options: Options,
    memory: Memory,
) -> tuple[Tensor, Tensor]:
    """Do the same for ``center=True``.

    Raises:
        UnsupportedLayerError: the weight is trained, but there is no trained bias.
    """
    if not _is_training(weight):
        return weight, bias  # type: ignore[return-value]
    problem = find_bias_problem(bias)
    if problem is not None:
        raise UnsupportedLayerError(f"the operator of a TrAct layer {problem}")
    return _apply(weight, bias, x, patches, lam, options, memory)


def find_bias_problem(bias: Tensor | None) -> str | None:
    """Return the reason why ``center=True`` cannot train this bias, with advice; None if it can."""
    if bias is None:
        found = "has no bias"
    elif not bias.requires_grad and not is_inside_transform():
        found = "has a frozen bias"
    else:
        return None
    return (
        f"{found}, but center=True trains weight and bias together: without the bias, the mean of "
        "z would move in the wrong way. Train a bias (bias=True, bias.requires_grad_(True)), or "
        "use center='batchnorm' if a batch norm follows the layer."
    )


def _apply(
    weight: Tensor,
    bias: Tensor | None,
    x: Tensor,
    patches: Patches,
    lam: float,
    options: Options,
    memory: Memory,
) -> Any:
    """Return the weight, or weight and bias, with TrAct's gradient."""
    _check_input(x)
    pool, average = memory.pool, memory.average
    if average is not None:
        _check_average(average, weight, patches)
    if pool is None and memory.sync_slot is not None and not options.sync:
        num_inputs = math.prod(weight.shape[1:])
        warn_of_few_rows(count_rows(x, patches), num_inputs, memory.sync_slot)
    held = average if pool is None else pool
    sums: Sums | tuple[None, None, None] = (None, None, None) if held is None else held.sums
    kept_moment = None if is_inside_transform() else memory.kept  # tensors must not leave it
    kept = (memory.sync_slot, kept_moment, memory.seed)
    if pool is not None:
        pool.has_calls = True
    outputs = _PreconditionGrad.apply(  # detached: a gradient by x alone does not come here
        weight, bias, x.detach(), patches, lam, options, *kept, pool is not None, *sums
    )
    if _begins_sum_early(options, is_pooled=pool is not None) and not is_inside_transform():
        record_call((outputs if bias is None else outputs[0]).grad_fn)
    return outputs


def _check_transform(ctx: Any) -> None:
    """Raise if a backward inside a transform would change tensors from outside it."""
    if ctx.is_pooled:
        raise TrActValueError(
            "trainact.accumulate works with backward(), not inside torch.func's transforms; take "
            "the gradient of the whole batch there."
        )
    if ctx.options.moment_decay:
        raise TrActValueError(
            "moment_decay changes its moving average in each backward, which torch.func's "
            "transforms do not allow; use backward(), or moment_decay=0."
        )
    if ctx.seed is not None:
        raise TrActValueError(
            "rows changes its seed in each backward, which torch.func's transforms do not allow; "
            "use backward(), or rows=None."
        )


def _check_average(average: SecondMoment, weight: Tensor, patches: Patches) -> None:
    kept, used = average.total.shape[:2], (patches.groups, math.prod(weight.shape[1:]))
    if kept != used:
        raise UnsupportedLayerError(
            f"moment_decay averages a second moment of {kept[0]} groups of {kept[1]} inputs, those "
            f"of the layer's weight, but its operator has {used[0]} groups of {used[1]} inputs; "
            "use moment_decay=0."
        )


def _check_input(x: Tensor) -> None:
    if x.layout != torch.strided:
        kind = str(x.layout).removeprefix("torch.")
        raise TrActTypeError(
            f"TrAct needs a dense input; got layout {kind}: call x.to_dense() first."
        )
    if x.is_complex():
        raise TrActTypeError(
            f"TrAct needs a real input; got {x.dtype}: pass real and imaginary part as channels."
        )
    if any(placement.is_shard(x.dim() - 1) for placement in getattr(x, "placements", ())):
        raise TrActTypeError(
            "TrAct needs whole rows; got a DTensor whose last dimension is split over the ranks, "
            "as RowwiseParallel does: use ColwiseParallel for this layer."
        )


def _is_training(weight: Tensor) -> bool:
    """Return whether a backward through ``weight`` can follow.

    A transform of torch.func counts as training. It is checked first, for the reason given in
    :func:`is_inside_transform`. An exported or traced graph is the plain layer's.
    """
    if torch.jit.is_tracing() or not torch.is_grad_enabled() or is_exporting():
        return False
    return is_inside_transform() or weight.requires_grad


class _PreconditionGrad(torch.autograd.Function):
    """Identity on the weight, or on weight and bias; its backward is TrAct."""

    generate_vmap_rule = True

    @staticmethod
    def forward(weight: Tensor, bias: Tensor | None, *_: Any) -> Any:
        if bias is None:
            return weight.view_as(weight)
        return weight.view_as(weight), bias.view_as(bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        weight, _, x, ctx.patches, ctx.lam, ctx.options, ctx.sync_slot = inputs[:7]
        ctx.kept, ctx.seed, ctx.is_pooled = inputs[7:10]
        ctx.sums = inputs[10:]
        ctx.weight_dtype = weight.dtype
        ctx.moment = None
        ctx.is_counted = False
        ctx.save_for_backward(x)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_weight: Tensor, grad_bias: Tensor | None = None
    ) -> tuple[Tensor | None, ...]:
        if is_inside_transform():
            _check_transform(ctx)
        with _without_autocast(grad_weight.device):
            if _begins_sum_early(ctx.options, is_pooled=ctx.is_pooled):
                for call in take_calls_of_this_backward():
                    call.moment = _CallInput(call).measure_over_ranks()
            if ctx.is_pooled:
                _check_open(ctx.sums[0])
                if not ctx.is_counted:  # else another backward of the same forward
                    SecondMoment(*ctx.sums).add_(_CallInput(ctx).measure())
                    ctx.is_counted = True
            else:
                grad_weight, grad_bias = _precondition_call(ctx, grad_weight, grad_bias)
        if ctx.seed is not None:
            ctx.seed.add_(1)
        return grad_weight, grad_bias, *(None,) * 11


# torch computes the signature in every call, which takes longer than all else in this forward.
_PreconditionGrad.forward.__signature__ = inspect.signature(  # type: ignore[attr-defined]
    _PreconditionGrad.forward
)


def _check_open(total: Tensor) -> None:
    if not total.numel():
        raise TrActValueError(
            "this backward belongs to a forward inside trainact.accumulate, but runs after the "
            "block; put forward and backward of each micro-batch inside the block."
        )


def _begins_sum_early(options: Options, *, is_pooled: bool) -> bool:
    """Return whether the first call in a backward begins the sums over ranks of the others."""
    if not options.sync or options.every > 1 or is_pooled:
        return False
    return not torch.compiler.is_compiling() and get_world_size() > 1


def _precondition_call(
    ctx: Any, grad_weight: Tensor, grad_bias: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Return the TrAct gradients from the rows of one call of the layer."""
    moment, ctx.moment = ctx.moment, None
    options: Options = ctx.options
    if moment is None:
        call = _CallInput(ctx)
        if call.num_rows == 0 and not options.sync:
            return torch.zeros_like(grad_weight), grad_bias
        if call.prefers_few_rows():
            mean = measure_mean(call.x, call.patches, call.precision) if options.center else None
            return precondition_few_rows(
                grad_weight, grad_bias, call.unfold(), ctx.lam, mean=mean, relative=options.relative
            )
        if ctx.kept is not None:
            moment = ctx.kept.find(ctx.lam, grad_weight, call.measure_over_ranks)
        else:
            moment = call.measure_over_ranks()
    if options.moment_decay:
        moment = SecondMoment(*ctx.sums).update_average_(moment, options.moment_decay)
    return precondition_with_bias(
        grad_weight, grad_bias, moment, ctx.lam, relative=options.relative
    )


class _CallInput:
    """The input of one call of the layer; activation checkpointing allows only one read."""

    def __init__(self, ctx: Any) -> None:
        (x,) = ctx.saved_tensors
        self.x: Tensor = x.detach()
        self.patches: Patches = ctx.patches
        self.options: Options = ctx.options
        self.sync_slot: int | None = ctx.sync_slot
        self.num_rows = count_rows(self.x, self.patches)
        size = self.options.sample_size
        takes_all = size is None or size >= self.num_rows
        self.sample = None if takes_all else RowSample(size, ctx.seed)
        count = self.num_rows if self.sample is None else self.sample.size
        num_inputs = count_inputs(self.x, self.patches)
        self.has_few_rows = count < num_inputs
        self.precision: Precision = choose_precision(
            self.options.moment_dtype, ctx.weight_dtype, x.device, count, num_inputs
        )

    def prefers_few_rows(self) -> bool:
        """Return whether the b × b system is smaller and the second moment itself not needed."""
        options = self.options
        needs_moment = options.every > 1 or options.sync or options.moment_decay
        return self.has_few_rows and not needs_moment

    def unfold(self) -> Tensor:
        return unfold_rows(self.x.to(self.precision.products), self.patches, self.sample)

    def measure(self) -> SecondMoment:
        center = bool(self.options.center)
        return SecondMoment.measure(
            self.x, self.patches, self.precision, self.sample, center=center
        )

    def measure_over_ranks(self) -> SecondMoment:
        """Measure, and with ``sync`` begin the sum over ranks."""
        moment = self.measure()
        if self.options.sync:
            assert self.sync_slot is not None
            moment.begin_sum_over_ranks(self.sync_slot)
        return moment


def _without_autocast(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Turn autocast off, also for a backward called inside it: the moment needs full precision."""
    if has_autocast(device.type):
        return torch.autocast(device.type, enabled=False)
    return contextlib.nullcontext()
