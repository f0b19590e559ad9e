r"""The formula of TrAct, as pure functions of matrices.

A layer with weight W computes the pre-activations z = x Wᵀ (+ bias). Plain training steps along
G = ∇zᵀ x, which is proportional to the inputs. TrAct steps along the weights' best answer to a step
on z itself (Lemma 1 of the paper):

.. math::
    \Delta W^\star = G \left(\tfrac{1}{b} x^\top x + \lambda I_n\right)^{-1}

======================  ======  ==========  =================================================
name                    symbol  shape       meaning
======================  ======  ==========  =================================================
``rows``                x       [g, b, n]   the layer's inputs, one row for each position
``grad_z``              ∇z      [g, b, m]   gradient of the loss by the pre-activations
``grad_weight``         G       [g, m, n]   plain weight gradient, G = ∇zᵀ x
``second_moment``       xᵀx/b   [g, n, n]   uncentred covariance of the rows
``num_rows``            b                   samples times positions
``num_inputs``          n                   weights of one output (of one group)
``lam``                 λ                   damping, 0.1 unless told
======================  ======  ==========  =================================================

g counts the groups of a convolution (1 for a Linear); each group is a layer of its own. The paper
writes x as [n, b]; rows are its columns.

With fewer rows than columns the same gradient needs only a b × b matrix (Woodbury's identity):

.. math::
    G \left(\tfrac{1}{b} x^\top x + \lambda I_n\right)^{-1}
        = \tfrac{1}{\lambda} \left(G - (G x^\top) (x x^\top + b \lambda I_b)^{-1} x\right)

>>> rows, grad_z = torch.randn(1, 50, 4).double(), torch.randn(1, 50, 3).double()
>>> grad_weight = grad_z.mT @ rows
>>> second_moment = rows.mT @ rows / 50
>>> inverse = torch.linalg.inv(second_moment + 0.1 * torch.eye(4))
>>> tract = precondition(grad_weight, second_moment, lam=0.1)
>>> torch.allclose(tract, grad_weight @ inverse)
True
>>> torch.allclose(tract, precondition_few_rows(grad_weight, rows, lam=0.1))
True
"""

import warnings

import torch
from torch import Tensor

__all__ = ["divide_by_factor", "factorize", "precondition", "precondition_few_rows"]


def precondition(grad_weight: Tensor, second_moment: Tensor, lam: float) -> Tensor:
    """Return G (xᵀx/b + λI)⁻¹, shape [g, m, n], in the second moment's dtype.

    Args:
        grad_weight: G, shape [g, m, n].
        second_moment: xᵀx/b, shape [g, n, n].
        lam: λ.
    """
    return divide_by_factor(grad_weight, factorize(second_moment, lam))


def precondition_few_rows(
    grad_weight: Tensor, rows: Tensor, lam: float, solve_dtype: torch.dtype | None = None
) -> Tensor:
    """Return the same from a b × b system: cheaper where b < n.

    Args:
        grad_weight: G, shape [g, m, n].
        rows: x, shape [g, b, n], in the dtype to multiply in.
        lam: λ.
        solve_dtype: the dtype of the b × b system; None is that of the rows.
    """
    grad_weight = grad_weight.to(rows.dtype)
    gram = (rows @ rows.mT).to(solve_dtype or rows.dtype)
    factor = factorize(gram, lam * rows.shape[-2])
    explained = divide_by_factor(grad_weight @ rows.mT, factor).to(rows.dtype) @ rows
    return (grad_weight - explained) / lam


def factorize(matrix: Tensor, damping: float) -> Tensor:
    """Return the Cholesky factor L of A + damping I = L Lᵀ, shape [g, k, k].

    A factorization that fails gets a NaN in its first entry, and with it every gradient that it is
    used for: nothing is read back from the device to find out, and a GradScaler skips such a step.
    On a CPU, where reading is free, a warning explains it.

    Args:
        matrix: A, symmetric, shape [g, k, k].
        damping: what is added to its diagonal.
    """
    damped = matrix.clone()
    damped.diagonal(dim1=-2, dim2=-1).add_(damping)
    factor, info = torch.linalg.cholesky_ex(damped)
    if _is_readable(info) and bool((info > 0).any()):
        _warn_of_failed_factorization(matrix)
    corner = factor[..., 0, 0]
    corner.copy_(torch.where(info > 0, torch.nan, corner))  # one NaN spoils every solution
    return factor


def divide_by_factor(matrix: Tensor, factor: Tensor) -> Tensor:
    """Return B (L Lᵀ)⁻¹, shape [g, m, k], in the factor's dtype; a NaN factor gives NaN.

    Args:
        matrix: B, shape [g, m, k].
        factor: L, shape [g, k, k].
    """
    solution = torch.cholesky_solve(matrix.to(factor.dtype).mT, factor).mT
    return torch.where(factor[..., :1, :1].isnan(), torch.nan, solution)


def _is_readable(tensor: Tensor) -> bool:
    """Tell whether the tensor's values are at hand: on the CPU, real, and not being traced."""
    return (
        type(tensor) is Tensor
        and tensor.device.type == "cpu"
        and not torch.compiler.is_compiling()
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )


def _warn_of_failed_factorization(matrix: Tensor) -> None:
    if not bool(torch.isfinite(matrix).all()):
        return  # overflow in the step itself, which a loss scaler deals with
    largest = matrix.diagonal(dim1=-2, dim2=-1).max().item()
    warnings.warn(
        f"TrAct could not factorize a second moment with entries up to {largest:.3g} in "
        f"{str(matrix.dtype).removeprefix('torch.')}: this weight gradient is NaN. Standardise the "
        "layer's input, raise lam, or pass moment_dtype=torch.float64.",
        RuntimeWarning,
        stacklevel=2,
    )
