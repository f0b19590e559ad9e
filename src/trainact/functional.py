"""TrAct as a function of the weight, for custom layer classes."""

from collections.abc import Sequence
from typing import Literal, overload

import torch
from torch import Tensor

from trainact.errors import TrActTypeError, TrActValueError
from trainact.gradient import Memory, apply_precondition, apply_precondition_with_bias
from trainact.options import DEFAULT_LAM, Center, Options, check_lam, check_options
from trainact.rows import describe_patches

__all__ = ["check_input", "precondition_grad"]


@overload
def precondition_grad(
    weight: Tensor,
    x: Tensor,
    lam: float = ...,
    *,
    bias: Tensor,
    center: Literal[True],
    relative: bool = ...,
    stride: int | Sequence[int] = ...,
    padding: int | str | Sequence[int] = ...,
    dilation: int | Sequence[int] = ...,
    groups: int = ...,
    padding_mode: str = ...,
    moment_dtype: torch.dtype | None = ...,
) -> tuple[Tensor, Tensor]: ...


@overload
def precondition_grad(
    weight: Tensor,
    x: Tensor,
    lam: float = ...,
    *,
    bias: None = ...,
    center: Literal[False, "batchnorm"] = ...,
    relative: bool = ...,
    stride: int | Sequence[int] = ...,
    padding: int | str | Sequence[int] = ...,
    dilation: int | Sequence[int] = ...,
    groups: int = ...,
    padding_mode: str = ...,
    moment_dtype: torch.dtype | None = ...,
) -> Tensor: ...


def precondition_grad(
    weight: Tensor,
    x: Tensor,
    lam: float = DEFAULT_LAM,
    *,
    bias: Tensor | None = None,
    center: Center = False,
    relative: bool = False,
    stride: int | Sequence[int] = 1,
    padding: int | str | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    padding_mode: str = "zeros",
    moment_dtype: torch.dtype | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Return ``weight`` unchanged, but with TrAct's gradient.

    This is the functional form, for custom layer classes: pass the result to ``F.linear`` or
    ``F.conv1d/2d/3d`` instead of the weight, and the same arguments to both.

    >>> x, weight = torch.randn(8, 5), torch.randn(3, 5, requires_grad=True)
    >>> z = torch.nn.functional.linear(x, precondition_grad(weight, x))
    >>> z.sum().backward()
    >>> inverse = torch.linalg.inv(x.T @ x / 8 + 0.1 * torch.eye(5))
    >>> torch.allclose(weight.grad, torch.ones(3, 8) @ x @ inverse, atol=1e-5)
    True

    With ``center=True`` it takes and returns the bias too:

    >>> bias = torch.zeros(3, requires_grad=True)
    >>> z = torch.nn.functional.linear(x, *precondition_grad(weight, x, bias=bias, center=True))

    Args:
        weight: W, shape [m, n] for a linear layer, [m, C/groups, *kernel] for a convolution.
        x: the layer's input: [..., n], or [N, C, *size] or [C, *size].
        lam: λ, a positive finite number.
        bias: the layer's bias, shape [m]; only with ``center=True``.
        center: as in `trainact.TrAct`.
        relative: as in `trainact.TrAct`.
        stride: as in the convolution.
        padding: as in the convolution: numbers, ``'same'`` or ``'valid'``.
        dilation: as in the convolution.
        groups: as in the convolution; each group has its own second moment.
        padding_mode: how the input was padded before the convolution, as in ``nn.Conv2d``.
        moment_dtype: the dtype of the second moment's products; None means float32, and float64
            for a float64 weight.

    Raises:
        TrActTypeError: an argument has the wrong type.
        TrActValueError: an argument is out of range, or ``x`` does not fit the weight.
    """
    if not isinstance(weight, Tensor) or weight.dim() not in (2, 3, 4, 5):
        came = f"{weight.dim()} dimensions" if isinstance(weight, Tensor) else type(weight).__name__
        raise TrActTypeError(
            f"precondition_grad needs the weight of a linear layer (2 dimensions) or of a "
            f"convolution (3, 4 or 5); got {came}."
        )
    check_input(weight, x, groups)
    patches = describe_patches(weight.shape[2:], stride, padding, dilation, groups, padding_mode)
    options = check_options(Options(moment_dtype, center=center, relative=relative))
    lam = check_lam(lam)
    if not (bias is None or isinstance(bias, Tensor)):
        raise TrActTypeError(f"bias= takes a tensor; got {type(bias).__name__}.")
    if options.changes_bias and bias is None:
        raise TrActValueError(
            "precondition_grad with center=True changes the gradients of weight and bias together; "
            "pass the layer's bias=, or use center='batchnorm' if a batch norm follows the layer."
        )
    if options.changes_bias:
        return apply_precondition_with_bias(weight, bias, x, patches, lam, options, Memory())
    if bias is not None:
        raise TrActValueError(
            f"precondition_grad changes a bias only with center=True; got center={center!r}. Leave "
            "bias= out and pass the bias to the operator as it is."
        )
    return apply_precondition(weight, x, patches, lam, options, Memory())


def check_input(weight: Tensor, x: object, groups: object) -> None:
    """Raise a TrActError if the operator could not apply the weight to ``x``."""
    if not isinstance(x, Tensor):
        raise TrActTypeError(f"x takes the layer's input, a tensor; got {type(x).__name__}.")
    dims = weight.dim() - 2
    shape = tuple(weight.shape)
    if not isinstance(groups, int) or groups < 1 or shape[0] % groups or (groups > 1 and not dims):
        raise TrActValueError(
            f"groups={groups!r} does not fit a weight of shape {shape}; use a number that divides "
            "its outputs, and 1 for a linear layer."
        )
    channels = shape[1] * groups
    fits = dims + 1 <= x.dim() and x.shape[-dims - 1] == channels
    if not fits or (dims and x.dim() > dims + 2):
        kernel = f"[N, {channels}, *size] or [{channels}, *size]"
        raise TrActValueError(
            f"x of shape {tuple(x.shape)} does not fit a weight of shape {shape} with "
            f"groups={groups}; pass the input of the layer, of shape "
            f"{kernel if dims else f'[..., {channels}]'}."
        )
