"""What Flax's layers of both kinds, NNX and Linen, share.

They call ``promote_dtype`` with input, kernel and bias right before they apply the kernel: the
input is padded already if zeros are not what pads it. There the kernel gets TrAct's gradient, and
all else is Flax's own.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from trainact.errors import UnsupportedLayerError
from trainact.jax.gradient import Options, check_bias, check_options, precondition_call
from trainact.jax.patches import (
    DENSE,
    MOST_DIMENSIONS,
    Patches,
    describe_patches,
    has_known_size,
)
from trainact.option_checks import check_lam

__all__ = ["check_flax_layer", "describe_layer", "precondition_layer"]

PADDED_BEFORE = ("CAUSAL", "CIRCULAR", "REFLECT")
"""Paddings that Flax applies to the input itself."""


def precondition_layer(
    layer: Any, x: jax.Array, kernel: jax.Array, bias: jax.Array | None
) -> tuple[jax.Array, jax.Array | None]:
    """Return kernel and bias of a layer unchanged, but with TrAct's gradients.

    Raises:
        TrActError: λ or an option of the layer is unusable.
    """
    x = jnp.asarray(x)  # Flax accepts whatever this does
    lam = check_lam(layer.lam)
    options = check_options(Options(layer.center, layer.relative, layer.axis_name))
    if options.center is True:
        check_bias(layer)
    check_flax_layer(layer)
    return precondition_call(kernel, bias, x, describe_layer(layer, x), lam, options)


def check_flax_layer(layer: Any, where: str = "") -> None:
    """Raise an UnsupportedLayerError if TrAct cannot train a layer with these settings."""
    if not hasattr(layer, "kernel_size"):
        return
    name = f"{where}{type(layer).__name__}"
    if layer.mask is not None:
        raise UnsupportedLayerError(
            f"{name} has a mask; TrAct takes none: it moves all weights of an output together."
        )
    if any(step != 1 for step in _as_tuple(layer.input_dilation)):
        raise UnsupportedLayerError(
            f"{name} has input_dilation={layer.input_dilation!r}; TrAct takes 1."
        )
    dims = len(_as_tuple(layer.kernel_size))
    if dims > MOST_DIMENSIONS:
        raise UnsupportedLayerError(
            f"{name} has {dims} dimensions; TrAct takes 1 to {MOST_DIMENSIONS}."
        )


def describe_layer(layer: Any, x: jax.Array) -> Patches:
    """Return how a layer cuts ``x`` into rows: what reaches its ``promote_dtype``.

    For an input of symbolic size, which has no gradient, it is not known.
    """
    if not hasattr(layer, "kernel_size") or not has_known_size(x):
        return DENSE
    padding = layer.padding
    if isinstance(padding, str) and padding in PADDED_BEFORE:
        padding = "VALID"
    return describe_patches(
        x.shape,
        _as_tuple(layer.kernel_size),
        _as_steps(layer.strides),
        padding,
        _as_steps(layer.kernel_dilation),
        layer.feature_group_count,
    )


def _as_steps(value: int | Sequence[int] | None) -> int | tuple[int, ...]:
    """Return strides or a dilation; None means 1, as in Flax."""
    if value is None or isinstance(value, int):
        return value or 1
    return tuple(value)


def _as_tuple(value: int | Sequence[int] | None) -> tuple[int, ...]:
    steps = _as_steps(value)
    return (steps,) if isinstance(steps, int) else steps
