"""The second moment xᵀx/b of a layer's rows, and their covariance."""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeAlias, TypeVar, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from trainact.errors import TrActTypeError, TrActValueError
from trainact.jax.outer_products import sum_outer_products
from trainact.jax.patches import (
    DENSE,
    Padding,
    Patches,
    check_input,
    check_known_size,
    describe_patches,
    sum_rows,
)
from trainact.option_checks import check_flag

__all__ = [
    "AxisName",
    "Covariance",
    "check_axis_name",
    "find_dtype",
    "measure_covariance",
    "measure_second_moment",
    "second_moment",
]

AxisName: TypeAlias = str | Sequence[str] | None
Result = TypeVar("Result")


class Covariance(NamedTuple):
    """C = xᵀx/b − μμᵀ and the mean row μ, for ``center``."""

    matrix: jax.Array
    """C, shape [g, n, n]."""
    mean: jax.Array
    """μ, shape [g, n]."""


@overload
def second_moment(
    x: jax.Array,
    kernel_size: int | Sequence[int] | None = ...,
    strides: int | Sequence[int] = ...,
    padding: Padding = ...,
    dilation: int | Sequence[int] = ...,
    feature_group_count: int = ...,
    axis_name: AxisName = ...,
    *,
    center: Literal[False] = ...,
) -> jax.Array: ...


@overload
def second_moment(
    x: jax.Array,
    kernel_size: int | Sequence[int] | None = ...,
    strides: int | Sequence[int] = ...,
    padding: Padding = ...,
    dilation: int | Sequence[int] = ...,
    feature_group_count: int = ...,
    axis_name: AxisName = ...,
    *,
    center: Literal[True],
) -> Covariance: ...


def second_moment(
    x: jax.Array,
    kernel_size: int | Sequence[int] | None = None,
    strides: int | Sequence[int] = 1,
    padding: Padding = "VALID",
    dilation: int | Sequence[int] = 1,
    feature_group_count: int = 1,
    axis_name: AxisName = None,
    *,
    center: bool = False,
) -> jax.Array | Covariance:
    """Return xᵀx/b of a layer's rows, shape [g, n, n], for :func:`tract_weight`.

    It is exact, holds only a part of the patches at a time, and has no gradient. Products and sums
    are in float32, and in float64 for a float64 input.

    >>> x = jnp.ones((8, 32, 32, 3))
    >>> second_moment(x, (3, 3), padding="SAME").shape
    (1, 27, 27)

    Args:
        x: the layer's input: [..., n] for a dense layer, [N, *size, C] or [*size, C] for a
            convolution.
        kernel_size: of a convolution of 1 to 3 dimensions; None means a dense layer.
        strides: as in the convolution.
        padding: as in ``lax.conv_general_dilated``, or a number.
        dilation: of the kernel (``rhs_dilation``).
        feature_group_count: g, as in the convolution; each group has its own second moment.
        axis_name: of a vmap, pmap or shard_map whose axis holds more rows: the mean over it.
        center: return the covariance and the mean of the rows instead.

    Raises:
        TrActTypeError: an argument has the wrong type.
        TrActValueError: an argument is out of range.
    """
    check_flag("center", center)
    axis_name = check_axis_name(axis_name)
    x = check_input(x)
    check_known_size(x)
    if kernel_size is None:
        if x.ndim == 0:
            raise TrActValueError("x has no dimensions; a dense layer takes [..., n].")
        patches = DENSE
    else:
        dims = np.size(kernel_size)
        x = x[None] if x.ndim == dims + 1 else x
        patches = describe_patches(
            x.shape, kernel_size, strides, padding, dilation, feature_group_count
        )
    dtype = find_dtype(x)
    measure = measure_covariance if center else measure_second_moment
    return measure(x, patches, dtype, axis_name)


def check_axis_name(axis_name: object) -> str | tuple[str, ...] | None:
    """Return the name of an axis, or a tuple of names.

    Raises:
        TrActTypeError: it is something else.
    """
    if axis_name is None or isinstance(axis_name, str):
        return axis_name
    if isinstance(axis_name, Sequence) and all(isinstance(name, str) for name in axis_name):
        return tuple(axis_name)
    raise TrActTypeError(
        f"axis_name={axis_name!r} is not accepted; use the name of an axis, a tuple of names, or "
        "None."
    )


def find_dtype(*arrays: jax.Array) -> jnp.dtype:
    """Return the dtype of products, sums and the solve: float64 if an array has it, or float32."""
    is_double = any(array.dtype == jnp.float64 for array in arrays)
    return jnp.dtype(jnp.float64 if is_double else jnp.float32)


def measure_second_moment(
    x: jax.Array, patches: Patches, dtype: jnp.dtype, axis_name: AxisName = None
) -> jax.Array:
    """Return xᵀx/b, shape [g, n, n], in a dtype; zeros if there are no rows."""

    def measure(x: jax.Array) -> jax.Array:
        total = sum_outer_products(x, patches, dtype) / max(1, patches.count_rows(x))
        return _average(total, axis_name)

    return _replicate(measure, lax.stop_gradient(x))


def measure_covariance(
    x: jax.Array, patches: Patches, dtype: jnp.dtype, axis_name: AxisName = None
) -> Covariance:
    """Return C and μ in a dtype.

    Multiplied first and centred afterwards, rows with a large mean would lose their digits. So a
    mean is subtracted from each channel of the padded input first. What is left of μ afterwards,
    where padding makes the columns of a channel differ, is small.
    """

    def measure(x: jax.Array) -> Covariance:
        num_rows = max(1, patches.count_rows(x))
        mean = _average(sum_rows(x, patches, dtype) / num_rows, axis_name)
        channels = x.shape[-1] // patches.groups
        by_channel = mean.reshape(patches.groups, mean.shape[1] // max(1, channels), channels)
        shift = by_channel.mean(1, keepdims=True)  # of [g, kernel, C/g]
        left = (by_channel - shift).reshape(mean.shape)
        total = sum_outer_products(x, patches, dtype, shift.reshape(-1)) / num_rows
        total = _average(total, axis_name)
        return Covariance(total - left[:, :, None] * left[:, None, :], mean)

    return _replicate(measure, lax.stop_gradient(x))


def _replicate(measure: Callable[[jax.Array], Result], x: jax.Array) -> Result:
    """Return ``measure(x)``; if a mesh divides x along explicit axes, every device gets all of it.

    XLA then chooses how to divide the work, as on automatic axes.
    """
    mesh = jax.typeof(x).sharding.mesh
    if not mesh.explicit_axes:
        return measure(x)
    replicated = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    return jax.sharding.auto_axes(measure, axes=mesh.explicit_axes, out_sharding=replicated)(x)


def _average(value: jax.Array, axis_name: AxisName) -> jax.Array:
    return value if axis_name is None else lax.pmean(value, axis_name)
