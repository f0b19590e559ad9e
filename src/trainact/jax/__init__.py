"""TrAct in JAX: the gradient G (xᵀx/b + λI)⁻¹ of a first layer's weight, without torch.

The layers are in ``trainact.jax.nnx`` and ``trainact.jax.linen`` (Flax), and in
``trainact.jax.equinox``. For layers of your own there are two functions, with weights in JAX's
layout [*kernel, C, m]::

    moment = second_moment(x, (3, 3), padding="SAME")
    z = lax.conv_general_dilated(x, tract_weight(weight, moment, lam=0.1), (1, 1), "SAME", ...)
"""

from trainact.defaults import DEFAULT_LAM
from trainact.jax.gradient import tract_weight
from trainact.jax.moments import Covariance, second_moment
from trainact.jax.whitening import whiten_weight

__all__ = ["DEFAULT_LAM", "Covariance", "second_moment", "tract_weight", "whiten_weight"]
