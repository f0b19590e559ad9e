"""The sum of outer products xᵀx over overlapping patches, without unfolding them.

Overlapping patches share pixels. The product of two pixels counts for every pair of kernel
positions at the same distance, so it is computed once for each distance. That takes
C·s × C·k·(2k-1) products for each position of an image line, instead of (C·k²)² for each output
position. Only the first s kernel positions of a line (s: the stride) are multiplied with all
others. The rest of the matrix is copied from these products, and what differs at the left and right
border is added. Nothing is subtracted, so no digits cancel.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from trainact.device_costs import DeviceCosts
from trainact.options import Precision
from trainact.rows import Patches, count_inputs, output_size, pad_input

__all__ = ["LEFT_HEIGHT", "can_sum_by_lines", "estimate_cost_by_lines", "sum_by_lines"]

LINE_POSITIONS = 2048
"""Positions whose products are added in the moment's dtype before float64 takes over."""

LEFT_HEIGHT = 12
"""Height of the left matrix in a product of lines; a CPU needs about this many to be fast."""

SMALL_MEMORY = 4 << 20
"""Bytes that the method may use even if the input is smaller."""

ADD_PARTS = 4
"""Parts in which a product is added to the sum."""

OPERATORS = 20
"""Operators called for one chunk of lines, about."""


class _Lines(NamedTuple):
    """Sizes for a convolution of planes [C, height, width]."""

    channels: int  # of one group; for three dimensions, times the kernel's middle size
    kernel: tuple[int, int]
    stride: tuple[int, int]
    positions: tuple[int, int]
    planes: int
    leading: int  # kernel positions in a line that are multiplied with all others
    repeats: int  # further times that these fit into the kernel
    height: int  # lines multiplied at once
    columns: int  # positions of a line multiplied at once
    planes_at_once: int


