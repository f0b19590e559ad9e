"""Solve linear systems with symmetric positive definite matrices, by Cholesky factorization.

:func:`solve_in_blocks` is for CPUs. There, JAX calls LAPACK, whose threads keep the cores busy for
a while after each call and slow down XLA's own. LAPACK uses one thread for a matrix of at most
:data:`BLOCK` rows. So it factorizes the diagonal blocks, and the rest are products, done by XLA.
The blocks are unrolled in the compiled program. :func:`solve_at_once` is for other devices, for
larger matrices, which would take long to compile, and for many systems, where it is faster.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.linalg import cho_solve

__all__ = ["solve", "solve_at_once", "solve_in_blocks"]

BLOCK = 128
"""Rows of a diagonal block, a power of two."""

MOST_ROWS = 1024
"""Of a matrix that is solved in blocks."""

MOST_SYSTEMS = 4
"""That are solved in blocks."""


def solve(matrix: jax.Array, right: jax.Array) -> jax.Array:
    """Return X with A X = B for each system; NaN if A is not positive definite.

    Args:
        matrix: A, shape [g, n, n]; only the lower triangle is used.
        right: B, shape [g, n, m].
    """
    if matrix.shape[0] > MOST_SYSTEMS or matrix.shape[-1] > MOST_ROWS:
        return solve_at_once(matrix, right)
    return lax.platform_dependent(matrix, right, cpu=solve_in_blocks, default=solve_at_once)


def solve_at_once(matrix: jax.Array, right: jax.Array) -> jax.Array:
    """Return what :func:`solve` returns, by one call of the device's library for each step."""
    factor = lax.linalg.cholesky(matrix, symmetrize_input=False)
    return jax.vmap(lambda lower, one: cho_solve((lower, True), one))(factor, right)


def solve_in_blocks(matrix: jax.Array, right: jax.Array) -> jax.Array:
    """Return what :func:`solve` returns, from factors of diagonal blocks and products.

    The factor L is computed from left to right, a block of columns at a time. Forward substitution
    gives Y with L Y = B on the way. Then backward substitution gives X with Lᵀ X = Y.
    """
    num_rows = matrix.shape[-1]
    size = min(BLOCK, 1 << max(0, num_rows - 1).bit_length())
    missing = -num_rows % size
    matrix = jnp.pad(matrix, [(0, 0), (0, missing), (0, missing)])
    ones = (jnp.arange(num_rows + missing) >= num_rows).astype(matrix.dtype)
    matrix = matrix + jnp.diag(ones)[None]
    right = jnp.pad(right, [(0, 0), (0, missing), (0, 0)])

    done, found = matrix[:, :, :0], right[:, :0]  # the rest of the rows of L, and Y
    steps = []
    for start in range(0, num_rows + missing, size):
        stop = start + size
        column = matrix[:, start:, start:stop] - _multiply(done, done[:, :size].mT)
        rest = right[:, start:stop] - _multiply(done[:, :size], found)
        lower = lax.linalg.cholesky(column[:, :size], symmetrize_input=False)
        inverse = _invert_lower(lower)
        below, solved = _multiply(column[:, size:], inverse.mT), _multiply(inverse, rest)
        steps.append((inverse, below, solved))
        done = jnp.concatenate([done[:, size:], below], 2)
        found = jnp.concatenate([found, solved], 1)
    found = right[:, :0]
    for inverse, below, solved in reversed(steps):
        one = _multiply(inverse.mT, solved - _multiply(below.mT, found))
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
