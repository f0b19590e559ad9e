"""TrAct as an identity on the weight: the forward stays PyTorch's own, one gradient is replaced.

``F.conv2d(x, precondition_grad(weight, x, ...), bias, ...)`` equals ``F.conv2d(x, weight, bias,
...)`` bit for bit, and so do its gradients by ``x`` and ``bias``. In backward, the plain gradient G
of the weight becomes G (xᵀx/b + λI)⁻¹.
"""

import contextlib
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trainact.errors import TrActTypeError, TrActValueError
from trainact.options import (
    DEFAULT_LAM,
    Options,
    Precision,
    check_lam,
    check_options,
    choose_precision,
)
from trainact.preconditioner import precondition, precondition_few_rows
from trainact.rows import (
    Patches,
    RowSample,
    count_inputs,
    count_rows,
    describe_patches,
    unfold_rows,
)
from trainact.second_moment import KeptMoment, SecondMoment
from trainact.synchronisation import (
    get_world_size,
    record_call,
    take_calls_of_this_backward,
    warn_of_few_rows,
)
from trainact.torch_internals import is_inside_transform

__all__ = ["Memory", "apply_precondition", "precondition_grad"]


class Memory(NamedTuple):
    """What a layer keeps from one backward to the next; none of it is in a checkpoint."""

    sync_slot: int | None = None
    """The layer's process group in :mod:`trainact.synchronisation`."""
    kept: KeptMoment | None = None
    """For ``every``."""
    seed: Tensor | None = None
    """For ``rows``: an int64 scalar that grows by one in each backward."""
    pool: SecondMoment | None = None
    """Inside ``accumulate``: gradients stay plain and rows are added here."""


def precondition_grad(
    weight: Tensor,
    x: Tensor,
    lam: float = DEFAULT_LAM,
    *,
    stride: int | Sequence[int] = 1,
    padding: int | str | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    padding_mode: str = "zeros",
    moment_dtype: torch.dtype | None = None,
) -> Tensor:
    """Return ``weight`` unchanged, but with TrAct's gradient.

    This is the functional form, for custom layer classes: pass the result to ``F.linear`` or
    ``F.conv1d/2d/3d`` instead of the weight, and the same arguments to both.

    >>> x, weight = torch.randn(8, 5), torch.randn(3, 5, requires_grad=True)
    >>> z = torch.nn.functional.linear(x, precondition_grad(weight, x))
    >>> z.sum().backward()
    >>> inverse = torch.linalg.inv(x.T @ x / 8 + 0.1 * torch.eye(5))
    >>> torch.allclose(weight.grad, torch.ones(3, 8) @ x @ inverse, atol=1e-5)
    True

    Args:
        weight: W, shape [m, n] for a linear layer, [m, C/groups, *kernel] for a convolution.
        x: the layer's input: [..., n], or [N, C, *size] or [C, *size].
        lam: λ, a positive finite number.
        stride: as in the convolution.
        padding: as in the convolution: numbers, ``'same'`` or ``'valid'``.
        dilation: as in the convolution.
        groups: as in the convolution; each group has its own second moment.
        padding_mode: how the input was padded before the convolution, as in ``nn.Conv2d``.
        moment_dtype: the dtype of the second moment's products; None means float32, and float64
            for a float64 weight.

    Raises:
        TrActTypeError: an argument has the wrong type.
        TrActValueError: an argument is out of range.
    """
    if not isinstance(weight, Tensor) or weight.dim() not in (2, 3, 4, 5):
        came = f"{weight.dim()} dimensions" if isinstance(weight, Tensor) else type(weight).__name__
        raise TrActTypeError(
            f"precondition_grad needs the weight of a linear layer (2 dimensions) or of a "
            f"convolution (3, 4 or 5); got {came}."
        )
    patches = describe_patches(weight.shape[2:], stride, padding, dilation, groups, padding_mode)
    options = check_options(Options(moment_dtype))
    return apply_precondition(weight, x, patches, check_lam(lam), options, Memory())


