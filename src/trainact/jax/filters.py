"""Whitened filters in NumPy and float64; `trainact.filters` has the formulas and the symbols."""

from typing import Any, NamedTuple, TypeAlias

import numpy as np

from trainact.whitening_settings import count_directions

__all__ = ["decompose", "mean_square", "select_basis", "spread_basis", "whiten_own"]

Matrix: TypeAlias = np.ndarray[Any, Any]


class Spectrum(NamedTuple):
    """The eigenvalues of a second moment, largest first, and its eigenvectors."""

    eigenvalues: Matrix
    """e, shape [n], not negative."""
    directions: Matrix
    """V, shape [n, n]: one eigenvector in each row, its largest entry positive."""

    def damped(self, eps: float) -> Matrix:
        """Return e + ε ē, shape [n]."""
        return self.eigenvalues + eps * self.eigenvalues.mean()


def decompose(second_moment: Matrix) -> Spectrum:
    """Return the eigenvalues and eigenvectors of S, shape [n, n]."""
    eigenvalues, columns = np.linalg.eigh(second_moment)
    directions = columns.T[::-1]
    largest = np.take_along_axis(directions, np.abs(directions).argmax(1)[:, None], 1)
    return Spectrum(
        np.clip(eigenvalues[::-1], 0, None), directions * np.where(largest < 0, -1.0, 1.0)
    )


def select_basis(spectrum: Spectrum, eps: float, rounding: float) -> Matrix:
    """Return B, shape [r, n], of the r directions that the rows vary in.

    Args:
        spectrum: of S.
        eps: ε, not negative.
        rounding: relative rounding error of the rows' dtype.
    """
    eigenvalues = spectrum.eigenvalues
    computed = len(eigenvalues) * np.finfo(eigenvalues.dtype).eps * eigenvalues.max()
    is_used = eigenvalues > max(computed, rounding**2 * eigenvalues.mean())
    used = spectrum.directions[is_used]
    return used / np.sqrt(spectrum.damped(eps)[is_used])[:, None]


def spread_basis(
    basis: Matrix, num_outputs: int, signs: bool, generator: np.random.Generator
) -> Matrix:
    """Return m eigen filters, shape [m, n]: as in `trainact.filters`, with NumPy's rotations."""
    filters: list[Matrix] = []
    missing, rotated = num_outputs, basis
    while missing > 0:
        some = rotated[: count_directions(missing, len(basis), signs)]
        parts = [some, -some[: missing - len(some)]] if signs else [some]
        filters += parts
        missing -= sum(map(len, parts))
        if missing > 0:
            rotated = draw_rotation(len(basis), generator) @ basis
    return np.concatenate(filters)


def draw_rotation(size: int, generator: np.random.Generator) -> Matrix:
    """Return a random orthogonal matrix, uniform (Haar) over all of them."""
    q, r = np.linalg.qr(generator.standard_normal((size, size)))
    return q * np.where(np.diagonal(r) < 0, -1.0, 1.0)


def whiten_own(weight: Matrix, spectrum: Spectrum, eps: float) -> Matrix:
    """Return W (S + ε ē I)^(-1/2), shape [m, n].

    Args:
        weight: W, shape [m, n].
        spectrum: of S.
        eps: ε, positive.
    """
    coordinates = weight @ spectrum.directions.T
    return coordinates / np.sqrt(spectrum.damped(eps)) @ spectrum.directions


def mean_square(weight: Matrix, second_moment: Matrix) -> float:
    """Return the mean of z² over all rows and outputs, without a bias.

    Args:
        weight: W, shape [g, m/g, n].
        second_moment: S, shape [g, n, n].
    """
    return float(((weight @ second_moment) * weight).sum(-1).mean())
