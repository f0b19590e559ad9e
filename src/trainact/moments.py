"""One question, xᵀx over all rows of a layer's input, answered without holding all rows at once.

Two exact ways give the sum, and :func:`sum_outer_products` takes the one that should be faster:

- by rows: unfold pieces of the input to rows and multiply them. It takes every layer, and is all
  there is to do where patches do not overlap; of a wide symmetric product one half is computed;
- by lines (``lines.py``): for overlapping patches.

Products run in the moment's dtype, over blocks of few rows; the blocks' sums are added in float64
where the device has it. Natural images have eigenvalues from 0 to hundreds, and a float32 sum over
a million positions would drown the small ones, which are those that TrAct amplifies.
"""

from collections.abc import Callable
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from trainact.lines import estimate_cost_by_lines, sum_by_lines
from trainact.rows import Patches, count_rows, unfold_in_chunks

__all__ = ["WIDE_INPUTS", "choose_way", "sum_by_rows", "sum_outer_products"]

BLOCK_ROWS = 512
"""Rows whose products are added up in the moment's dtype before float64 takes over."""

WIDE_INPUTS = 256
"""From this n on, only one half of the symmetric product is computed."""

WIDE_STRIPS = 3
"""Strips of columns that it is cut into; more compute less and do so more slowly."""

WIDE_BLOCK_ROWS = 8192
"""BLOCK_ROWS for such an n, where adding up an n × n matrix takes long itself."""

COPY_COST = 30
"""Multiplications that take as long as copying one number, roughly."""

Way: TypeAlias = Callable[[Tensor, Patches, int, torch.dtype, torch.dtype], Tensor]


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
    way = choose_way(x, patches, num_inputs)
    return way(x.detach(), patches, num_inputs, dtype, sum_dtype)


def choose_way(x: Tensor, patches: Patches, num_inputs: int) -> Way:
    """Return the way that should be faster for this shape, by counting multiplications."""
    outer_products = count_rows(x, patches) * patches.groups * num_inputs
    by_rows = outer_products * (num_inputs + COPY_COST)
    by_lines = estimate_cost_by_lines(x, patches, COPY_COST)
    return sum_by_lines if by_lines < by_rows else sum_by_rows


def sum_by_rows(
    x: Tensor, patches: Patches, num_inputs: int, dtype: torch.dtype, sum_dtype: torch.dtype
) -> Tensor:
    """Do what :func:`sum_outer_products` does by unfolding; it takes every layer."""
    is_wide = num_inputs >= WIDE_INPUTS
    multiply = _multiply_one_by_one if is_wide else _multiply_at_once
    width = -(-num_inputs // WIDE_STRIPS) if is_wide else max(1, num_inputs)
    starts = range(0, num_inputs, width)
    strips = [
        x.new_zeros(patches.groups, min(width, num_inputs - i), num_inputs - i, dtype=sum_dtype)
        for i in starts
    ]
    for rows in unfold_in_chunks(x.to(dtype), patches):
        strips = [
            strip + multiply(rows[..., i : i + width], rows[..., i:], sum_dtype)
            for i, strip in zip(starts, strips, strict=True)
        ]
    return _mirror(strips) if is_wide else strips[0]


def _multiply_at_once(left: Tensor, right: Tensor, sum_dtype: torch.dtype) -> Tensor:
    """Return leftᵀ right of rows [g, b, n'] and [g, b, n''], shape [g, n', n'']."""
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
    """Do the same with one block at a time: all blocks' products together would be large."""
    total = left.new_zeros(1, dtype=sum_dtype)
    pairs = zip(left.split(WIDE_BLOCK_ROWS, 1), right.split(WIDE_BLOCK_ROWS, 1), strict=True)
    for some, others in pairs:
        total = total + some.mT @ others
    return total


def _mirror(strips: list[Tensor]) -> Tensor:
    """Return the symmetric matrix whose upper triangle is given in strips [g, n', n - start]."""
    num_inputs = strips[0].shape[-1]
    upper = torch.cat([F.pad(s, (num_inputs - s.shape[-1], 0)) for s in strips], dim=1)
    is_given = torch.ones(num_inputs, num_inputs, dtype=torch.bool, device=upper.device).triu()
    return torch.where(is_given, upper, upper.mT)
