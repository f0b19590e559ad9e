"""How a layer cuts its input into rows; arrays are channels-last, [N, *size, C].

A dense layer's rows are its tokens. A convolution's rows are its patches, one for each output
position of each image. The columns have the order of JAX's weights [*kernel, C/g, m]: kernel
position first, then the channel of the group.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias, TypeGuard

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax import lax

from trainact.errors import TrActTypeError, TrActValueError

__all__ = [
    "DENSE",
    "MOST_DIMENSIONS",
    "Padding",
    "PartReader",
    "Patches",
    "check_input",
    "check_known_size",
    "describe_patches",
    "has_known_size",
    "sum_rows",
    "unfold",
    "unfold_axis",
]

Padding: TypeAlias = str | int | Sequence[int | tuple[int, int]]
MOST_DIMENSIONS = 3


class Patches(NamedTuple):
    """Numbers for each dimension of an input of known size; a dense layer has no dimensions."""

    kernel_size: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    """Zeros before and after; a negative number crops."""
    dilation: tuple[int, ...]
    groups: int
    positions: tuple[int, ...]
    """Output positions."""

    @property
    def spans(self) -> tuple[int, ...]:
        """Pixels from the first to the last one of a patch."""
        return tuple(d * (k - 1) + 1 for k, d in zip(self.kernel_size, self.dilation, strict=True))

    def count_rows(self, x: jax.Array) -> int:
        """Return b: samples times output positions."""
        samples = math.prod(x.shape[:-1]) if not self.kernel_size else x.shape[0]
        return samples * math.prod(self.positions)

    def count_inputs(self, x: jax.Array) -> int:
        """Return n: the inputs of one output."""
        return x.shape[-1] // self.groups * math.prod(self.kernel_size)

    def pad(self, x: jax.Array, more: int = 0) -> jax.Array:
        """Return the input with its padding, and without what no patch reaches.

        Args:
            x: the input.
            more: zeros to add behind the last dimension of the image.
        """
        spatial = []
        for i, (before, _) in enumerate(self.padding):
            needed = (self.positions[i] - 1) * self.strides[i] + self.spans[i]
            needed += more if i == len(self.padding) - 1 else 0
            spatial.append((before, max(0, needed) - before - x.shape[1 + i], 0))
        if all(sides == (0, 0, 0) for sides in spatial):
            return x
        return lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *spatial, (0, 0, 0)])


DENSE = Patches((), (), (), (), 1, ())


def has_known_size(x: jax.Array) -> bool:
    """Return whether all sizes of an array are numbers, not symbols of ``jax.export``."""
    return not any(map(jax.export.is_symbolic_dim, x.shape))


def check_known_size(x: jax.Array) -> None:
    """Raise a TrActValueError if a size of an array is symbolic."""
    if not has_known_size(x):
        raise TrActValueError(
            f"the second moment needs an input of known size; got the shape {x.shape}. Export the "
            "gradient with numbers as sizes; inference with TrAct's layers may have symbolic ones."
        )


def check_input(x: object, name: str = "x") -> jax.Array:
    """Return ``x`` as an array if it is a real one, or holds one, as a Flax variable does.

    Raises:
        TrActTypeError: it is something else.
    """
    if hasattr(x, "__jax_array__"):
        x = jnp.asarray(x)
    if not isinstance(x, jax.Array | np.ndarray):
        raise TrActTypeError(f"{name}= takes a JAX array; got {type(x).__name__}.")
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        what = "input" if name == "x" else name
        raise TrActTypeError(
            f"TrAct needs a real {what}; got {x.dtype}: pass real and imaginary part as channels."
        )
    return jnp.asarray(x)


def describe_patches(
    shape: Sequence[int],
    kernel_size: int | Sequence[int],
    strides: int | Sequence[int] = 1,
    padding: Padding = "VALID",
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Patches:
    """Resolve a convolution's arguments for an input of shape [N, *size, C].

    >>> describe_patches((8, 5, 6, 3), (3, 4), padding="SAME").padding
    ((1, 1), (1, 2))

    Raises:
        TrActTypeError: an argument is of the wrong type.
        TrActValueError: an argument is out of range, or does not fit the others.
    """
    kernel = _check_numbers("kernel_size", kernel_size, None)
    dims = len(kernel)
    if not 1 <= dims <= MOST_DIMENSIONS:
        raise TrActValueError(
            f"kernel_size={kernel_size!r} has {dims} dimensions; use 1 to {MOST_DIMENSIONS}, or "
            "None for a dense layer."
        )
    steps = _check_numbers("strides", strides, dims)
    dilations = _check_numbers("dilation", dilation, dims)
    if len(shape) != dims + 2:
        raise TrActValueError(
            f"an input of shape {tuple(shape)} does not fit kernel_size={kernel_size!r}; a "
            f"convolution of {dims} dimensions takes [N, *size, C] with {dims + 2}."
        )
    _check_groups(groups, shape[-1])
    size = tuple(shape[1:-1])
    spans = tuple(d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True))
    sides = _resolve_padding(padding, size, spans, steps)
    positions = tuple(
        max(0, (length + sum(side) - span) // step + 1)
        for length, side, span, step in zip(size, sides, spans, steps, strict=True)
    )
    return Patches(kernel, steps, sides, dilations, int(groups), positions)


class PartReader(NamedTuple):
    """Reads parts of an input in the dtype of the products, so that it is never converted whole."""

    stored: jnp.dtype
    """Of the input."""
    dtype: jnp.dtype
    """Of what is read."""
    shift: jax.Array | None
    """Subtracted from each channel, shape [C]."""

    @property
    def is_hidden(self) -> bool:
        """Whether the input is held as integers. XLA would convert a loop's bfloat16 before it."""
        return self.stored in (jnp.bfloat16, jnp.float16)

    def hold(self, x: jax.Array) -> jax.Array:
        """Return the input in the form that :meth:`read` takes parts of."""
        return lax.bitcast_convert_type(x, jnp.uint16) if self.is_hidden else x

    def read(self, part: jax.Array) -> jax.Array:
        """Return the values of a part."""
        if self.is_hidden:
            part = lax.bitcast_convert_type(part, self.stored)
        part = part.astype(self.dtype)
        if self.shift is None:
            return part
        return part - lax.expand_dims(self.shift, range(part.ndim - 1))


