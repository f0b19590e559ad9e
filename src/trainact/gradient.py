"""TrAct as an identity on the weight: the forward is PyTorch's own, one gradient is replaced.

``F.conv2d(x, precondition_grad(weight, x, ...), bias, ...)`` computes what ``F.conv2d(x, weight,
bias, ...)`` does, bit for bit, and so are its gradients by ``x`` and ``bias``. On its way to
``weight`` the finished plain gradient G becomes G (xᵀx/b + λI)⁻¹.
"""

import contextlib
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trainact.errors import TrActTypeError, TrActValueError
from trainact.factor import KeptFactor
from trainact.pending import remember_call, take_calls_of_this_backward
from trainact.preconditioner import divide_by_factor, precondition, precondition_few_rows
from trainact.rows import Patches, count_rows, describe_patches
from trainact.settings import Options, check_lam, check_options, choose_solve_dtype
from trainact.statistics import RowStatistics, WeightKind
from trainact.synchronisation import count_ranks, warn_of_few_rows

__all__ = [
    "Memory",
    "PooledMoment",
    "apply_precondition",
    "precondition_grad",
    "precondition_pooled",
]


class PooledMoment(NamedTuple):
    """Second moments of several backward passes, added up in place.

    ``total`` is Σ xᵀx, shape [g, n, n]; ``num_rows`` is Σ b, a scalar of the same dtype.
    """

    total: Tensor
    num_rows: Tensor


class Memory(NamedTuple):
    """What a layer carries from one backward to the next; none of it is in a checkpoint."""

    channel: int | None = None
    """Where ``sync`` sums the second moment over the ranks."""
    factor: KeptFactor | None = None
    """For ``every``."""
    seed: Tensor | None = None
    """For ``rows``: an int64 scalar, one more after each backward."""
    pooled: PooledMoment | None = None
    """Inside ``accumulate``: gradients stay plain and rows are added here."""


def precondition_grad(
    weight: Tensor,
    x: Tensor,
    lam: float = 0.1,
    *,
    stride: int | Sequence[int] = 1,
    padding: int | str | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    padding_mode: str = "zeros",
    moment_dtype: torch.dtype | None = None,
) -> Tensor:
    """Return ``weight`` itself, except that its gradient will be TrAct's.

    The functional form, for layer classes of one's own: pass the result to ``F.linear`` or
    ``F.conv1d/2d/3d`` in place of the weight, and the same arguments to both.

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
        stride: as given to the convolution; so are ``padding``, ``dilation`` and ``groups``.
        padding: numbers, ``'same'`` or ``'valid'``.
        dilation: see ``stride``.
        groups: see ``stride``; each group has a second moment of its own.
        padding_mode: how the input was padded before the convolution, as in ``nn.Conv2d``.
        moment_dtype: the dtype of the second moment's products; None means float32, and float64
            for a float64 weight.

    Raises:
        TrActTypeError: an argument is of a kind that cannot be used.
        TrActValueError: an argument's value is out of range.
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
    """Do what :func:`precondition_grad` does, with arguments already checked."""
    if torch.jit.is_tracing() or not _is_training(weight):
        return weight
    _check_input(x)
    if memory.pooled is not None and _is_inside_transform():
        raise TrActValueError(
            "trainact.accumulate works with backward(), not inside torch.func's transforms; take "
            "the gradient of the whole batch there."
        )
    total, num_rows = memory.pooled or (None, None)
    if total is None and memory.channel is not None and not options.sync:
        warn_of_few_rows(count_rows(x, patches), math.prod(weight.shape[1:]), memory.channel)
    output = _PreconditionGrad.apply(
        weight, x, patches, lam, options, memory[:2], memory.seed, total, num_rows
    )
    if _begins_early(options, total) and not _is_inside_transform():
        remember_call(output.grad_fn)
    return output


def precondition_pooled(grad_weight: Tensor, pooled: PooledMoment, lam: float) -> Tensor:
    """Return the TrAct gradient for a plain gradient summed over the pool's rows.

    Where no row was counted the gradient is returned as it came.
    """
    second_moment = pooled.total / pooled.num_rows
    tract = precondition(_as_matrices(grad_weight, len(pooled.total)), second_moment, lam)
    tract = tract.reshape(grad_weight.shape).to(grad_weight.dtype)
    return torch.where(pooled.num_rows > 0, tract, grad_weight)


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
    """Tell whether a backward through ``weight`` can follow.

    Inside torch.func's transforms ``requires_grad`` reads False, so a transform counts as training;
    it is asked for first, because torch.compile then leaves the transform to eager mode instead of
    dropping this function's backward. An exported graph is the plain layer's.
    """
    if not torch.is_grad_enabled() or torch.compiler.is_exporting():
        return False
    return _is_inside_transform() or weight.requires_grad


def _is_inside_transform() -> bool:
    """Tell whether one of torch.func's transforms is running."""
    return torch._C._functorch.maybe_current_level() is not None


