"""The canonical layout: what a layer multiplies its weight with, as rows [g, b, n].

A Linear's rows are its tokens. A convolution's rows are its patches, one for each output position
of each image, so that z = rows @ weight.flatten(1).T holds for both. The columns are ordered as the
weight is: input channel (of the group) first, then the kernel's positions.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainact.errors import TrActValueError

__all__ = [
    "SUPPORTED_LAYERS",
    "Patches",
    "PlainLayer",
    "LINEAR_PATCHES",
    "count_rows",
    "describe_patches",
    "output_size",
    "pad_input",
    "patches_of_layer",
    "sample_rows",
    "unfold_in_chunks",
    "unfold_rows",
]

SUPPORTED_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
PlainLayer: TypeAlias = nn.Linear | nn.modules.conv._ConvNd

PADDING_MODES = ("zeros", "reflect", "replicate", "circular")
CHUNK_ELEMENTS = 5 << 20
"""How many numbers one chunk of unfolded rows may hold (20 MiB in float32)."""

SMALL_CHUNK_ELEMENTS = 1 << 18
"""The same for small inputs, whose chunks are no larger than themselves beyond this."""

HASH_BITS = 24


class Patches(NamedTuple):
    """How a layer cuts its input into rows; a Linear has a kernel of no dimensions."""

    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]  # before and after, for each dimension
    dilation: tuple[int, ...]
    groups: int
    padding_mode: str


def describe_patches(
    kernel_size: Sequence[int],
    stride: int | Sequence[int] = 1,
    padding: int | str | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    padding_mode: str = "zeros",
) -> Patches:
    """Resolve a convolution's arguments, as torch takes them, to numbers for each dimension.

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
    """Return how ``layer`` cuts its input."""
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


def unfold_rows(x: Tensor, patches: Patches) -> Tensor:
    """Return all rows of ``x``, shape [g, b, n].

    Args:
        x: the layer's input, [..., n] for a Linear, [N, C, *size] or [C, *size] otherwise.
        patches: how the layer cuts it.
    """
    if not patches.kernel_size:
        return x.reshape(1, -1, x.shape[-1])
    return _rows_of_windows(_view_windows(x, patches), patches)


def unfold_in_chunks(
    x: Tensor, patches: Patches, max_elements: int | None = None
) -> Iterator[Tensor]:
    """Yield the rows of ``x`` in pieces [g, b', n] of at most ``max_elements`` numbers each.

    A piece is at least one line of output positions of one image. None means half as many as the
    input has, within bounds; a Linear's rows are not copied, so only the upper bound holds there.
    """
    if not patches.kernel_size:
        at_once = (max_elements or CHUNK_ELEMENTS) // max(1, x.shape[-1])
        yield from unfold_rows(x, patches).split(max(1, at_once), dim=1)
        return
    if max_elements is None:
        max_elements = min(CHUNK_ELEMENTS, max(x.numel() // 2, SMALL_CHUNK_ELEMENTS))
    windows = _view_windows(x, patches)
    samples, lines = windows.shape[0], windows.shape[2]
    per_line = max(1, math.prod(windows.shape[1:2] + windows.shape[3:]))
    lines_at_once = max(1, min(lines, max_elements // per_line))
    samples_at_once = max(1, max_elements // (per_line * max(1, lines)))
    for some in windows.split(samples_at_once) if samples else ():
        for piece in some.split(lines_at_once, dim=2) if lines else ():
            yield _rows_of_windows(piece, patches)


def sample_rows(x: Tensor, patches: Patches, count: int, seed: Tensor) -> Tensor:
    """Return ``count`` of the b rows of ``x``, shape [g, count, n]: one from each of equal strata.

    Args:
        x: the layer's input.
        patches: how the layer cuts it.
        count: how many rows to take, at most b.
        seed: an int64 scalar; the choice depends on nothing else and reads no value of it.
    """
    num_rows = count_rows(x, patches)
    strata = torch.arange(count, device=x.device)
    within = (_hash(strata + seed * count) * num_rows) >> HASH_BITS  # uniform in 0 ... b - 1
    chosen = (strata * num_rows + within) // count
    if not patches.kernel_size:
        return x.reshape(-1, x.shape[-1])[chosen].unsqueeze(0)
    windows = _view_windows(x, patches)
    dims = len(patches.kernel_size)
    sizes = (windows.shape[0], *windows.shape[2 : 2 + dims])
    at = torch.unravel_index(chosen, sizes)
    picked = windows.movedim(1, 1 + dims)[at]  # [count, C, *kernel]
    return picked.reshape(count, patches.groups, -1).transpose(0, 1)


def _hash(values: Tensor) -> Tensor:
    """Return numbers of ``HASH_BITS`` bits that look random, one for each int64 value."""
    mixed = values * 0x2545F4914F6CDD1D  # int64 products wrap around
    for shift in (32, 29, 32):
        mixed = (mixed ^ ((mixed >> shift) & 0x7FFFFFFF)) * 0x369DEA0F31A53F85
    return (mixed >> 11) & ((1 << HASH_BITS) - 1)


def pad_input(x: Tensor, patches: Patches) -> Tensor:
    """Return ``x`` as a batch [N, C, *size] with its border added explicitly."""
    dims = len(patches.kernel_size)
    if x.dim() == dims + 1:
        x = x.unsqueeze(0)
    if all(side == (0, 0) for side in patches.padding):
        return x
    sides = [amount for side in reversed(patches.padding) for amount in side]
    return F.pad(x, sides, mode=patches.padding_mode.replace("zeros", "constant"))


def _view_windows(x: Tensor, patches: Patches) -> Tensor:
    """Return a view [N, C, *positions, *kernel] on the padded input; nothing is copied."""
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
    """Return the number of positions in each dimension of an input of the given size."""
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
