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
from trainact.moments import sum_outer_products
from trainact.preconditioner import precondition, precondition_few_rows
from trainact.rows import Patches, count_rows, describe_patches, unfold_rows
from trainact.settings import (
    check_lam,
    check_moment_dtype,
    choose_solve_dtype,
    resolve_moment_dtype,
)

__all__ = ["PooledMoment", "apply_precondition", "precondition_grad", "precondition_pooled"]


class PooledMoment(NamedTuple):
    """Second moments of several backward passes, added up in place.

    ``total`` is Σ xᵀx, shape [g, n, n]; ``num_rows`` is Σ b, a float64 or float32 scalar tensor.
    """

    total: Tensor
    num_rows: Tensor


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
        moment_dtype: the dtype of second moment and solve; None means float32, and float64 for a
            float64 weight.

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
    kernel_size = weight.shape[2:]
    patches = describe_patches(kernel_size, stride, padding, dilation, groups, padding_mode)
    return apply_precondition(weight, x, patches, check_lam(lam), check_moment_dtype(moment_dtype))


def apply_precondition(
    weight: Tensor,
    x: Tensor,
    patches: Patches,
    lam: float,
    moment_dtype: torch.dtype | None,
    pooled: PooledMoment | None = None,
) -> Tensor:
    """Do what :func:`precondition_grad` does, with arguments already checked.

    With ``pooled`` the gradient stays plain and the rows are added to the pool instead.
    """
    if torch.jit.is_tracing() or not _is_training(weight):
        return weight
    check_input(x)
    if pooled is not None and _is_inside_transform():
        raise TrActValueError(
            "trainact.accumulate works with backward(), not inside torch.func's transforms; take "
            "the gradient of the whole batch there."
        )
    total, num_rows = (None, None) if pooled is None else pooled
    return _PreconditionGrad.apply(weight, x, patches, lam, moment_dtype, total, num_rows)


def check_input(x: Tensor) -> None:
    """Refuse an input whose rows cannot be read."""
    if x.layout != torch.strided:
        kind = str(x.layout).removeprefix("torch.")
        raise TrActTypeError(
            f"TrAct needs a dense input; got layout {kind}: call x.to_dense() first."
        )
    if x.is_complex():
        raise TrActTypeError(
            f"TrAct needs a real input; got {x.dtype}: pass real and imaginary part as channels."
        )


def precondition_pooled(grad_weight: Tensor, pooled: PooledMoment, lam: float) -> Tensor:
    """Return the TrAct gradient for a plain gradient summed over the pool's rows.

    Where no row was counted the gradient is returned as it came.
    """
    groups = pooled.total.shape[0]
    second_moment = pooled.total / pooled.num_rows
    tract = precondition(_as_matrices(grad_weight, groups), second_moment, lam)
    tract = tract.reshape(grad_weight.shape).to(grad_weight.dtype)
    return torch.where(pooled.num_rows > 0, tract, grad_weight)


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
    def forward(
        weight: Tensor,
        x: Tensor,
        patches: Patches,
        lam: float,
        moment_dtype: torch.dtype | None,
        total: Tensor | None,
        num_rows: Tensor | None,
    ) -> Tensor:
        return weight.view_as(weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, x, ctx.patches, ctx.lam, ctx.moment_dtype, ctx.total, ctx.num_rows = inputs
        ctx.save_for_backward(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_weight: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        dtype = resolve_moment_dtype(ctx.moment_dtype, grad_weight.dtype)
        with _without_autocast(x.device):
            if ctx.total is None:
                grad_weight = _precondition_by_rows(grad_weight, x, ctx.patches, ctx.lam, dtype)
            else:
                num_inputs, sum_dtype = ctx.total.shape[-1], ctx.total.dtype
                ctx.total.add_(sum_outer_products(x, ctx.patches, num_inputs, dtype, sum_dtype))
                ctx.num_rows.add_(count_rows(x, ctx.patches))
        return grad_weight, None, None, None, None, None, None


def _precondition_by_rows(
    grad_weight: Tensor, x: Tensor, patches: Patches, lam: float, dtype: torch.dtype
) -> Tensor:
    num_rows = count_rows(x, patches)
    if num_rows == 0:
        return torch.zeros_like(grad_weight)
    matrices = _as_matrices(grad_weight, patches.groups)
    num_inputs = matrices.shape[-1]
    solve_dtype = choose_solve_dtype(x.device, dtype)
    if num_rows < num_inputs:
        rows = unfold_rows(x.detach().to(dtype), patches)
        tract = precondition_few_rows(matrices, rows, lam, solve_dtype)
    else:
        total = sum_outer_products(x, patches, num_inputs, dtype, solve_dtype)
        tract = precondition(matrices, total / num_rows, lam)
    return tract.reshape(grad_weight.shape).to(grad_weight.dtype)


def _as_matrices(grad_weight: Tensor, groups: int) -> Tensor:
    """Return the gradient [m, ...] as [g, m/g, n]."""
    outputs, num_inputs = grad_weight.shape[0], math.prod(grad_weight.shape[1:])
    return grad_weight.reshape(groups, outputs // groups, num_inputs)


def _without_autocast(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Switch autocast off for a backward called inside it: half precision spoils the moment."""
    if torch.amp.is_autocast_available(device.type):
        return torch.autocast(device.type, enabled=False)
    return contextlib.nullcontext()
