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

import torch
from torch import Tensor

from trainact.cholesky import divide_by_factor, factorize
from trainact.second_moment import SecondMoment

__all__ = ["precondition", "precondition_few_rows"]


def precondition(grad_weight: Tensor, second_moment: SecondMoment, lam: float) -> Tensor:
    """Return G (xᵀx/b + λI)⁻¹, in the shape and dtype of G.

    Args:
        grad_weight: G, in the weight's shape.
        second_moment: xᵀx/b; it keeps its factor for the next call.
        lam: λ.
    """
    factor = second_moment.factorize(lam)
    tract = divide_by_factor(_split_groups(grad_weight, factor.shape[0]), factor)
    return tract.reshape(grad_weight.shape).to(grad_weight.dtype)


def precondition_few_rows(
    grad_weight: Tensor, rows: Tensor, lam: float, solve_dtype: torch.dtype | None = None
) -> Tensor:
    """Return the same from a b × b system, which is cheaper if b < n.

    Args:
        grad_weight: G, in the weight's shape.
        rows: x, shape [g, b, n], in the dtype of the products.
        lam: λ.
        solve_dtype: the dtype of the b × b system; None means that of the rows.
    """
    grad = _split_groups(grad_weight, rows.shape[0]).to(rows.dtype)
    gram = (rows @ rows.mT).to(solve_dtype or rows.dtype)
    factor = factorize(gram, lam * rows.shape[-2])
    explained = divide_by_factor(grad @ rows.mT, factor).to(rows.dtype) @ rows
    return ((grad - explained) / lam).reshape(grad_weight.shape).to(grad_weight.dtype)


def _split_groups(grad_weight: Tensor, groups: int) -> Tensor:
    """Return the gradient [m, ...] as [g, m/g, n]."""
    num_inputs = math.prod(grad_weight.shape[1:])
    return grad_weight.reshape(groups, grad_weight.shape[0] // groups, num_inputs)
