"""The sum of outer products xᵀx over all rows of a layer's input, without unfolding all at once.

Three exact methods give the sum, and :func:`sum_outer_products` takes the one that should be the
fastest on the input's device:

- ``sum_by_unfolding``, on a CPU: unfold small chunks of the input to rows and multiply them. It
  works for every layer, and is best where patches do not overlap. Of a wide symmetric product, only
  one half is computed.
- ``sum_by_large_chunks``, on an accelerator: the same with few operators, since each one is the
  launch of a kernel.
- ``sum_by_lines`` (``overlapping_patches.py``), for patches that overlap.

:func:`sum_centered_products` gives the same of the rows minus their mean.

Products are computed in the moment's dtype over blocks of few rows; the sums of the blocks are
added in float64 if the device supports it. Natural images have eigenvalues from 0 to hundreds: in a
float32 sum over a million positions, the small eigenvalues, which TrAct amplifies, would be lost.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from trainact.device_costs import DeviceCosts, find_device_costs
from trainact.options import WIDE_INPUTS, Precision
from trainact.overlapping_patches import estimate_cost_by_lines, sum_by_lines
from trainact.rows import (
    LINEAR_PATCHES,
    Patches,
    RowSample,
    count_inputs,
    count_rows,
    shift_input,
    unfold_in_chunks,
    unfold_rows,
)

__all__ = [
    "choose_method",
    "full_precision_products",
    "sum_by_large_chunks",
    "sum_by_unfolding",
    "sum_centered_products",
    "sum_outer_products",
]

BLOCK_ROWS = 512
"""Rows whose products are added in the moment's dtype before float64 takes over."""

WIDE_STRIPS = 3
"""Strips of columns for a wide product; more strips multiply less, but more slowly."""

WIDE_BLOCK_ROWS = 8192
"""BLOCK_ROWS for a wide product, where adding an n × n matrix takes long."""

LARGE_CHUNK_BYTES = 64 << 20
"""Memory for a chunk on an accelerator, if twice the input is less."""

LARGE_BLOCK_ROWS = 2048
"""BLOCK_ROWS on an accelerator; more if the products would need a quarter of the input's memory."""

LOWER_PRECISIONS = ("tf32", "bf16")

COSTLY_OPERATOR = 2_000_000
"""If an operator costs more multiplications, large chunks with few operators are faster."""

OPERATORS = 3
"""Operators called for one chunk of unfolded rows, about."""

Method: TypeAlias = Callable[[Tensor, Patches, Precision], Tensor]


def sum_outer_products(
    x: Tensor, patches: Patches, precision: Precision, sample: RowSample | None = None
) -> Tensor:
    """Return xᵀx summed over the rows (not divided by b), shape [g, n, n].

    Products keep the full precision of their dtype, whatever
    ``torch.set_float32_matmul_precision`` allows: the largest eigenvalue times the rounding of TF32
    can exceed λ.

    Args:
        x: the layer's input, as in :func:`trainact.rows.unfold_rows`.
        patches: how the layer cuts it into rows.
        precision: the dtypes; narrower inputs are converted before they are multiplied, so that a
            float16 product cannot overflow.
        sample: estimate the sum from these rows, scaled up to all b.
    """
    if torch.compiler.is_compiling():
        seed = None if sample is None else sample.seed
        size = 0 if sample is None else sample.size
        return _sum_compiled(x, *_flatten_patches(patches), *precision, seed, size)
    with full_precision_products():
        if sample is None:
            return choose_method(x, patches)(x, patches, precision)
        rows = unfold_rows(x.to(precision.products), patches, sample)
        return (rows.mT @ rows).to(precision.sums) * (count_rows(x, patches) / sample.size)


