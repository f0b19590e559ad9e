"""The sum of outer products xᵀx over overlapping patches of images, without unfolding them.

The columns of pixels that patches share are multiplied once for each distance, and not once for
each pair of kernel positions at this distance. Blocks of a few columns of pixels are unfolded along
the height alone. Each is multiplied with itself and with the blocks to its right that a patch can
reach. Nothing is subtracted, so no digits cancel.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from trainact.jax.patches import PartReader, Patches, unfold_axis

__all__ = ["prefers_columns", "sum_by_columns"]

MOST_COLUMNS = 8
SLOW_WIDTH = 45
"""A product with a matrix of this width takes twice the time per multiplication of a wide one."""


class _Plan(NamedTuple):
    columns: int
    """Of pixels, in a block."""
    reach: int
    """Blocks that a block is multiplied with, itself included."""
    cost: float
    """For each patch, in multiplications of a wide matrix."""


def _plan_blocks(channels: int, patches: Patches) -> _Plan:
    kernel, width = patches.kernel_size
    plans = []
    for columns in range(1, MOST_COLUMNS + 1):
        inner, reach = kernel * channels * columns, 1 + (columns + width - 2) // columns
        cost = patches.strides[1] * inner * (inner + SLOW_WIDTH) * reach / columns
        plans.append(_Plan(columns, reach, cost))
    return min(plans, key=lambda plan: plan.cost)


def prefers_columns(x: jax.Array, patches: Patches) -> bool:
    """Return whether :func:`sum_by_columns` supports this input, and should be faster on a CPU."""
    if len(patches.kernel_size) != 2 or patches.groups > 1 or patches.dilation != (1, 1):
        return False
    num_inputs = patches.count_inputs(x)
    columns, reach, cost = _plan_blocks(x.shape[-1], patches)
    held = x.shape[0] * patches.positions[0] * patches.kernel_size[0] * columns * x.shape[-1]
    held *= max(4, x.dtype.itemsize)  # bytes: narrower inputs are read in float32
    return cost < num_inputs * (num_inputs + SLOW_WIDTH) and 2 * (2 * reach + 1) * held <= x.nbytes


def sum_by_columns(
    x: jax.Array, patches: Patches, dtype: jnp.dtype, shift: jax.Array | None = None
) -> jax.Array:
    """Return xᵀx, shape [1, n, n], of an input [N, height, width, C]."""
    samples, channels = x.shape[0], x.shape[-1]
    (kernel, width), (lines, positions) = patches.kernel_size, patches.positions
    columns, reach, _ = _plan_blocks(channels, patches)
    size = (positions - 1) * patches.strides[1] + width
    blocks = -(-size // columns)
    reader = PartReader(x.dtype, dtype, shift)
    x = patches.pad(reader.hold(x), (blocks + reach - 1) * columns - size)
    inner = kernel * columns * channels

    def unfold_block(block: jax.Array | int) -> jax.Array:
        part = reader.read(lax.dynamic_slice_in_dim(x, block * columns, columns, 2))
        return unfold_axis(part, patches, 0).reshape(samples * lines, 1, inner)

    def add(
        state: tuple[jax.Array, jax.Array], step: tuple[jax.Array, jax.Array]
    ) -> tuple[tuple[jax.Array, jax.Array], None]:
        total, window = state  # blocks side by side, the leftmost first
        block, uses = step
        window = jnp.concatenate([window, unfold_block(block + reach - 1)], 1)
        left, right = window[:, 0], window.reshape(samples * lines, reach * inner)
        product = jnp.matmul(left.T, right, precision=lax.Precision.HIGHEST)
        return (total + collect(product, uses), window[:, 1:]), None

    def collect(product: jax.Array, uses: jax.Array) -> jax.Array:
        """Return products of columns by the left one's place in the kernel and their distance."""
        shape = (kernel, columns, channels, reach, kernel, columns, channels)
        by_column = product.reshape(shape).transpose(1, 0, 2, 3, 5, 4, 6)
        by_column = by_column.reshape(columns, kernel, channels, reach * columns, kernel, channels)
        by_distance = jnp.stack([by_column[i, :, :, i : i + width] for i in range(columns)])
        return jnp.tensordot(uses, by_distance, ((1,), (0,)), precision=lax.Precision.HIGHEST)

    first = [unfold_block(block) for block in range(reach - 1)]
    empty = lax.full_like(x, 0, dtype, (samples * lines, 0, inner))
    window = jnp.concatenate([empty, *first], 1)
    total = lax.full_like(x, 0, dtype, (width, kernel, channels, width, kernel, channels))
    uses = np.zeros((width, blocks * columns))
    for u, row in enumerate(uses):
        row[u : u + (positions - 1) * patches.strides[1] + 1 : patches.strides[1]] = 1
    uses = np.moveaxis(uses.reshape(width, blocks, columns), 1, 0).astype(dtype)
    (total, _), _ = lax.scan(add, (total, window), (jnp.arange(blocks), jnp.asarray(uses)))
    return _fill(total)


def _fill(total: jax.Array) -> jax.Array:
    """Return the symmetric matrix [1, n, n] from [left, kernel, C, distance, kernel, C]."""
    width, kernel, channels = total.shape[:3]
    strips = [
        jnp.pad(total[u, :, :, : width - u], ((0, 0), (0, 0), (u, 0), (0, 0), (0, 0)))
        for u in range(width)
    ]  # [kernel, C, width, kernel, C]
    upper = jnp.stack(strips, 1).transpose(0, 1, 2, 4, 3, 5)
    place = np.arange(width)
    is_filled = (place[:, None] <= place)[None, :, None, None, :, None]
    full = jnp.where(is_filled, upper, upper.transpose(3, 4, 5, 0, 1, 2))
    num_inputs = kernel * width * channels
    return full.reshape(1, num_inputs, num_inputs)
