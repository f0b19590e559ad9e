"""Solve linear systems with symmetric positive definite matrices, by Cholesky factorization.

:func:`solve_in_blocks` is for CPUs. There, JAX calls LAPACK, whose threads keep the cores busy for
a while after each call and slow down XLA's own. LAPACK uses one thread for a matrix of at most
:data:`BLOCK` rows. So it factorizes the diagonal blocks, and the rest are products, done by XLA.
:func:`solve_at_once` is for other devices.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.linalg import cho_solve

__all__ = ["solve", "solve_at_once", "solve_in_blocks"]

BLOCK = 128
"""Rows of a diagonal block, a power of two."""


def solve(matrix: jax.Array, right: jax.Array) -> jax.Array:
    """Return X with A X = B for each group; NaN if A is not positive definite.

    Args:
        matrix: A, shape [g, n, n]; only the lower triangle is used.
        right: B, shape [g, n, m].
    """
    return lax.platform_dependent(matrix, right, cpu=solve_in_blocks, default=solve_at_once)


def solve_at_once(matrix: jax.Array, right: jax.Array) -> jax.Array:
    """Return what :func:`solve` returns, by one call of the device's library for each step."""
    factor = lax.linalg.cholesky(matrix, symmetrize_input=False)
    return jax.vmap(lambda lower, one: cho_solve((lower, True), one))(factor, right)


def solve_in_blocks(matrix: jax.Array, right: jax.Array) -> jax.Array:
    """Return what :func:`solve` returns, from factors of diagonal blocks and products.

    The blocks of the factor L replace those of A from left to right, while forward substitution
    turns B into Y with L Y = B. Then backward substitution gives X with Lᵀ X = Y.
    """
    num_rows = matrix.shape[-1]
    size = min(BLOCK, 1 << (num_rows - 1).bit_length())
    missing = -num_rows % size
    matrix = jnp.pad(matrix, [(0, 0), (0, missing), (0, missing)])
    ones = (jnp.arange(num_rows + missing) >= num_rows).astype(matrix.dtype)
    matrix = matrix + jnp.diag(ones)[None]
    right = jnp.pad(right, [(0, 0), (0, missing), (0, 0)])

    inverses, below, solved = [], [], []
    while matrix.shape[-1]:
        lower = lax.linalg.cholesky(matrix[:, :size, :size], symmetrize_input=False)
        inverses.append(_invert_lower(lower))
        below.append(_multiply(matrix[:, size:, :size], inverses[-1].mT))
        solved.append(_multiply(inverses[-1], right[:, :size]))
        matrix = matrix[:, size:, size:] - _multiply(below[-1], below[-1].mT)
        right = right[:, size:] - _multiply(below[-1], solved[-1])
    found = right  # no rows yet
    for inverse, column, one in zip(*map(reversed, (inverses, below, solved)), strict=True):
        one = _multiply(inverse.mT, one - _multiply(column.mT, found))
        found = jnp.concatenate([one, found], 1)
    return found[:, :num_rows]


def _invert_lower(lower: jax.Array) -> jax.Array:
    """Return the inverses of lower triangular matrices [g, n, n], where n is a power of two.

    The inverse of [[P, 0], [Q, R]] is [[P⁻¹, 0], [-R⁻¹ Q P⁻¹, R⁻¹]]. Blocks of 1 x 1 are inverted
    first, then those of 2 x 2, and so on.
    """
    groups, size, _ = lower.shape
    inverse = (1 / jnp.diagonal(lower, axis1=1, axis2=2))[:, :, None, None]
    width = 1
    while width < size:
        count = size // (2 * width)
        blocks = lower.reshape(groups, count, 2 * width, count, 2 * width)
        blocks = jnp.moveaxis(jnp.diagonal(blocks, axis1=1, axis2=3), -1, 1)
        first, last = inverse[:, 0::2], inverse[:, 1::2]
        corner = -_multiply(last, _multiply(blocks[:, :, width:, :width], first))
        upper = jnp.concatenate([first, jnp.zeros_like(first)], -1)
        inverse = jnp.concatenate([upper, jnp.concatenate([corner, last], -1)], -2)
        width *= 2
    return inverse[:, 0]


def _multiply(left: jax.Array, right: jax.Array) -> jax.Array:
    return jnp.matmul(left, right, precision=lax.Precision.HIGHEST)