def _plan_lines(x: Tensor, patches: Patches) -> _Lines:
    dims = len(patches.kernel_size)
    size = output_size(x.shape[-dims:], patches)
    samples = x.shape[0] if x.dim() == dims + 2 else 1
    channels = x.shape[-dims - 1] // patches.groups
    middle = math.prod(patches.kernel_size[1:-1])
    first = (patches.kernel_size[0], patches.stride[0], size[0]) if dims > 1 else (1, 1, 1)
    kernel, stride, positions = zip(
        first, (patches.kernel_size[-1], patches.stride[-1], size[-1]), strict=True
    )
    planes = samples * math.prod(size[1:-1])
    leading = min(stride[1], kernel[1])
    repeats = -(-kernel[1] // stride[1]) - 1
    inside = max(1, positions[1] - repeats)
    columns = -(-inside // -(-inside // LINE_POSITIONS))
    return _Lines(
        channels * middle,
        kernel,
        stride,
        positions,
        planes,
        leading,
        repeats,
        max(1, LEFT_HEIGHT // (channels * middle * leading)),
        columns,
        _share_planes(
            planes, min(LINE_POSITIONS // columns, 3 * planes * stride[1] // (4 * kernel[1]))
        ),
    )


def _share_planes(planes: int, at_most: int) -> int:
    """Return how many planes to take at once for chunks of about equal size."""
    chunks = -(-planes // max(1, at_most))
    return max(1, -(-planes // max(1, chunks)))


def can_sum_by_lines(x: Tensor, patches: Patches) -> bool:
    """Return whether :func:`sum_by_lines` supports this input: no dilation, long enough lines."""
    if not patches.kernel_size or any(step != 1 for step in patches.dilation):
        return False
    plan = _plan_lines(x, patches)
    return plan.positions[1] > plan.repeats and plan.positions[0] * plan.planes > 0


def estimate_cost_by_lines(x: Tensor, patches: Patches, costs: DeviceCosts) -> float:
    """Estimate the time of :func:`sum_by_lines`, in multiplications.

    It is infinite for an unsupported input, and if the method would need more memory than twice the
    input and more than ``SMALL_MEMORY``.
    """
    if not can_sum_by_lines(x, patches):
        return math.inf
    plan = _plan_lines(x, patches)
    length = plan.positions[0] * plan.stride[0] + plan.kernel[0] - 1
    line = plan.channels * plan.kernel[1]
    pairs = plan.channels * plan.leading * line * (plan.height + 2 * plan.kernel[0] - 2)
    chunk = plan.planes_at_once * length * plan.columns * line
    memory = 12 * length * pairs + 4 * chunk  # float64 sums, and a product and lines in float32
    if memory > max(8 * x.numel(), SMALL_MEMORY):
        return math.inf
    positions = plan.planes * length * plan.positions[1]
    in_the_middle = positions * (costs.line_product * pairs + costs.copy * line)
    rows_at_border = plan.planes * plan.positions[0] * 2 * plan.repeats
    num_inputs = line * plan.kernel[0]
    at_border = rows_at_border * num_inputs * (num_inputs + costs.copy)
    chunks = -(-plan.planes // plan.planes_at_once)
    return patches.groups * (in_the_middle + at_border + chunks * OPERATORS * costs.operator)


def sum_by_lines(x: Tensor, patches: Patches, precision: Precision) -> Tensor:
    """Return xᵀx, shape [g, n, n], of an input that :func:`can_sum_by_lines` accepts."""
    plan = _plan_lines(x, patches)
    num_inputs = count_inputs(x, patches)
    dims = len(patches.kernel_size)
    x = x.unsqueeze(0) if x.dim() == dims + 1 else x
    sums = [
        _sum_group_by_lines(group, patches._replace(groups=1), plan, precision)
        for group in x.chunk(patches.groups, dim=1)
    ]
    total = torch.stack(sums)  # [g, C (middle), first, last, C (middle), first, last]
    if dims == 3:
        middle = patches.kernel_size[1]
        total = total.unflatten(4, (-1, middle)).unflatten(1, (-1, middle))
        total = total.transpose(2, 3).transpose(6, 7)
    return total.reshape(patches.groups, num_inputs, num_inputs)


def _sum_group_by_lines(x: Tensor, patches: Patches, plan: _Lines, precision: Precision) -> Tensor:
    """Return xᵀx of one group, shape [C, *kernel, C, *kernel]."""
    inside: Tensor | None = None
    border = x.new_zeros(1, dtype=precision.sums)
    for planes in _pad_in_chunks(x, patches, plan, precision.products):
        border = border + _multiply_borders(planes, plan)
        for product in _multiply_lines(planes, plan):
            if inside is None:
                inside = product.to(precision.sums)
            else:
                _add_in_parts(inside, product)
            del product  # before the next one is computed
    assert inside is not None
    return _repeat_to_full(_collect_lines(inside, plan), border, plan)


def _add_in_parts(total: Tensor, product: Tensor) -> None:
    """Add to ``total`` in place; a CPU copies what it adds to the wider dtype, so part by part."""
    steps = -(-len(total) // ADD_PARTS)
    for part, addend in zip(total.split(steps), product.split(steps), strict=True):
        part.add_(addend)


def _pad_in_chunks(
    x: Tensor, patches: Patches, plan: _Lines, dtype: torch.dtype
) -> Iterator[Tensor]:
    """Yield padded planes [N', C, height, width].

    Besides the layer's own padding there are kernel - 1 lines above, enough lines below to fill the
    last step, and on the right the columns of ``repeats`` more positions. Products with these are
    not used.
    """
    dims = len(patches.kernel_size)
    (kernel, _), (stride, step) = plan.kernel, plan.stride
    steps = -(-((plan.positions[0] - 1) * stride + kernel) // plan.height)
    height = steps * plan.height + 2 * (kernel - 1)
    width = (plan.positions[1] + plan.repeats - 1) * step + plan.kernel[1]
    top, left = 0, 0
    if dims == 2 and patches.padding_mode == "zeros":  # pad only once
        (top, _), (left, _) = patches.padding
        patches = patches._replace(padding=((0, 0), (0, 0)))
    for images in x.split(plan.planes_at_once if dims < 3 else 1):
        planes = pad_input(images.to(dtype), patches)
        if dims == 1:
            planes = planes.unsqueeze(2)
        elif dims == 3:
            planes = planes.unfold(3, patches.kernel_size[1], patches.stride[1])
            planes = planes.permute(0, 3, 1, 5, 2, 4).flatten(0, 1).flatten(1, 2)
        for some in planes.split(plan.planes_at_once):
            above = kernel - 1 + top
            some = some[:, :, : max(0, height - above), : max(0, width - left)]
            below, right = height - above - some.shape[2], width - left - some.shape[3]
            yield F.pad(some, (left, right, above, below))


def _multiply_lines(planes: Tensor, plan: _Lines) -> Iterator[Tensor]:
    """Yield the products of lines at most kernel - 1 apart, away from the left and right border.

    Shape [steps, lines, C, leading, lines + 2·kernel - 2, C, kernel]: the ``lines`` of a step times
    the lines from kernel - 1 above the first to kernel - 1 below the last.
    """
    (kernel, width), step = plan.kernel, plan.stride[1]
    window = plan.height + 2 * (kernel - 1)
    for start in range(plan.repeats, plan.positions[1], plan.columns):
        columns = min(plan.columns, plan.positions[1] - start)
        part = planes[..., start * step : (start + columns - 1) * step + width]
        part = part.unfold(3, width, step).permute(2, 1, 4, 0, 3).contiguous()
        lines = part.flatten(3)  # [height, C, kernel, N'·columns]
        left = lines[kernel - 1 : lines.shape[0] - kernel + 1, :, : plan.leading]
        left = left.unflatten(0, (-1, plan.height)).flatten(1, 3)
        right = lines.flatten(1, 2).unfold(0, window, plan.height).permute(0, 3, 1, 2)
        right = right.flatten(1, 2)  # still a view: lines follow each other in memory
        product = (left @ right.mT).unflatten(1, (plan.height, plan.channels, plan.leading))
        yield product.unflatten(4, (window, plan.channels, width))


def _multiply_borders(planes: Tensor, plan: _Lines) -> Tensor:
    """Return xᵀx of the first ``repeats`` positions of a line, and of ``repeats`` after its last.

    Shape [2·repeats, C, kernel, leading, C, kernel, kernel].
    """
    (kernel, width), (stride, step) = plan.kernel, plan.stride
    if plan.repeats == 0:
        sizes = (plan.channels, kernel)
        return planes.new_zeros(0, *sizes, plan.leading, *sizes, width)
    span, after = (plan.repeats - 1) * step + width, plan.positions[1] * step
    lines = planes[:, :, kernel - 1 : kernel - 1 + (plan.positions[0] - 1) * stride + kernel]
    sides = lines.unfold(3, span, after)  # [N', C, height, 2, span]
    sides = sides.permute(3, 4, 1, 0, 2).contiguous()
    windows = sides.unfold(1, width, step).unfold(4, kernel, stride).permute(0, 1, 2, 6, 5, 3, 4)
    columns = windows.flatten(5).flatten(0, 1)  # [2·repeats, C, kernel, kernel, b']
    product = columns[..., : plan.leading, :].flatten(1, 3) @ columns.flatten(1, 3).mT
    product = product.unflatten(1, (plan.channels, kernel, plan.leading))
    return product.unflatten(4, (plan.channels, kernel, width))


def _collect_lines(products: Tensor, plan: _Lines) -> Tensor:
    """Sum, for each pair of kernel lines, the products of the image lines that they cover.

    Shape [C, kernel, leading, C, kernel, kernel].
    """
    kernel, stride = plan.kernel[0], plan.stride[0]
    by_line = torch.stack(
        [products[:, i, :, :, i : i + 2 * kernel - 1] for i in range(plan.height)], dim=1
    ).flatten(0, 1)  # [height, C, leading, 2·kernel - 1, C, kernel]
    span = (plan.positions[0] - 1) * stride + 1
    sums = [
        by_line[i : i + span : stride, :, :, kernel - 1 - i : 2 * kernel - 1 - i].sum(0)
        for i in range(kernel)
    ]
    return torch.stack(sums, dim=1).transpose(3, 4)


def _repeat_to_full(inside: Tensor, border: Tensor, plan: _Lines) -> Tensor:
    """Fill the matrix [C, *kernel, C, *kernel] from the kernel's leading positions.

    Kernel positions u and u' cover the pixels that u - s·a and u' - s·a cover a positions further
    on: all of the inside, the left border from its a-th position on, and a positions on the right.
    """
    width, step = plan.kernel[1], plan.stride[1]
    left, right = border.chunk(2) if plan.repeats else (border, border)
    strips = []
    for a in range(plan.repeats + 1):
        strip = inside + left[a:].sum(0) + right[:a].sum(0)
        strip = strip[:, :, : width - step * a, :, :, : width - step * a]
        strips.append(F.pad(strip, (step * a, 0)))
    upper = torch.cat(strips, dim=2)  # without its lower triangle
    column = torch.arange(width, device=upper.device)
    is_filled = (column >= column[:, None])[:, None, None, :]
    return torch.where(is_filled, upper, upper.permute(3, 4, 5, 0, 1, 2))
