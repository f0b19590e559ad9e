"""The sum of outer products xᵀx over all rows of a layer's input, without unfolding all at once.

Two exact methods give the sum, and :func:`sum_outer_products` takes the one that should be faster:

- ``sum_by_unfolding``: unfold chunks of the input to rows and multiply them. It works for every
  layer, and is best where patches do not overlap. Of a wide symmetric product, only one half is
  computed.
- ``sum_by_lines`` (``overlapping_patches.py``), for patches that overlap.

Products are computed in the moment's dtype over blocks of few rows; the sums of the blocks are
added in float64 if the device supports it. Natural images have eigenvalues from 0 to hundreds: in a
float32 sum over a million positions, the small eigenvalues, which TrAct amplifies, would be lost.
"""

from collections.abc import Callable
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from trainact.options import Precision
from trainact.overlapping_patches import estimate_cost_by_lines, sum_by_lines
from trainact.rows import (
    Patches,
    RowSample,
    count_inputs,
    count_rows,
    unfold_in_chunks,
    unfold_rows,
)

__all__ = ["choose_method", "sum_by_unfolding", "sum_outer_products"]

BLOCK_ROWS = 512
"""Rows whose products are added in the moment's dtype before float64 takes over."""

WIDE_INPUTS = 256
"""From this n on, only one half of the symmetric product is computed, and sums have the products'
dtype: float64 would double the time."""

WIDE_STRIPS = 3
"""Strips of columns for a wide product; more strips multiply less, but more slowly."""

WIDE_BLOCK_ROWS = 8192
"""BLOCK_ROWS for a wide product, where adding an n × n matrix takes long."""

COPY_COST = 30
"""Multiplications that take about as long as copying one number."""

Method: TypeAlias = Callable[[Tensor, Patches, Precision], Tensor]


def sum_outer_products(
    x: Tensor, patches: Patches, precision: Precision, sample: RowSample | None = None
) -> Tensor:
    """Return xᵀx summed over the rows (not divided by b), shape [g, n, n].

    Args:
        x: the layer's input, as in :func:`trainact.rows.unfold_rows`.
        patches: how the layer cuts it into rows.
        precision: the dtypes; narrower inputs are converted before they are multiplied, so that a
            float16 product cannot overflow.
        sample: estimate the sum from these rows, scaled up to all b.
    """
    if count_inputs(x, patches) >= WIDE_INPUTS:
        precision = precision._replace(sums=precision.products)
    if sample is None:
        return choose_method(x, patches)(x, patches, precision)
    rows = unfold_rows(x.to(precision.products), patches, sample)
    return (rows.mT @ rows).to(precision.sums) * (count_rows(x, patches) / sample.size)


def choose_method(x: Tensor, patches: Patches) -> Method:
    """Return the method that should be faster for this shape, by the number of multiplications."""
    num_inputs = count_inputs(x, patches)
    by_unfolding = count_rows(x, patches) * patches.groups * num_inputs * (num_inputs + COPY_COST)
    by_lines = estimate_cost_by_lines(x, patches, COPY_COST)
    return sum_by_lines if by_lines < by_unfolding else sum_by_unfolding


def sum_by_unfolding(x: Tensor, patches: Patches, precision: Precision) -> Tensor:
    """Return xᵀx, shape [g, n, n], from unfolded rows; works for every layer."""
    num_inputs = count_inputs(x, patches)
    is_wide = num_inputs >= WIDE_INPUTS
    multiply = _multiply_one_by_one if is_wide else _multiply_at_once
    width = -(-num_inputs // WIDE_STRIPS) if is_wide else max(1, num_inputs)
    starts = range(0, num_inputs, width)
    strips = [
        x.new_zeros(
            patches.groups, min(width, num_inputs - i), num_inputs - i, dtype=precision.sums
        )
        for i in starts
    ]
    for rows in unfold_in_chunks(x.to(precision.products), patches):
        strips = [
            strip + multiply(rows[..., i : i + width], rows[..., i:], precision.sums)
            for i, strip in zip(starts, strips, strict=True)
        ]
    return _mirror(strips) if is_wide else strips[0]


def _multiply_at_once(left: Tensor, right: Tensor, sum_dtype: torch.dtype) -> Tensor:
    """Return leftᵀ right, shape [g, n', n''], of rows [g, b, n'] and [g, b, n'']."""
    blocks = left.shape[1] // BLOCK_ROWS
    whole = blocks * BLOCK_ROWS
    if whole < left.shape[1]:
        rest = (left[:, whole:].mT @ right[:, whole:]).to(sum_dtype)
        if not blocks:
            return rest
        return rest + _multiply_at_once(left[:, :whole], right[:, :whole], sum_dtype)
    some, others = (part.unflatten(1, (blocks, BLOCK_ROWS)) for part in (left, right))
    return (some.mT @ others).sum(1, dtype=sum_dtype)


def _multiply_one_by_one(left: Tensor, right: Tensor, sum_dtype: torch.dtype) -> Tensor:
    """Return the same block by block: the products of all blocks together would be large."""
    total = left.new_zeros(1, dtype=sum_dtype)
    pairs = zip(left.split(WIDE_BLOCK_ROWS, 1), right.split(WIDE_BLOCK_ROWS, 1), strict=True)
    for some, others in pairs:
        total = total + some.mT @ others
    return total


def _mirror(strips: list[Tensor]) -> Tensor:
    """Return the symmetric matrix from strips [g, n', n - start] of its upper triangle."""
    num_inputs = strips[0].shape[-1]
    upper = torch.cat([F.pad(s, (num_inputs - s.shape[-1], 0)) for s in strips], dim=1)
    is_given = torch.ones(num_inputs, num_inputs, dtype=torch.bool, device=upper.device).triu()
    return torch.where(is_given, upper, upper.mT)
