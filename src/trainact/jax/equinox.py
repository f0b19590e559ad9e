"""Equinox's layers with TrAct's weight gradient.

They see one sample a call, under ``jax.vmap(..., axis_name="batch")``: the second moment is that of
all samples on the axis. Without ``axis_name``, a gradient through the vmap is an error.

>>> layer = TrActConv2d(3, 64, 3, padding=1, axis_name="batch", key=jax.random.key(0))
>>> jax.vmap(layer, axis_name="batch")(jnp.ones((8, 3, 32, 32))).shape
(8, 64, 32, 32)
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from trainact.defaults import DEFAULT_LAM
from trainact.jax.gradient import Options, check_bias, check_options, precondition_call
from trainact.jax.moments import AxisName
from trainact.jax.patches import DENSE, Patches, describe_patches
from trainact.option_checks import Center, check_lam

__all__ = ["TrActConv2d", "TrActLinear"]


class TrActLinear(eqx.nn.Linear):
    """``equinox.nn.Linear`` with TrAct's weight gradient."""

    lam: float = eqx.field(static=True)
    options: Options = eqx.field(static=True)

    def __init__(
        self,
        *args: Any,
        lam: float = DEFAULT_LAM,
        center: Center = False,
        relative: bool = False,
        axis_name: AxisName = None,
        **kwargs: Any,
    ) -> None:
        """Take the plain layer's arguments, and by keyword those of TrAct.

        Args:
            *args: of ``equinox.nn.Linear``.
            lam: λ.
            center: as in `trainact.TrAct`.
            relative: as in `trainact.TrAct`.
            axis_name: of the vmap over the batch.
            **kwargs: of ``equinox.nn.Linear``.
        """
        super().__init__(*args, **kwargs)
        self.lam, self.options = _check_settings(self, lam, Options(center, relative, axis_name))

    def __call__(self, x: jax.Array, *, key: Any = None) -> jax.Array:
        """Compute what the plain layer computes."""
        return eqx.nn.Linear.__call__(_precondition(self, jnp.reshape(x, (1, -1)), DENSE), x)


class TrActConv2d(eqx.nn.Conv2d):
    """``equinox.nn.Conv2d`` with TrAct's weight gradient."""

    lam: float = eqx.field(static=True)
    options: Options = eqx.field(static=True)

    def __init__(
        self,
        *args: Any,
        lam: float = DEFAULT_LAM,
        center: Center = False,
        relative: bool = False,
        axis_name: AxisName = None,
        **kwargs: Any,
    ) -> None:
        """Take the plain layer's arguments, and by keyword those of TrAct.

        Args:
            *args: of ``equinox.nn.Conv2d``.
            lam: λ.
            center: as in `trainact.TrAct`.
            relative: as in `trainact.TrAct`.
            axis_name: of the vmap over the batch.
            **kwargs: of ``equinox.nn.Conv2d``.
        """
        super().__init__(*args, **kwargs)
        self.lam, self.options = _check_settings(self, lam, Options(center, relative, axis_name))

    def __call__(self, x: jax.Array, *, key: Any = None) -> jax.Array:
        """Compute what the plain layer computes."""
        padding: Any = self.padding
        rows = x
        if self.padding_mode != "ZEROS":
            rows, padding = self._nonzero_pad(x), "VALID"
        rows = jnp.moveaxis(rows, 0, -1)[None]  # [1, *size, C]
        patches = describe_patches(
            rows.shape, self.kernel_size, self.stride, padding, self.dilation, self.groups
        )
        return eqx.nn.Conv2d.__call__(_precondition(self, rows, patches), x)


def _check_settings(layer: Any, lam: float, options: Options) -> tuple[float, Options]:
    lam, options = check_lam(lam), check_options(options)
    if options.center is True:
        check_bias(layer)
    return lam, options


def _precondition(layer: Any, x: jax.Array, patches: Patches) -> Any:
    """Return the layer with the same weight and bias, but with TrAct's gradients.

    Args:
        layer: a layer whose weight is [m, C/g, *kernel].
        x: one input as a batch, [1, *size, C].
        patches: how the layer cuts it.
    """
    weight = jnp.moveaxis(layer.weight, (0, 1), (-1, -2))
    weight, bias = precondition_call(weight, layer.bias, x, patches, layer.lam, layer.options)
    weight = jnp.moveaxis(weight, (-1, -2), (0, 1))
    where = (lambda one: one.weight) if bias is None else (lambda one: (one.weight, one.bias))
    return eqx.tree_at(where, layer, weight if bias is None else (weight, bias))