def unfold(x: jax.Array, patches: Patches) -> jax.Array:
    """Return all patches of an input that is already padded, shape [N, *positions, *kernel, C]."""
    dims = len(patches.kernel_size)
    for axis in reversed(range(dims)):
        if axis == dims - 1 or _is_divided(patches, axis):
            x = jnp.moveaxis(unfold_axis(x, patches, axis), 2 + axis, 1 + dims)
        else:  # on a CPU faster than another gather
            step, dilation = patches.strides[axis], patches.dilation[axis]
            end = (patches.positions[axis] - 1) * step + 1
            starts = range(0, patches.spans[axis], dilation)
            windows = [lax.slice_in_dim(x, u, u + end, step, 1 + axis) for u in starts]
            x = jnp.stack(windows, 1 + dims)
    return x


def unfold_axis(x: jax.Array, patches: Patches, axis: int) -> jax.Array:
    """Return a padded input with one dimension of the image replaced by positions and kernel."""
    kernel, count = patches.kernel_size[axis], patches.positions[axis]
    if _is_divided(patches, axis):
        return x.reshape(*x.shape[: 1 + axis], count, kernel, *x.shape[2 + axis :])
    starts = np.arange(count)[:, None] * patches.strides[axis]
    pixels = starts + np.arange(kernel) * patches.dilation[axis]
    return jnp.take(x, pixels, axis=1 + axis, mode="clip")


def _is_divided(patches: Patches, axis: int) -> bool:
    """Return whether patches divide a dimension without overlap or gap."""
    return patches.strides[axis] == patches.kernel_size[axis] and patches.dilation[axis] == 1


