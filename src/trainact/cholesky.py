"""Cholesky factorization and solve; a factorization that fails gives NaN."""

import warnings

import torch
from torch import Tensor

from trainact.torch_internals import is_transform_tensor

__all__ = ["divide_by_factor", "factorize"]


def factorize(matrix: Tensor, damping: float) -> Tensor:
    """Return the Cholesky factor L of A + damping I = L Lᵀ, shape [g, k, k].

    If the factorization fails, the first entry of L is NaN, and so is every gradient computed with
    it: a GradScaler skips such a step. The device is not synchronised to find out. On a CPU, where
    reading a value is free, a warning gives the reason.

    Args:
        matrix: A, symmetric, shape [g, k, k].
        damping: the number to add to its diagonal.
    """
    damped = matrix.clone()
    damped.diagonal(dim1=-2, dim2=-1).add_(damping)
    factor, info = torch.linalg.cholesky_ex(damped)
    if _is_readable(info) and bool((info > 0).any()):
        _warn_of_failure(matrix)
    corner = factor[..., 0, 0]
    corner.copy_(torch.where(info > 0, torch.nan, corner))
    return factor


def divide_by_factor(matrix: Tensor, factor: Tensor) -> Tensor:
    """Return B (L Lᵀ)⁻¹, shape [g, m, k], in the factor's dtype.

    Args:
        matrix: B, shape [g, m, k].
        factor: L from :func:`factorize`, shape [g, k, k].
    """
    solution = torch.cholesky_solve(matrix.to(factor.dtype).mT, factor).mT
    return torch.where(factor[..., :1, :1].isnan(), torch.nan, solution)


def _is_readable(tensor: Tensor) -> bool:
    """Return whether values can be read at no cost: a CPU tensor that is not being traced."""
    return (
        type(tensor) is Tensor
        and tensor.device.type == "cpu"
        and not torch.compiler.is_compiling()
        and not is_transform_tensor(tensor)
    )


def _warn_of_failure(matrix: Tensor) -> None:
    if not bool(torch.isfinite(matrix).all()):
        return  # the step itself overflowed, which a loss scaler handles
    largest = matrix.diagonal(dim1=-2, dim2=-1).max().item()
    warnings.warn(
        f"TrAct could not factorize a second moment with entries up to {largest:.3g} in "
        f"{str(matrix.dtype).removeprefix('torch.')}: this weight gradient is NaN. Standardise the "
        "layer's input, raise lam, or pass moment_dtype=torch.float64.",
        RuntimeWarning,
        stacklevel=2,
    )
