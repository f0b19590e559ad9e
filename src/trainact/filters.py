r"""Whitened filters: a first layer whose outputs are decorrelated and have unit variance.

The rows x have the second moment S = xᵀx/b = Vᵀ diag(e) V. With a damping ε relative to the mean
eigenvalue ē, the whitened basis is

.. math::
    B = \operatorname{diag}(e + \varepsilon \bar e)^{-1/2} V

so that x Bᵀ has the second moment diag(e / (e + ε ē)), which is close to the identity. An eigen
filter is a row of B, or of Q B with a random rotation Q. A random filter is a row of W R, with the
layer's own weight W and R = (S + ε ē I)^(-1/2). This start fits TrAct: with a fixed S and λ = ε ē,
TrAct under SGD (without weight decay) is plain SGD on the inputs x R, where the weight W stands for
W R on x.

======================  ======  ==========  =================================================
name                    symbol  shape       meaning
======================  ======  ==========  =================================================
``second_moment``       S       [n, n]      second moment of one group's rows
``eigenvalues``         e       [n]         largest first
``directions``          V       [n, n]      eigenvectors, one in each row
``basis``               B       [r, n]      whitened directions that the rows vary in
``eps``                 ε                   damping, relative to the mean eigenvalue
======================  ======  ==========  =================================================
"""

from typing import NamedTuple

import torch
from torch import Tensor

from trainact.whitening_settings import count_directions

__all__ = [
    "Spectrum",
    "decompose",
    "draw_rotation",
    "mean_square",
    "select_basis",
    "spread_basis",
    "whiten_weight",
]


class Spectrum(NamedTuple):
    """The eigenvalues of a second moment, largest first, and its eigenvectors."""

    eigenvalues: Tensor
    """e, shape [n], not negative."""
    directions: Tensor
    """V, shape [n, n]: one eigenvector in each row, its largest entry positive."""

    def damped(self, eps: float) -> Tensor:
        """Return e + ε ē, shape [n]."""
        return self.eigenvalues + eps * self.eigenvalues.mean()


def decompose(second_moment: Tensor) -> Spectrum:
    """Return the eigenvalues and eigenvectors of S, shape [n, n]."""
    eigenvalues, columns = torch.linalg.eigh(second_moment)
    directions = columns.mT.flip(0)
    largest = directions.gather(1, directions.abs().argmax(dim=1, keepdim=True))
    return Spectrum(eigenvalues.flip(0).clamp(min=0), directions * torch.where(largest < 0, -1, 1))


def select_basis(spectrum: Spectrum, eps: float, rounding: float) -> Tensor:
    """Return B, shape [r, n], of the r directions that the rows vary in.

    Directions whose eigenvalue is not larger than the rounding error of its computation, or of the
    rows themselves, are left out.

    Args:
        spectrum: of S.
        eps: ε, not negative.
        rounding: relative rounding error of the rows' dtype.
    """
    eigenvalues = spectrum.eigenvalues
    computed = len(eigenvalues) * torch.finfo(eigenvalues.dtype).eps * eigenvalues.max()
    is_used = eigenvalues > torch.maximum(computed, rounding**2 * eigenvalues.mean())
    return (spectrum.directions / spectrum.damped(eps).sqrt().unsqueeze(1))[is_used]


def spread_basis(
    basis: Tensor, num_outputs: int, signs: bool, generator: torch.Generator
) -> Tensor:
    """Return m eigen filters, shape [m, n].

    With signs, these are the leading ⌈m/2⌉ directions, then their negatives (without the last one
    if m is odd). Once all r directions are used with both signs, the next 2r filters are a random
    rotation of the basis and its negative, and so on.

    >>> basis = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    >>> spread_basis(basis, 3, True, torch.Generator())
    tensor([[ 2.,  0.],
            [ 0.,  1.],
            [-2., -0.]])

    Args:
        basis: B, shape [r, n], r > 0.
        num_outputs: m.
        signs: whether filters come with their negatives.
        generator: draws the rotations.
    """
    filters, missing = [], num_outputs
    rotated = basis
    while missing > 0:
        some = rotated[: count_directions(missing, len(basis), signs)]
        parts = [some, -some[: missing - len(some)]] if signs else [some]
        filters += parts
        missing -= sum(map(len, parts))
        if missing > 0:
            rotated = draw_rotation(len(basis), generator).to(basis.dtype) @ basis
    return torch.cat(filters)


def draw_rotation(size: int, generator: torch.Generator) -> Tensor:
    """Return a random orthogonal matrix in float64, uniform (Haar) over all of them."""
    gaussian = torch.randn(size, size, generator=generator, dtype=torch.float64)
    q, r = torch.linalg.qr(gaussian)
    return q * torch.where(r.diagonal() < 0, -1, 1)


def whiten_weight(weight: Tensor, spectrum: Spectrum, eps: float) -> Tensor:
    """Return W (S + ε ē I)^(-1/2), shape [m, n].

    Args:
        weight: W, shape [m, n].
        spectrum: of S.
        eps: ε, positive.
    """
    coordinates = weight @ spectrum.directions.mT
    return coordinates / spectrum.damped(eps).sqrt() @ spectrum.directions


def mean_square(weight: Tensor, second_moment: Tensor) -> float:
    """Return the mean of z² over all rows and outputs, without a bias: tr(W S Wᵀ) / m.

    Args:
        weight: W, shape [g, m/g, n].
        second_moment: S, shape [g, n, n].
    """
    return ((weight @ second_moment) * weight).sum(-1).mean().item()
