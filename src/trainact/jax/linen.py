"""Flax Linen's layers with TrAct's weight gradient.

>>> layer = TrActConv(64, (3, 3), lam=0.1)
>>> variables = layer.init(jax.random.key(0), jax.numpy.ones((8, 32, 32, 3)))

Parameters have the plain layers' names and shapes. In a module with ``@nn.compact``, the layers
also get the plain layers' automatic names, such as ``Conv_0``: checkpoints load both ways.
"""

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

import flax.linen as nn
import jax

from trainact.defaults import DEFAULT_LAM
from trainact.jax.flax_layers import precondition_layer
from trainact.jax.moments import AxisName
from trainact.option_checks import Center

__all__ = ["TrActConv", "TrActDense"]

# Without Flax's wrapper, which would capture and intercept each call a second time.
_call_dense: Any = inspect.unwrap(nn.Dense.__call__)
_call_conv: Any = inspect.unwrap(nn.Conv.__call__)


class TrActDense(nn.Dense):
    """``flax.linen.Dense`` with TrAct's weight gradient.

    Attributes:
        lam: λ.
        center: as in `trainact.TrAct`.
        relative: as in `trainact.TrAct`.
        axis_name: of a vmap, pmap or shard_map whose axis holds more rows.
    """

    lam: float = DEFAULT_LAM
    center: Center = False
    relative: bool = False
    axis_name: AxisName = None

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Compute what the plain layer computes."""
        with _with_tract_gradient(self):
            return _call_dense(self, inputs)


class TrActConv(nn.Conv):
    """``flax.linen.Conv`` with TrAct's weight gradient.

    Attributes:
        lam: λ.
        center: as in `trainact.TrAct`.
        relative: as in `trainact.TrAct`.
        axis_name: of a vmap, pmap or shard_map whose axis holds more rows.
    """

    lam: float = DEFAULT_LAM
    center: Center = False
    relative: bool = False
    axis_name: AxisName = None

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Compute what the plain layer computes."""
        with _with_tract_gradient(self):
            return _call_conv(self, inputs)


# Flax names submodules by this name: plain and TrAct networks have the same parameters.
TrActDense.__name__, TrActConv.__name__ = "Dense", "Conv"


@contextlib.contextmanager
def _with_tract_gradient(layer: Any) -> Iterator[None]:
    """Precondition in the layer's ``promote_dtype``; a bound module is used by one call only."""
    promote = layer.promote_dtype

    def precondition_and_promote(x: Any, kernel: Any, bias: Any, **kwargs: Any) -> Any:
        kernel, bias = precondition_layer(layer, x, kernel, bias)
        return promote(x, kernel, bias, **kwargs)

    object.__setattr__(layer, "promote_dtype", precondition_and_promote)
    try:
        yield
    finally:
        object.__setattr__(layer, "promote_dtype", promote)