def sum_centered_products(
    x: Tensor,
    mean: Tensor,
    patches: Patches,
    precision: Precision,
    sample: RowSample | None = None,
) -> Tensor:
    """Return (x − μ)ᵀ(x − μ) summed over the rows, shape [g, n, n], in the dtype of the mean.

    Multiplied first and centred afterwards, rows with a large mean would lose their digits. So a
    mean is subtracted from each channel of the input first. What is left of μ afterwards, where
    padding makes the columns of a channel differ, is small.

    Args:
        x: as in :func:`sum_outer_products`.
        mean: μ, of all rows, shape [g, n].
        patches: as in :func:`sum_outer_products`.
        precision: as in :func:`sum_outer_products`.
        sample: as in :func:`sum_outer_products`; the mean stays that of all rows.
    """
    num_rows = count_rows(x, patches)
    x = x.to(precision.products)
    if sample is not None:
        rows = (unfold_rows(x, patches, sample) - mean.unsqueeze(1)).to(x.dtype)
        products = [sum_outer_products(group, LINEAR_PATCHES, precision) for group in rows]
        return torch.cat(products).to(mean.dtype) * (num_rows / sample.size)
    by_channel = mean.reshape(-1, math.prod(patches.kernel_size))  # [C, kernel]
    shift = by_channel.mean(1).to(x.dtype)
    left = (by_channel - shift.unsqueeze(1)).reshape(mean.shape)
    total = sum_outer_products(*shift_input(x, patches, shift), precision).to(mean.dtype)
    return torch.baddbmm(total, left.unsqueeze(-1), left.unsqueeze(-2), alpha=-num_rows)


def choose_method(x: Tensor, patches: Patches, costs: DeviceCosts | None = None) -> Method:
    """Return the method that should be the fastest for this shape.

    Args:
        x: the layer's input; only its shape, dtype and device matter.
        patches: how the layer cuts it into rows.
        costs: of the device; None means those of ``x.device``.
    """
    costs = costs or find_device_costs(x.device)
    unfold = sum_by_large_chunks if costs.operator > COSTLY_OPERATOR else sum_by_unfolding
    by_lines = estimate_cost_by_lines(x, patches, costs)
    return sum_by_lines if by_lines < _estimate_cost_by_unfolding(x, patches, costs) else unfold


