"""Cholesky factorization and solve; a factorization that fails gives NaN."""

import warnings
from typing import NamedTuple

import torch
from torch import Tensor

from trainact.torch_internals import is_transform_tensor

__all__ = ["Factor", "divide_by_factor", "factorize", "is_readable"]


class Factor(NamedTuple):
    """A Cholesky factor L, shape [g, k, k], and where it failed."""

    lower: Tensor
    failed: Tensor | None
    """An int32 [g], not 0 where it failed; None if it is known that it did not."""


def factorize(matrix: Tensor, damping: float | Tensor) -> Factor:
    """Return the Cholesky factor L of A + damping I = L Lᵀ.

    If the factorization fails, every gradient computed with it is NaN: a GradScaler skips such a
    step. The device is not synchronised to find out. On a CPU, where reading a value is free, a
    warning gives the reason.

    Args:
        matrix: A, symmetric, shape [g, k, k]; it is overwritten by A + damping I.
        damping: the number to add to its diagonal, or one for each group, shape [g].
    """
    if isinstance(damping, Tensor):
        damping = damping.unsqueeze(-1)
    matrix.diagonal(dim1=-2, dim2=-1).add_(damping)
    lower, failed = torch.linalg.cholesky_ex(matrix)
    if is_readable(failed):
        if not bool(failed.any()):
            return Factor(lower, None)
        _warn_of_failure(matrix)
    return Factor(lower, failed)


def divide_by_factor(matrix: Tensor, factor: Factor) -> Tensor:
    """Return B (L Lᵀ)⁻¹, shape [g, m, k], in the factor's dtype; NaN for a group that failed.

    Args:
        matrix: B, shape [g, m, k].
        factor: from :func:`factorize`.
    """
    matrix = matrix.to(factor.lower.dtype)
    if factor.failed is not None:
        matrix = matrix.masked_fill(factor.failed[..., None, None] != 0, torch.nan)
    return torch.cholesky_solve(matrix.mT, factor.lower).mT


def is_readable(tensor: Tensor) -> bool:
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
