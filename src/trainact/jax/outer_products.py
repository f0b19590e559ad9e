"""The sum of outer products xᵀx over all rows of an input, without holding all patches at once.

Three exact methods give the sum:

- a dense layer's rows are multiplied as they are, wide ones in pairs of blocks of columns;
- :func:`sum_by_unfolding` unfolds chunks of output lines to rows. Patch embeddings only need a
  transposition;
- :func:`trainact.jax.overlapping_patches.sum_by_columns`, on a CPU, for patches that overlap.
"""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
from jax import lax

from trainact.jax.overlapping_patches import prefers_columns, sum_by_columns
from trainact.jax.patches import PartReader, Patches, unfold

__all__ = ["sum_by_unfolding", "sum_outer_products"]

CHUNK_SHARE = 12
"""The patches of one chunk are at most this part of the input."""

WIDE_INPUTS = 256
"""A symmetric product of so many columns is computed in blocks, and only its upper half."""

WIDE_BLOCKS = 4
"""Of columns."""


def sum_outer_products(
    x: jax.Array, patches: Patches, dtype: jnp.dtype, shift: jax.Array | None = None
) -> jax.Array:
    """Return xᵀx summed over the rows (not divided by b), shape [g, n, n].

    Args:
        x: the layer's input, [..., n] for a dense layer, [N, *size, C] otherwise.
        patches: how the layer cuts it into rows.
        dtype: of products and sums; narrower inputs are converted before they are multiplied.
        shift: subtracted from each channel of the padded input, shape [C].
    """
    num_inputs = patches.count_inputs(x)
    if patches.count_rows(x) == 0 or num_inputs == 0:
        return jnp.zeros((patches.groups, num_inputs, num_inputs), dtype)
    if not patches.kernel_size:
        return _multiply_dense(x.reshape(-1, num_inputs), dtype, shift)
    unfolding = functools.partial(sum_by_unfolding, patches=patches, dtype=dtype, shift=shift)
    if not prefers_columns(x, patches):
        return unfolding(x)
    by_columns = functools.partial(sum_by_columns, patches=patches, dtype=dtype, shift=shift)
    return lax.platform_dependent(x, cpu=by_columns, default=unfolding)


def _multiply_dense(rows: jax.Array, dtype: jnp.dtype, shift: jax.Array | None) -> jax.Array:
    """Return xᵀx, shape [1, n, n], of rows [b, n].

    Wide rows are converted in blocks of columns, two at a time. Blocks of rows would divide the
    batch, which may be sharded.
    """
    num_inputs = rows.shape[1]
    reader = PartReader(rows.dtype, dtype, shift)
    held = reader.hold(rows)
    if num_inputs < WIDE_INPUTS:
        return _multiply(reader.read(held)[:, None], 1)[0]
    parts = _divide(num_inputs)
    if rows.dtype == dtype and shift is None:
        return _join(_multiply_blocks([rows[:, part].T for part in parts]))
    width = parts[0].stop
    starts = [min(part.start, num_inputs - width) for part in parts]
    pairs = list(itertools.combinations_with_replacement(starts, 2))

    def take(start: jax.Array) -> jax.Array:
        own = None if shift is None else lax.dynamic_slice_in_dim(shift, start, width)
        part = lax.dynamic_slice_in_dim(held, start, width, 1)
        return reader._replace(shift=own).read(part)

    def add(total: jax.Array, pair: jax.Array) -> tuple[jax.Array, None]:
        product = jnp.matmul(take(pair[0]).T, take(pair[1]), precision=lax.Precision.HIGHEST)
        return lax.dynamic_update_slice(total, product, (pair[0], pair[1])), None

    total = lax.full_like(rows, 0, dtype, (num_inputs, num_inputs))
    return _mirror(lax.scan(add, total, jnp.asarray(pairs))[0])[None]


