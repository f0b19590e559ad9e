r"""The formula of TrAct.

A layer with weight W computes the pre-activations z = x Wᵀ (+ bias). Plain training steps along
G = ∇zᵀ x, which is proportional to the inputs. TrAct takes the step of the weights that best
approximates a step on z itself (Lemma 1 of the paper):

.. math::
    \Delta W^\star = G \left(\tfrac{1}{b} x^\top x + \lambda I_n\right)^{-1}

======================  ======  ==========  =================================================
name                    symbol  shape       meaning
======================  ======  ==========  =================================================
``rows``                x       [g, b, n]   the layer's inputs, one row for each position
``grad_z``              ∇z      [g, b, m]   gradient of the loss by the pre-activations
``grad_weight``         G       [m, ...]    plain weight gradient, G = ∇zᵀ x
``grad_bias``           g_b     [m]         plain bias gradient, the sum of ∇z
``mean``                μ       [g, n]      mean row
``second_moment``       xᵀx/b   [g, n, n]   uncentred covariance of the rows
``num_rows``            b                   samples times positions
``num_inputs``          n                   weights of one output (of one group)
``lam``                 λ                   damping
======================  ======  ==========  =================================================

g is the number of groups of a convolution, 1 for a Linear; each group has its own second moment.
The paper writes x as [n, b]; rows are its columns.

With fewer rows than columns, the same gradient needs only a b × b matrix (Woodbury's identity):

.. math::
    G \left(\tfrac{1}{b} x^\top x + \lambda I_n\right)^{-1}
        = \tfrac{1}{\lambda} \left(G - (G x^\top) (x x^\top + b \lambda I_b)^{-1} x\right)

**Centred** (``center=True``). The bias can move z too: with a column of ones beside x, which λ does
not damp, the same least-squares problem has the solution

.. math::
    \Delta W^\star = (G - g_b \mu^\top) (C + \lambda I_n)^{-1}, \qquad
    \Delta b^\star = g_b - \Delta W^\star \mu, \qquad
    C = \tfrac{1}{b} x^\top x - \mu \mu^\top

Woodbury's identity takes the rows x − μ here. If a batch norm follows the layer, g_b = 0, whether
the layer has a bias or not, and what is left is G (C + λI)⁻¹ (``center="batchnorm"``).

**Relative** (``relative=True``). λ is multiplied by the mean eigenvalue, tr(·)/n, of the matrix
that it damps, xᵀx/b or C, in each group. If that is zero (C of constant rows), so is ΔW.

**Averaged** (``moment_decay=β``). xᵀx/b and μ of step t become Σ βᵏ (xᵀx/b)ₜ₋ₖ / Σ βᵏ and
Σ βᵏ μₜ₋ₖ / Σ βᵏ, with k from 0 to t.

>>> rows, grad_z = torch.randn(1, 50, 4).double(), torch.randn(1, 50, 3).double()
>>> (grad_weight,) = grad_z.mT @ rows
>>> second_moment = SecondMoment(rows.mT @ rows, num_rows=50)
>>> inverse = torch.linalg.inv(second_moment.divide_by_rows() + 0.1 * torch.eye(4))
>>> tract = precondition(grad_weight, second_moment, lam=0.1)
>>> torch.allclose(tract, grad_weight @ inverse)
True
>>> few_rows, _ = precondition_few_rows(grad_weight, None, rows, lam=0.1)
>>> torch.allclose(tract, few_rows)
True
"""

import math
import warnings

import torch
from torch import Tensor

from trainact.cholesky import divide_by_factor, factorize, is_readable
from trainact.second_moment import SecondMoment, scale_damping

__all__ = ["precondition", "precondition_few_rows", "precondition_with_bias"]

NO_DIGITS = 0.3
"""Amplified rounding of G, relative to the TrAct gradient, that leaves no digit correct; the error
measured on images and random walks is 0.8 to 3 times this number."""


def precondition(
    grad_weight: Tensor, second_moment: SecondMoment, lam: float, *, relative: bool = False
) -> Tensor:
    """Return G (xᵀx/b + λI)⁻¹, or G (C + λI)⁻¹ if the second moment is centred.

    Args:
        grad_weight: G, in the weight's shape, which is also that of the result.
        second_moment: xᵀx/b; it keeps its factor for the next call.
        lam: λ.
        relative: multiply λ by the mean eigenvalue.
    """
    tract, _ = precondition_with_bias(grad_weight, None, second_moment, lam, relative=relative)
    return tract