class _PreconditionGrad(torch.autograd.Function):
    """Identity on the weight; its backward is TrAct."""

    generate_vmap_rule = True

    @staticmethod
    def forward(weight: Tensor, *_: Any) -> Tensor:
        return weight.view_as(weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        weight, x, ctx.patches, ctx.lam, ctx.options, ctx.kept, ctx.seed = inputs[:7]
        ctx.total, ctx.num_rows = inputs[7:]
        ctx.weight_kind = WeightKind.of(weight)
        ctx.rows = None
        ctx.save_for_backward(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_weight: Tensor) -> tuple[Tensor | None, ...]:
        with _without_autocast(grad_weight.device):
            if _begins_early(ctx.options, ctx.total):
                for call in take_calls_of_this_backward():
                    call.rows = _describe_rows(call)
                    call.rows.begin_sum(call.kept[0])
            rows, ctx.rows = ctx.rows or _describe_rows(ctx), None
            if ctx.total is not None:
                ctx.total.add_(rows.sum_outer_products())
                ctx.num_rows.add_(rows.count)
            else:
                grad_weight = _precondition(grad_weight, rows, ctx.lam, *ctx.kept)
        if ctx.seed is not None:
            ctx.seed.add_(1)
        return grad_weight, *(None,) * 8


def _describe_rows(ctx: Any) -> RowStatistics:
    (x,) = ctx.saved_tensors
    return RowStatistics(x, ctx.patches, ctx.options, ctx.weight_kind, ctx.seed)


def _begins_early(options: Options, total: Tensor | None) -> bool:
    """Tell whether a sum over ranks begins before its own turn in backward; see ``pending``."""
    if not options.sync or options.every > 1 or total is not None:
        return False
    return not torch.compiler.is_compiling() and count_ranks() > 1


def _precondition(
    grad_weight: Tensor,
    rows: RowStatistics,
    lam: float,
    channel: int | None,
    kept: KeptFactor | None,
) -> Tensor:
    if rows.count == 0 and not rows.options.sync:
        return torch.zeros_like(grad_weight)
    matrices = _as_matrices(grad_weight, rows.patches.groups)
    if rows.are_few:
        solve_dtype = choose_solve_dtype(rows.x.device, rows.dtype)
        tract = precondition_few_rows(matrices, rows.unfold(), lam, solve_dtype)
    elif kept is None:
        tract = divide_by_factor(matrices, rows.factorize(lam, channel))
    else:
        tract = divide_by_factor(matrices, kept.find(lam, lambda: rows.factorize(lam, channel)))
    return tract.reshape(grad_weight.shape).to(grad_weight.dtype)


def _as_matrices(grad_weight: Tensor, groups: int) -> Tensor:
    """Return the gradient [m, ...] as [g, m/g, n]."""
    num_inputs = math.prod(grad_weight.shape[1:])
    return grad_weight.reshape(groups, grad_weight.shape[0] // groups, num_inputs)


def _without_autocast(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Switch autocast off for a backward called inside it: half precision spoils the moment."""
    if torch.amp.is_autocast_available(device.type):
        return torch.autocast(device.type, enabled=False)
    return contextlib.nullcontext()