def sum_rows(x: jax.Array, patches: Patches, dtype: jnp.dtype) -> jax.Array:
    """Return the sum of all rows, shape [g, n]; no row is unfolded."""
    if not patches.kernel_size:
        return x.sum(tuple(range(x.ndim - 1)), dtype=dtype)[None]
    total = x.sum(0, dtype=dtype)  # [*size, C]
    for axis, length in enumerate(x.shape[1:-1]):
        covers = _count_uses(patches, axis, length).astype(dtype)
        total = jnp.tensordot(covers, total, ((1,), (axis,)), precision=lax.Precision.HIGHEST)
        total = jnp.moveaxis(total, 0, axis)
    by_group = total.reshape(-1, patches.groups, x.shape[-1] // patches.groups)
    return jnp.moveaxis(by_group, 1, 0).reshape(patches.groups, -1)


def _count_uses(patches: Patches, axis: int, length: int) -> np.ndarray:
    """Return how often each kernel position meets each pixel of an axis, shape [k, length]."""
    uses = np.zeros((patches.kernel_size[axis], length), np.float32)
    starts = np.arange(patches.positions[axis]) * patches.strides[axis] - patches.padding[axis][0]
    for u, row in enumerate(uses):
        pixels = starts + u * patches.dilation[axis]
        row[pixels[(pixels >= 0) & (pixels < length)]] = 1
    return uses


def _resolve_padding(
    padding: Padding, size: tuple[int, ...], spans: tuple[int, ...], steps: tuple[int, ...]
) -> tuple[tuple[int, int], ...]:
    accepted = (
        "use 'VALID', 'SAME', 'SAME_LOWER', a number, or a pair of numbers for each dimension"
    )
    if isinstance(padding, str):
        if padding.upper() not in {"VALID", "SAME", "SAME_LOWER"}:
            raise TrActValueError(
                f"padding={padding!r} is unknown; {accepted}. For other ways to pad, pad the input "
                "first and use 'VALID'."
            )
        sides = lax.padtype_to_pads(size, spans, steps, padding.upper())
        return tuple((int(before), int(after)) for before, after in sides)
    if _is_whole(padding):
        return ((int(padding), int(padding)),) * len(size)
    if not isinstance(padding, Sequence | np.ndarray):
        raise TrActTypeError(f"padding={padding!r} is a {type(padding).__name__}; {accepted}.")
    if len(padding) != len(size):
        raise TrActValueError(
            f"padding={padding!r} has {len(padding)} entries for {len(size)} dimensions; "
            f"{accepted}."
        )
    pairs: list[Any] = [(side, side) if _is_whole(side) else side for side in padding]
    if not all(isinstance(pair, Sequence | np.ndarray) and len(pair) == 2 for pair in pairs) or (
        not all(_is_whole(number) for pair in pairs for number in pair)
    ):
        raise TrActTypeError(f"padding={padding!r} is not accepted; {accepted}.")
    return tuple((int(before), int(after)) for before, after in pairs)


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _check_numbers(name: str, value: object, dims: int | None) -> tuple[int, ...]:
    """Return one number for each dimension."""
    given = value.tolist() if isinstance(value, np.ndarray) else value
    values: tuple[Any, ...] = (given,) * (dims or 1)
    if isinstance(given, Sequence) and not isinstance(given, str):
        values = tuple(given)
    if not all(map(_is_whole, values)):
        raise TrActTypeError(f"{name}={value!r} is not accepted; use whole numbers.")
    if any(v < 1 for v in values):
        raise TrActValueError(f"{name}={value!r} is out of range; use numbers of at least 1.")
    if dims is not None and len(values) != dims:
        raise TrActValueError(f"{name}={value!r} has {len(values)} numbers for {dims} dimensions.")
    return tuple(int(v) for v in values)


def _check_groups(groups: object, channels: int) -> None:
    if not _is_whole(groups):
        raise TrActTypeError(f"feature_group_count={groups!r} is not accepted; use a whole number.")
    if groups < 1 or channels % groups:
        raise TrActValueError(
            f"feature_group_count={groups} does not divide the {channels} channels of the input."
        )