def precondition_with_bias(
    grad_weight: Tensor,
    grad_bias: Tensor | None,
    second_moment: SecondMoment,
    lam: float,
    *,
    relative: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Return ΔW and Δb, in the shapes and dtypes of the plain gradients.

    Args:
        grad_weight: G, in the weight's shape.
        grad_bias: g_b, shape [m], if the second moment is centred; None leaves the bias out.
        second_moment: as in :func:`precondition`.
        lam: λ.
        relative: multiply λ by the mean eigenvalue.
    """
    factor = second_moment.factorize(lam, relative=relative)
    mean = second_moment.mean()
    grad = _split_groups(grad_weight, len(factor.lower))
    tract = divide_by_factor(_subtract_mean(grad, grad_bias, mean), factor)
    return _complete(tract, grad_weight, grad_bias, mean)


def precondition_few_rows(
    grad_weight: Tensor,
    grad_bias: Tensor | None,
    rows: Tensor,
    lam: float,
    *,
    mean: Tensor | None = None,
    relative: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Return the same from a b × b system, which is cheaper if b < n.

    The difference G - ... cancels most digits if the rows are large, so everything is computed in
    the rows' dtype: float64, if the device supports it. What is left is the rounding of G itself,
    divided by λ. On a CPU a warning says so if that is all that is left.

    Args:
        grad_weight: G, in the weight's shape.
        grad_bias: g_b, or None, as in :func:`precondition_with_bias`.
        rows: x, shape [g, b, n], in the dtype to compute in.
        lam: λ.
        mean: μ, shape [g, n], to centre with; None does not centre.
        relative: multiply λ by the mean eigenvalue.
    """
    plain = _split_groups(grad_weight, len(rows)).to(rows.dtype)
    grad = _subtract_mean(plain, grad_bias, mean)
    if mean is not None:
        rows = rows - mean.unsqueeze(1)
    num_rows, num_inputs = rows.shape[-2:]
    damping: float | Tensor = lam
    if relative:
        squares = rows.square().sum((1, 2))
        damping = scale_damping(lam, squares / (num_rows * num_inputs), mean)
    factor = factorize(rows @ rows.mT, damping * num_rows)
    explained = divide_by_factor(grad @ rows.mT, factor)
    if isinstance(damping, Tensor):
        tract = torch.baddbmm(grad, explained, rows, alpha=-1) / damping.view(-1, 1, 1)
    else:
        tract = torch.baddbmm(grad, explained, rows, beta=1 / lam, alpha=-1 / lam)
    if is_readable(tract) and _is_lost(plain, tract, rows, mean, damping, grad_weight.dtype):
        _warn_of_rounding(lam)
    return _complete(tract, grad_weight, grad_bias, mean)


def _subtract_mean(grad: Tensor, grad_bias: Tensor | None, mean: Tensor | None) -> Tensor:
    """Return G − g_b μᵀ, shape [g, m/g, n], in the dtype of the mean; without g_b, G itself."""
    if grad_bias is None or mean is None:
        return grad
    column = grad_bias.to(mean.dtype).reshape(len(mean), grad.shape[1], 1)
    return torch.baddbmm(grad.to(mean.dtype), column, mean.unsqueeze(1), alpha=-1)


def _complete(
    tract: Tensor, grad_weight: Tensor, grad_bias: Tensor | None, mean: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Return ΔW in the shape and dtype of G, and Δb = g_b − ΔW μ in those of g_b.

    Δb is computed from the rounded ΔW, so that rounding does not move the mean of z.
    """
    tract = tract.to(grad_weight.dtype, memory_format=torch.contiguous_format)
    if grad_bias is None or mean is None:
        return tract.reshape(grad_weight.shape), None
    moved = tract.to(mean.dtype) @ mean.unsqueeze(-1)  # ΔW μ, shape [g, m/g, 1]
    change = grad_bias.to(mean.dtype) - moved.reshape(grad_bias.shape)
    return tract.reshape(grad_weight.shape), change.to(grad_bias.dtype)


def _is_lost(
    grad: Tensor,
    tract: Tensor,
    rows: Tensor,
    mean: Tensor | None,
    damping: float | Tensor,
    dtype: torch.dtype,
) -> bool:
    """Return whether the rounding of G, divided by the damping, leaves no digit of the gradient.

    A centred gradient may also be small because the rows hardly vary. So the rounding must be
    large enough to move z as well, which without a mean follows from the first condition.
    """
    eps = torch.finfo(dtype).eps
    smallest = damping.min() if isinstance(damping, Tensor) else damping
    if not bool(eps * grad.norm() / smallest > NO_DIGITS * tract.norm()):
        return False
    square = rows.square().sum((1, 2)) / rows.shape[1]  # tr(xᵀx/b), shape [g]
    if mean is not None:
        square = square + mean.square().sum(1)
    return bool((eps * square / damping > NO_DIGITS).any())


def _warn_of_rounding(lam: float) -> None:
    warnings.warn(
        "the rows of TrAct's layer are so large that the rounding of the plain weight gradient "
        f"leaves its TrAct gradient no correct digit (lam={lam:g}). Standardise the layer's "
        "input, or raise lam.",
        RuntimeWarning,
        stacklevel=3,
    )


def _split_groups(grad_weight: Tensor, groups: int) -> Tensor:
    """Return the gradient [m, ...] as [g, m/g, n]."""
    num_inputs = math.prod(grad_weight.shape[1:])
    return grad_weight.reshape(groups, grad_weight.shape[0] // groups, num_inputs)
