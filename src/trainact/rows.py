"""The rows [g, b, n] of a layer: the vectors that it multiplies its weight with.

A Linear's rows are its tokens. A convolution's rows are its patches, one for each output position
of each image. For both, z = rows @ weight.flatten(1).T. The columns have the weight's order: input
channel (of the group) first, then kernel position.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainact.errors import TrActValueError
from trainact.torch_internals import ConvNd

__all__ = [
    "LINEAR_PATCHES",
    "SUPPORTED_LAYERS",
    "Patches",
    "PlainLayer",
    "RowSample",
    "count_inputs",
    "count_rows",
    "describe_patches",
    "output_size",
    "pad_input",
    "patches_of_layer",
    "shift_input",
    "sum_rows",
    "unfold_in_chunks",
    "unfold_rows",
]

SUPPORTED_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
PlainLayer: TypeAlias = nn.Linear | ConvNd

PADDING_MODES = ("zeros", "reflect", "replicate", "circular")
CHUNK_ELEMENTS = 5 << 20
"""Largest number of elements in one chunk of unfolded rows (20 MiB in float32)."""

SMALL_CHUNK_ELEMENTS = 1 << 18
"""The chunks of a small input may have this many elements, even if the input has fewer."""

HASH_BITS = 24


class Patches(NamedTuple):
    """How a layer cuts its input into rows; a Linear has a kernel without dimensions."""

    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]  # before and after, for each dimension
    dilation: tuple[int, ...]
    groups: int
    padding_mode: str


class RowSample(NamedTuple):
    """Which of the rows to take: ``size`` of them, chosen by ``seed``, an int64 scalar."""

    size: int
    seed: Tensor


def describe_patches(
    kernel_size: Sequence[int],
    stride: int | Sequence[int] = 1,
    padding: int | str | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    padding_mode: str = "zeros",
) -> Patches:
    """Resolve a convolution's arguments to one number for each dimension.

    >>> describe_patches((3, 4), padding="same").padding
    ((1, 1), (1, 2))
    """
    if padding_mode not in PADDING_MODES:
        raise TrActValueError(
            f"padding_mode={padding_mode!r} is unknown; use one of {', '.join(PADDING_MODES)}."
        )
    dims = len(kernel_size)
    dilation = _for_each_dimension(dilation, dims)
    if padding == "same":
        spans = [d * (k - 1) for k, d in zip(kernel_size, dilation, strict=True)]
        sides = tuple((span // 2, span - span // 2) for span in spans)
    elif padding == "valid":
        sides = ((0, 0),) * dims
    elif isinstance(padding, str):
        raise TrActValueError(f"padding={padding!r} is unknown; use a number, 'same' or 'valid'.")
    else:
        sides = tuple((side, side) for side in _for_each_dimension(padding, dims))
    stride = _for_each_dimension(stride, dims)
    return Patches(tuple(kernel_size), stride, sides, dilation, groups, padding_mode)


def patches_of_layer(layer: PlainLayer) -> Patches:
    """Return how ``layer`` cuts its input into rows."""
    if isinstance(layer, nn.Linear):
        return LINEAR_PATCHES
    return describe_patches(
        layer.kernel_size,
        layer.stride,
        layer.padding,
        layer.dilation,
        layer.groups,
        layer.padding_mode,
    )


def count_rows(x: Tensor, patches: Patches) -> int:
    """Return b, the number of rows in ``x``: samples times output positions."""
    dims = len(patches.kernel_size)
    if dims == 0:
        return math.prod(x.shape[:-1])
    samples = x.shape[0] if x.dim() == dims + 2 else 1
    return samples * math.prod(output_size(x.shape[-dims:], patches))


def count_inputs(x: Tensor, patches: Patches) -> int:
    """Return n, the number of columns: the inputs of one output."""
    channels = x.shape[-len(patches.kernel_size) - 1]
    return channels // patches.groups * math.prod(patches.kernel_size)


def unfold_rows(x: Tensor, patches: Patches, sample: RowSample | None = None) -> Tensor:
    """Return the rows of ``x``, all or a sample, shape [g, b, n].

    Args:
        x: the layer's input, [..., n] for a Linear, [N, C, *size] or [C, *size] otherwise.
        patches: how the layer cuts it.
        sample: take one random row from each of ``sample.size`` equal strata. The choice depends
            only on the seed, whose value is not read back from the device.
    """
    if sample is not None:
        return _unfold_sample(x, patches, sample)
    if not patches.kernel_size:
        return x.reshape(1, count_rows(x, patches), x.shape[-1])
    return _rows_of_windows(_view_windows(x, patches), patches)


def unfold_in_chunks(
    x: Tensor, patches: Patches, max_elements: int | None = None
) -> Iterator[Tensor]:
    """Yield the rows of ``x`` in chunks [g, b', n] of at most ``max_elements`` elements.

    A chunk has at least one line of output positions of one image. None means half of the input's
    elements, within bounds; a Linear's rows are not copied, so there only the upper bound holds.
    """
    if not patches.kernel_size:
        at_once = (max_elements or CHUNK_ELEMENTS) // max(1, x.shape[-1])
        rows = unfold_rows(x, patches)
        yield from rows.split(max(1, at_once), dim=1) if rows.shape[1] else ()
        return
    if max_elements is None:
        max_elements = min(CHUNK_ELEMENTS, max(x.numel() // 2, SMALL_CHUNK_ELEMENTS))
    windows = _view_windows(x, patches)
    samples, lines = windows.shape[0], windows.shape[2]
    per_line = max(1, math.prod(windows.shape[1:2] + windows.shape[3:]))
    lines_at_once = max(1, min(lines, max_elements // per_line))
    samples_at_once = max(1, max_elements // (per_line * max(1, lines)))
    for some in windows.split(samples_at_once) if samples else ():
        for chunk in some.split(lines_at_once, dim=2) if lines else ():
            yield _rows_of_windows(chunk, patches)


def sum_rows(x: Tensor, patches: Patches, dtype: torch.dtype) -> Tensor:
    """Return the sum of all rows of ``x`` in a dtype, shape [g, n]; no row is unfolded."""
    dims = len(patches.kernel_size)
    if dims == 0:
        return unfold_rows(x, patches).sum(1, dtype=dtype)
    image = x.sum(0, dtype=dtype) if x.dim() == dims + 2 else x.to(dtype)
    windows = _view_windows(image, patches)  # [1, C, *positions, *kernel]
    sums = windows.sum(dim=(0, *range(2, 2 + dims)))
    return sums.reshape(patches.groups, count_inputs(x, patches))


def shift_input(x: Tensor, patches: Patches, shift: Tensor) -> tuple[Tensor, Patches]:
    """Return an input whose rows are those of ``x`` minus a number for each channel.

    Padding is shifted too, so it becomes part of the input: the second result has none.

    Args:
        x: the layer's input.
        patches: how the layer cuts it.
        shift: the numbers, shape [C].
    """
    dims = len(patches.kernel_size)
    if dims == 0:
        return x - shift, patches
    shifted = pad_input(x, patches) - shift.view(-1, *(1,) * dims)
    return shifted, patches._replace(padding=((0, 0),) * dims)


def _unfold_sample(x: Tensor, patches: Patches, sample: RowSample) -> Tensor:
    num_rows, size = count_rows(x, patches), sample.size
    strata = torch.arange(size, device=x.device)
    within = (_hash(strata + sample.seed * size) * num_rows) >> HASH_BITS  # uniform in 0 ... b - 1
    chosen = (strata * num_rows + within) // size
    if not patches.kernel_size:
        return x.reshape(-1, x.shape[-1])[chosen].unsqueeze(0)
    windows = _view_windows(x, patches)
    dims = len(patches.kernel_size)
    sizes = (windows.shape[0], *windows.shape[2 : 2 + dims])
    at = torch.unravel_index(chosen, sizes)
    picked = windows.movedim(1, 1 + dims)[at]  # [size, C, *kernel]
    return picked.reshape(size, patches.groups, -1).transpose(0, 1)


def _hash(values: Tensor) -> Tensor:
    """Return a pseudo-random number of ``HASH_BITS`` bits for each int64 value."""
    mixed = values * 0x2545F4914F6CDD1D  # int64 products wrap around
    for shift in (32, 29, 32):
        mixed = (mixed ^ ((mixed >> shift) & 0x7FFFFFFF)) * 0x369DEA0F31A53F85
    return (mixed >> 11) & ((1 << HASH_BITS) - 1)


def pad_input(x: Tensor, patches: Patches) -> Tensor:
    """Return ``x`` as a batch [N, C, *size] with its padding added."""
    dims = len(patches.kernel_size)
    if x.dim() == dims + 1:
        x = x.unsqueeze(0)
    if all(side == (0, 0) for side in patches.padding):
        return x
    sides = [amount for side in reversed(patches.padding) for amount in side]
    return F.pad(x, sides, mode=patches.padding_mode.replace("zeros", "constant"))


def _view_windows(x: Tensor, patches: Patches) -> Tensor:
    """Return a view [N, C, *positions, *kernel] of the padded input, without a copy."""
    windows = pad_input(x, patches)
    spans = [d * (k - 1) + 1 for k, d in zip(patches.kernel_size, patches.dilation, strict=True)]
    for axis, (span, step) in enumerate(zip(spans, patches.stride, strict=True), start=2):
        windows = windows.unfold(axis, span, step)
    steps = [slice(None, None, step) for step in patches.dilation]
    return windows[(slice(None),) * (windows.dim() - len(steps)) + tuple(steps)]


def _rows_of_windows(windows: Tensor, patches: Patches) -> Tensor:
    dims = len(patches.kernel_size)
    channels = windows.shape[1] // patches.groups
    by_group = windows.unflatten(1, (patches.groups, channels))  # [N, g, C/g, *positions, *kernel]
    positions = range(3, 3 + dims)
    kernel = range(3 + dims, 3 + 2 * dims)
    ordered = by_group.permute(1, 0, *positions, 2, *kernel)
    num_inputs = math.prod(ordered.shape[2 + dims :])
    num_rows = math.prod(ordered.shape[1 : 2 + dims])
    return ordered.reshape(patches.groups, num_rows, num_inputs)


def output_size(size: Sequence[int], patches: Patches) -> list[int]:
    """Return the number of output positions in each dimension, for an input of this size."""
    return [
        max(0, (length + sum(side) - d * (k - 1) - 1) // step + 1)
        for length, k, step, side, d in zip(
            size,
            patches.kernel_size,
            patches.stride,
            patches.padding,
            patches.dilation,
            strict=True,
        )
    ]


def _for_each_dimension(value: int | Sequence[int], dims: int) -> tuple[int, ...]:
    values = (value,) * dims if isinstance(value, int) else tuple(value)
    if len(values) == 1:
        values = values * dims
    if len(values) != dims:
        raise TrActValueError(f"{value!r} has {len(values)} numbers for {dims} dimensions.")
    return values


LINEAR_PATCHES = describe_patches(())
