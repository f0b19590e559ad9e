"""One question, xᵀx over all rows of a layer's input, answered without holding all rows at once.

Products run in the moment's dtype, over blocks of few rows; the blocks' sums are added in float64
where the device has it. Natural images have eigenvalues from 0 to hundreds, and a float32 sum over
a million positions would drown the small ones, which are those that TrAct amplifies.
"""

import torch
from torch import Tensor

from trainact.rows import Patches, unfold_in_chunks

__all__ = ["BLOCK_ROWS", "sum_outer_products"]

BLOCK_ROWS = 512
"""Rows whose products are added up in the moment's dtype before float64 takes over."""


def sum_outer_products(
    x: Tensor, patches: Patches, num_inputs: int, dtype: torch.dtype, sum_dtype: torch.dtype
) -> Tensor:
    """Return xᵀx summed over the rows (not divided by b), shape [g, n, n], in ``sum_dtype``.

    Args:
        x: the layer's input, as :func:`trainact.rows.unfold_rows` takes it.
        patches: how the layer cuts it into rows.
        num_inputs: n.
        dtype: the dtype to multiply in; narrower inputs are widened first, so that a float16
            product cannot overflow.
        sum_dtype: the dtype to add blocks in.
    """
    x = x.detach().to(dtype)
    total = x.new_zeros(patches.groups, num_inputs, num_inputs, dtype=sum_dtype)
    for rows in unfold_in_chunks(x, patches):
        blocks = rows.shape[1] // BLOCK_ROWS
        if blocks:
            parts = rows[:, : blocks * BLOCK_ROWS].unflatten(1, (blocks, BLOCK_ROWS))
            total = total + (parts.mT @ parts).sum(1, dtype=sum_dtype)
        if rows.shape[1] % BLOCK_ROWS:
            last = rows[:, blocks * BLOCK_ROWS :]
            total = total + (last.mT @ last).to(sum_dtype)
    return total