def _estimate_cost_by_unfolding(x: Tensor, patches: Patches, costs: DeviceCosts) -> float:
    num_inputs = count_inputs(x, patches)
    numbers = count_rows(x, patches) * patches.groups * num_inputs
    chunks = -(-numbers // (LARGE_CHUNK_BYTES // 4))
    return numbers * (num_inputs + costs.copy) + chunks * OPERATORS * costs.operator


def sum_by_large_chunks(x: Tensor, patches: Patches, precision: Precision) -> Tensor:
    """Return xᵀx, shape [g, n, n], with few operators; works for every layer."""
    num_inputs, num_rows = count_inputs(x, patches), count_rows(x, patches)
    if num_rows == 0 or num_inputs == 0:
        return x.new_zeros(patches.groups, num_inputs, num_inputs, dtype=precision.sums)
    affordable = max(1, x.numel() // (4 * patches.groups * num_inputs**2))
    blocks = min(-(-num_rows // LARGE_BLOCK_ROWS), affordable)
    chunks = list(_split_samples(x.to(precision.products), patches))
    products = []
    for some in chunks:
        rows = unfold_rows(some, patches)
        count = _find_divisor(rows.shape[1], -(-blocks // len(chunks)))
        parts = rows.unflatten(1, (count, -1)).transpose(0, 1)  # [blocks, g, rows, n]
        products.append(parts.mT @ parts)
    every = products[0] if len(products) == 1 else torch.cat(products)
    return every.sum(0, dtype=precision.sums)


def _split_samples(x: Tensor, patches: Patches) -> Sequence[Tensor]:
    """Return parts of the batch whose padded and unfolded copies fit into the memory for chunks."""
    dims = len(patches.kernel_size)
    if dims == 0 or x.dim() == dims + 1:
        return [x]
    unfolded = patches.groups * count_inputs(x, patches) * count_rows(x[:1], patches)
    lengths = zip(x.shape[2:], patches.padding, strict=True)
    padded = x.shape[1] * math.prod(length + sum(sides) for length, sides in lengths)
    memory = max(2 * x.numel(), LARGE_CHUNK_BYTES // x.element_size())
    chunks = -(-len(x) // max(1, memory // (unfolded + padded)))
    return x.split(-(-len(x) // chunks))


def _find_divisor(number: int, wanted: int) -> int:
    """Return the divisor of ``number`` that is nearest above ``wanted``, or else nearest below.

    >>> _find_divisor(12, 5), _find_divisor(7, 3), _find_divisor(98, 10)
    (6, 7, 14)
    """
    above = range(wanted, min(number, 4 * wanted) + 1)
    below = range(wanted, 0, -1)
    return next(divisor for divisor in (*above, *below) if number % divisor == 0)


def sum_by_unfolding(x: Tensor, patches: Patches, precision: Precision) -> Tensor:
    """Return xᵀx, shape [g, n, n], from unfolded rows; works for every layer."""
    num_inputs = count_inputs(x, patches)
    is_wide = num_inputs >= WIDE_INPUTS
    multiply = _multiply_one_by_one if is_wide else _multiply_at_once
    width = -(-num_inputs // WIDE_STRIPS) if is_wide else max(1, num_inputs)
    starts = range(0, max(1, num_inputs), width)
    strips: list[Tensor] = []
    for rows in unfold_in_chunks(x.to(precision.products), patches):
        products = [
            multiply(rows[..., i : i + width], rows[..., i:], precision.sums) for i in starts
        ]
        strips = [a + b for a, b in zip(strips, products, strict=True)] if strips else products
    if not strips:
        return x.new_zeros(patches.groups, num_inputs, num_inputs, dtype=precision.sums)
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
    some, others = (part.reshape(-1, BLOCK_ROWS, part.shape[-1]) for part in (left, right))
    product = torch.bmm(some.mT, others)
    return product.unflatten(0, (-1, blocks)).sum(1, dtype=sum_dtype)


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


@contextlib.contextmanager
def full_precision_products() -> Iterator[None]:
    """Let float32 products keep float32's precision, whatever the user's setting allows.

    The settings belong to the process; they are put back before any code outside trainact runs in
    this thread.
    """
    settings = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)  # type: ignore[attr-defined]
    before = [setting.fp32_precision for setting in settings]
    lowered = [pair for pair in zip(settings, before, strict=True) if pair[1] in LOWER_PRECISIONS]
    for setting, _ in lowered:
        setting.fp32_precision = "ieee"
    try:
        yield
    finally:
        for setting, value in lowered:
            setting.fp32_precision = value


@torch.library.custom_op("trainact::sum_outer_products", mutates_args=())
def _sum_compiled(
    x: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    padding_mode: str,
    products: torch.dtype,
    sums: torch.dtype,
    seed: Tensor | None,
    sample_size: int,
) -> Tensor:
    """Do what :func:`sum_outer_products` does, as one operator that torch.compile keeps whole.

    A graph cannot hold :func:`full_precision_products`, nor chunks chosen by the batch size.
    """
    sides = tuple(zip(padding[::2], padding[1::2], strict=True))
    patches = Patches(
        tuple(kernel_size), tuple(stride), sides, tuple(dilation), groups, padding_mode
    )
    sample = None if seed is None else RowSample(sample_size, seed)
    return sum_outer_products(x, patches, Precision(products, sums), sample)


@_sum_compiled.register_fake
def _(x: Tensor, *arguments: Any) -> Tensor:
    kernel_size, _, _, _, groups, _, _, sums, *_ = arguments
    num_inputs = x.shape[-len(kernel_size) - 1] // groups * math.prod(kernel_size)
    return x.new_empty(groups, num_inputs, num_inputs, dtype=sums)


def _flatten_patches(patches: Patches) -> tuple[Any, ...]:
    padding = [amount for sides in patches.padding for amount in sides]
    return (
        patches.kernel_size,
        patches.stride,
        padding,
        patches.dilation,
        patches.groups,
        patches.padding_mode,
    )
