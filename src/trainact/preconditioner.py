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

>>> rows, grad_z = torch.randn(1, 50, 4).double(), torch.randn(1, 50, 3).double()
>>> (grad_weight,) = grad_z.mT @ rows
>>> second_moment = SecondMoment(rows.mT @ rows, num_rows=50)
>>> inverse = torch.linalg.inv(second_moment.divide_by_rows() + 0.1 * torch.eye(4))
>>> tract = precondition(grad_weight, second_moment, lam=0.1)
>>> torch.allclose(tract, grad_weight @ inverse)
True
>>> torch.allclose(tract, precondition_few_rows(grad_weight, rows, lam=0.1))
True
"""

import math
import warnings

import torch
from torch import Tensor

from trainact.cholesky import divide_by_factor, factorize, is_readable
from trainact.second_moment import SecondMoment

__all__ = ["precondition", "precondition_few_rows"]

NO_DIGITS = 0.3
"""Amplified rounding of G, relative to the TrAct gradient, that leaves no digit correct; the error
measured on images and random walks is 0.8 to 3 times this number."""


def precondition(grad_weight: Tensor, second_moment: SecondMoment, lam: float) -> Tensor:
    """Return G (xᵀx/b + λI)⁻¹, in the shape and dtype of G.

    Args:
        grad_weight: G, in the weight's shape.
        second_moment: xᵀx/b; it keeps its factor for the next call.
        lam: λ.
    """
    factor = second_moment.factorize(lam)
    tract = divide_by_factor(_split_groups(grad_weight, len(factor.lower)), factor)
    return _join_groups(tract, grad_weight)


def precondition_few_rows(grad_weight: Tensor, rows: Tensor, lam: float) -> Tensor:
    """Return the same from a b × b system, which is cheaper if b < n.

    The difference G - ... cancels most digits if the rows are large, so everything is computed in
    the rows' dtype: float64, if the device supports it. What is left is the rounding of G itself,
    divided by λ. On a CPU a warning says so if that is all that is left.

    Args:
        grad_weight: G, in the weight's shape.
        rows: x, shape [g, b, n], in the dtype to compute in.
        lam: λ.
    """
    grad = _split_groups(grad_weight, len(rows)).to(rows.dtype)
    factor = factorize(rows @ rows.mT, lam * rows.shape[-2])
    explained = divide_by_factor(grad @ rows.mT, factor)
    tract = torch.baddbmm(grad, explained, rows, beta=1 / lam, alpha=-1 / lam)
    if is_readable(tract):
        _warn_of_rounding(grad, tract, lam, torch.finfo(grad_weight.dtype).eps)
    return _join_groups(tract, grad_weight)


def _warn_of_rounding(grad: Tensor, tract: Tensor, lam: float, eps: float) -> None:
    """Warn if the rounding of G, amplified by 1/λ, is as large as the gradient itself."""
    amplified = eps * grad.norm() / lam
    if bool(amplified > NO_DIGITS * tract.norm()):
        warnings.warn(
            "the rows of TrAct's layer are so large that the rounding of the plain weight gradient "
            f"leaves its TrAct gradient no correct digit (lam={lam:g}). Standardise the layer's "
            "input, or raise lam.",
            RuntimeWarning,
            stacklevel=2,
        )


def _split_groups(grad_weight: Tensor, groups: int) -> Tensor:
    """Return the gradient [m, ...] as [g, m/g, n]."""
    num_inputs = math.prod(grad_weight.shape[1:])
    return grad_weight.reshape(groups, grad_weight.shape[0] // groups, num_inputs)


def _join_groups(tract: Tensor, grad_weight: Tensor) -> Tensor:
    """Return a result [g, m/g, n] in the shape and dtype of the gradient."""
    tract = tract.to(grad_weight.dtype, memory_format=torch.contiguous_format)
    return tract.reshape(grad_weight.shape)
