"""Equinox's layers with TrAct's weight gradient, and functions that change one to it and back.

They see one sample a call, under ``jax.vmap(..., axis_name="batch")``: the second moment is that of
all samples on the axis. Without ``axis_name``, a gradient through the vmap is an error.

>>> layer = TrActConv2d(3, 64, 3, padding=1, axis_name="batch", key=jax.random.key(0))
>>> jax.vmap(layer, axis_name="batch")(jnp.ones((8, 3, 32, 32))).shape
(8, 64, 32, 32)
>>> plain = remove_tract(layer)
>>> type(plain).__name__, plain.weight is layer.weight
('Conv2d', True)
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from trainact.defaults import DEFAULT_LAM
from trainact.errors import TrActValueError, UnsupportedLayerError
from trainact.jax.gradient import Options, check_bias, check_options, precondition_call
from trainact.jax.moments import AxisName
from trainact.jax.patches import DENSE, Patches, describe_patches, has_known_size
from trainact.option_checks import Center, check_lam

__all__ = ["TrActConv2d", "TrActLinear", "apply_tract", "remove_tract"]


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
        """Compute what the plain layer computes.

        Raises:
            TrActValueError: it is not one image, [C, height, width].
        """
        if jnp.ndim(x) != 3:
            raise TrActValueError(
                f"TrActConv2d takes one image [C, height, width]; got the shape {jnp.shape(x)}. "
                "Use jax.vmap for a batch."
            )
        padding: Any = self.padding
        rows = x
        if self.padding_mode != "ZEROS":
            rows, padding = self._nonzero_pad(x), "VALID"
        rows = jnp.moveaxis(rows, 0, -1)[None]  # [1, *size, C]
        patches = DENSE  # if a size is symbolic, there is no gradient
        if has_known_size(rows):
            patches = describe_patches(
                rows.shape, self.kernel_size, self.stride, padding, self.dilation, self.groups
            )
        return eqx.nn.Conv2d.__call__(_precondition(self, rows, patches), x)


_TRACT_CLASSES: dict[type, type] = {eqx.nn.Linear: TrActLinear, eqx.nn.Conv2d: TrActConv2d}


def apply_tract(
    layer: eqx.nn.Linear | eqx.nn.Conv2d,
    lam: float = DEFAULT_LAM,
    *,
    center: Center = False,
    relative: bool = False,
    axis_name: AxisName = None,
) -> TrActLinear | TrActConv2d:
    """Return a plain layer with TrAct's weight gradient; it has the same weight and bias.

        model = eqx.tree_at(lambda m: m.stem, model, apply_tract(model.stem, axis_name="batch"))

    Args:
        layer: an ``equinox.nn.Linear`` or ``equinox.nn.Conv2d``.
        lam: λ.
        center: as in `trainact.TrAct`.
        relative: as in `trainact.TrAct`.
        axis_name: of the vmap over the batch.

    Raises:
        TrActError: an argument is unusable, or the layer is another one.
    """
    if type(layer) not in _TRACT_CLASSES:
        tract = isinstance(layer, TrActLinear | TrActConv2d)
        raise UnsupportedLayerError(
            "apply_tract takes an equinox.nn.Linear or equinox.nn.Conv2d; got "
            f"{type(layer).__name__}"
            + ("; call remove_tract first." if tract else "; replace a model's with eqx.tree_at.")
        )
    settings = _check_settings(layer, lam, Options(center, relative, axis_name))
    return _change_class(layer, _TRACT_CLASSES[type(layer)], *settings)


def remove_tract(layer: TrActLinear | TrActConv2d) -> eqx.nn.Linear | eqx.nn.Conv2d:
    """Return a layer with TrAct as the plain layer; it has the same weight and bias.

    Raises:
        UnsupportedLayerError: the layer has no TrAct.
    """
    for plain, tract in _TRACT_CLASSES.items():
        if type(layer) is tract:
            return _change_class(layer, plain)
    raise UnsupportedLayerError(
        f"remove_tract takes a TrActLinear or TrActConv2d; got {type(layer).__name__}."
    )


def _change_class(layer: Any, kind: Any, *settings: Any) -> Any:
    """Return the layer as one of another class; ``settings`` are λ and the options, if it has."""
    added = dict(zip(("lam", "options"), settings, strict=False))
    changed = object.__new__(kind)
    for field in dataclasses.fields(kind):
        value = added[field.name] if field.name in added else getattr(layer, field.name)
        object.__setattr__(changed, field.name, value)
    return changed


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