def sum_by_unfolding(
    x: jax.Array, patches: Patches, dtype: jnp.dtype, shift: jax.Array | None = None
) -> jax.Array:
    """Return xᵀx, shape [g, n, n], of an input that is unfolded in chunks of output lines.

    The chunks divide a dimension of the image, not the batch: so a batch may be sharded, or be the
    axis of a vmap.
    """
    reader = PartReader(x.dtype, dtype, shift)
    x = patches.pad(reader.hold(x))
    return _join(_sum_chunks(x, patches, reader, x.nbytes // dtype.itemsize // CHUNK_SHARE))


def _sum_chunks(x: jax.Array, patches: Patches, reader: PartReader, most: int) -> list[jax.Array]:
    """Return what :func:`_multiply` returns, of chunks of at most ``most`` unfolded numbers."""
    axis = max(range(len(patches.positions)), key=lambda i: patches.positions[i])
    count = patches.positions[axis]
    unfolded = patches.count_rows(x) * patches.groups * patches.count_inputs(x)
    if count == 1 or unfolded <= most:
        rows = unfold(reader.read(x), patches)
        rows = rows.reshape(-1, math.prod(patches.kernel_size), x.shape[-1])
        return _multiply(rows, patches.groups)
    lines = -(-count // min(count, -(-unfolded // max(1, most))))
    whole, rest = divmod(count, lines)
    step, span = patches.strides[axis], patches.spans[axis]

    def multiply(start: jax.Array | int, lines: int) -> list[jax.Array]:
        part = lax.dynamic_slice_in_dim(x, start * step, (lines - 1) * step + span, 1 + axis)
        positions = (*patches.positions[:axis], lines, *patches.positions[axis + 1 :])
        return _sum_chunks(part, patches._replace(positions=positions), reader, most)

    def add(total: list[jax.Array], start: jax.Array) -> tuple[list[jax.Array], None]:
        return jax.tree.map(jnp.add, total, multiply(start, lines)), None

    shapes = jax.eval_shape(lambda: multiply(0, lines))
    total = [lax.full_like(x, 0, shape.dtype, shape.shape) for shape in shapes]
    total, _ = lax.scan(add, total, jnp.arange(whole) * lines)
    return jax.tree.map(jnp.add, total, multiply(whole * lines, rest)) if rest else total


def _multiply(rows: jax.Array, groups: int) -> list[jax.Array]:
    """Return xᵀx of rows [b, kernel, C]: [g, n, n], or its upper blocks if it is wide."""
    num_rows, kernel, channels = rows.shape
    num_inputs = kernel * channels // groups
    highest = lax.Precision.HIGHEST
    if groups > 1:
        rows = rows.reshape(num_rows, kernel, groups, channels // groups)
        total = jnp.einsum("bkgc,blgd->gkcld", rows, rows, precision=highest)
        return [total.reshape(groups, num_inputs, num_inputs)]
    rows = rows.reshape(num_rows, num_inputs)
    if num_inputs < WIDE_INPUTS:
        return [jnp.matmul(rows.T, rows, precision=highest)[None]]
    columns = rows.T  # transposed once, while they are unfolded
    return _multiply_blocks([columns[part] for part in _divide(num_inputs)])


def _divide(num_inputs: int) -> list[slice]:
    """Return the blocks of the columns of wide rows."""
    width = -(-num_inputs // WIDE_BLOCKS)
    return [slice(start, start + width) for start in range(0, num_inputs, width)]


def _multiply_blocks(blocks: list[jax.Array]) -> list[jax.Array]:
    """Return the upper blocks of xᵀx from blocks of columns [n', b]."""
    return [
        jnp.matmul(left, right.T, precision=lax.Precision.HIGHEST)[None]
        for left, right in itertools.combinations_with_replacement(blocks, 2)
    ]


def _join(products: list[jax.Array]) -> jax.Array:
    """Return the symmetric matrix from its upper blocks."""
    if len(products) == 1:
        return products[0]
    blocks = {}
    places = itertools.combinations_with_replacement(range(WIDE_BLOCKS), 2)
    for (i, j), product in zip(places, products, strict=True):
        blocks[j, i], blocks[i, j] = product.mT, product
    indices = range(WIDE_BLOCKS)
    return jnp.block([[blocks[i, j] for j in indices] for i in indices])


def _mirror(matrix: jax.Array) -> jax.Array:
    """Return the symmetric matrix with this upper triangle."""
    return jnp.triu(matrix) + jnp.triu(matrix, 1).mT