def apply_precondition(
    weight: Tensor, x: Tensor, patches: Patches, lam: float, options: Options, memory: Memory
) -> Tensor:
    """Do what :func:`precondition_grad` does, with arguments that are already checked."""
    if torch.jit.is_tracing() or not _is_training(weight):
        return weight
    _check_input(x)
    pool = memory.pool
    if pool is not None and is_inside_transform():
        raise TrActValueError(
            "trainact.accumulate works with backward(), not inside torch.func's transforms; take "
            "the gradient of the whole batch there."
        )
    if pool is None and memory.sync_slot is not None and not options.sync:
        num_inputs = math.prod(weight.shape[1:])
        warn_of_few_rows(count_rows(x, patches), num_inputs, memory.sync_slot)
    pooled = (None, None) if pool is None else (pool.total, pool.num_rows)
    output = _PreconditionGrad.apply(
        weight, x, patches, lam, options, memory.sync_slot, memory.kept, memory.seed, *pooled
    )
    if _begins_sum_early(options, is_pooled=pool is not None) and not is_inside_transform():
        record_call(output.grad_fn)
    return output


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


def _is_training(weight: Tensor) -> bool:
    """Return whether a backward through ``weight`` can follow.

    A transform of torch.func counts as training. It is checked first, for the reason given in
    :func:`is_inside_transform`. An exported graph is the plain layer's.
    """
    if not torch.is_grad_enabled() or torch.compiler.is_exporting():
        return False
    return is_inside_transform() or weight.requires_grad


class _PreconditionGrad(torch.autograd.Function):
    """Identity on the weight; its backward is TrAct."""

    generate_vmap_rule = True

    @staticmethod
    def forward(weight: Tensor, *_: Any) -> Tensor:
        return weight.view_as(weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        weight, x, ctx.patches, ctx.lam, ctx.options, ctx.sync_slot, ctx.kept, ctx.seed = inputs[:8]
        ctx.pooled_total, ctx.pooled_rows = inputs[8:]
        ctx.weight_dtype = weight.dtype
        ctx.moment = None
        ctx.save_for_backward(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_weight: Tensor) -> tuple[Tensor | None, ...]:
        with _without_autocast(grad_weight.device):
            if _begins_sum_early(ctx.options, is_pooled=ctx.pooled_total is not None):
                for call in take_calls_of_this_backward():
                    call.moment = _CallInput(call).measure_over_ranks()
            if ctx.pooled_total is not None:
                pool = SecondMoment(ctx.pooled_total, ctx.pooled_rows)
                pool.add_(_CallInput(ctx).measure())
            else:
                grad_weight = _precondition_call(ctx, grad_weight)
        if ctx.seed is not None:
            ctx.seed.add_(1)
        return grad_weight, *(None,) * 9


def _begins_sum_early(options: Options, *, is_pooled: bool) -> bool:
    """Return whether the first call in a backward begins the sums over ranks of the others."""
    if not options.sync or options.every > 1 or is_pooled:
        return False
    return not torch.compiler.is_compiling() and get_world_size() > 1


def _precondition_call(ctx: Any, grad_weight: Tensor) -> Tensor:
    """Return the TrAct gradient from the rows of one call of the layer."""
    moment, ctx.moment = ctx.moment, None
    if moment is None:
        call = _CallInput(ctx)
        if call.num_rows == 0 and not ctx.options.sync:
            return torch.zeros_like(grad_weight)
        if call.prefers_few_rows():
            rows = call.unfold()
            return precondition_few_rows(grad_weight, rows, ctx.lam)
        if ctx.kept is not None:
            moment = ctx.kept.find(ctx.lam, call.measure_over_ranks)
        else:
            moment = call.measure_over_ranks()
    return precondition(grad_weight, moment, ctx.lam)


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
        return self.has_few_rows and self.options.every == 1 and not self.options.sync

    def unfold(self) -> Tensor:
        return unfold_rows(self.x.to(self.precision.products), self.patches, self.sample)

    def measure(self) -> SecondMoment:
        return SecondMoment.measure(self.x, self.patches, self.precision, self.sample)

    def measure_over_ranks(self) -> SecondMoment:
        """Measure, and with ``sync`` begin the sum over ranks."""
        moment = self.measure()
        if self.options.sync:
            assert self.sync_slot is not None
            moment.begin_sum_over_ranks(self.sync_slot)
        return moment


def _without_autocast(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Turn autocast off, also for a backward called inside it: the moment needs full precision."""
    if torch.amp.is_autocast_available(device.type):
        return torch.autocast(device.type, enabled=False)
    return contextlib.nullcontext()
