"""TrAct as an identity on the weight: the forward stays JAX's own, one gradient is replaced.

In backward, the plain gradient G of a weight [*kernel, C/g, m] becomes G (xᵀx/b + λI)⁻¹, in
`trainact.preconditioner`'s notation. With ``center=True``, weight and bias pass through the
identity together, and both gradients are replaced.
"""

import functools
import math
from typing import Any, Literal, NamedTuple, TypeAlias, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from trainact.defaults import DEFAULT_LAM
from trainact.errors import TrActTypeError, TrActValueError, UnsupportedLayerError
from trainact.jax.cholesky import solve
from trainact.jax.moments import (
    AxisName,
    Covariance,
    check_axis_name,
    find_dtype,
    measure_covariance,
    measure_second_moment,
)
from trainact.jax.patches import Patches, check_input, check_known_size
from trainact.option_checks import Center, check_center, check_flag, check_lam

__all__ = ["Options", "check_bias", "check_options", "precondition_call", "tract_weight"]

Moment: TypeAlias = tuple[jax.Array, jax.Array | None]
"""xᵀx/b and None, or C and μ."""

CONSTANT = 256
"""Rows are constant if they vary by at most this many rounding errors."""


class Options(NamedTuple):
    """Which matrix divides the gradient."""

    center: Center = False
    """Whether the covariance replaces the second moment."""
    relative: bool = False
    """Whether λ is multiplied by the matrix's mean eigenvalue."""
    axis_name: AxisName = None
    """Axis over which the second moment is averaged."""


def check_options(options: Options) -> Options:
    """Return ``options``, hashable.

    Raises:
        TrActTypeError: an option is of the wrong type.
        TrActValueError: ``center`` is unknown.
    """
    check_center(options.center)
    check_flag("relative", options.relative)
    return options._replace(axis_name=check_axis_name(options.axis_name))


@overload
def tract_weight(
    weight: jax.Array,
    second_moment: jax.Array | Covariance,
    lam: float | jax.Array = ...,
    *,
    bias: None = ...,
    center: Literal[False, "batchnorm"] = ...,
    relative: bool = ...,
) -> jax.Array: ...


@overload
def tract_weight(
    weight: jax.Array,
    second_moment: Covariance,
    lam: float | jax.Array = ...,
    *,
    bias: jax.Array,
    center: Literal[True],
    relative: bool = ...,
) -> tuple[jax.Array, jax.Array]: ...


def tract_weight(
    weight: jax.Array,
    second_moment: jax.Array | Covariance,
    lam: float | jax.Array = DEFAULT_LAM,
    *,
    bias: jax.Array | None = None,
    center: Center = False,
    relative: bool = False,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """Return ``weight`` unchanged, but with TrAct's gradient.

    Pass the result to the operator instead of the weight. A forward without a gradient never
    solves, and in compiled code does not compute the second moment either.

    >>> from trainact.jax import second_moment
    >>> x, weight = jnp.eye(4, 5), jnp.ones((5, 3))
    >>> def loss(weight):
    ...     return (x @ tract_weight(weight, second_moment(x))).sum()
    >>> inverse = jnp.linalg.inv(x.T @ x / 4 + 0.1 * jnp.eye(5))
    >>> bool(jnp.allclose(jax.grad(loss)(weight), inverse @ x.T @ jnp.ones((4, 3))))
    True

    With ``center=True`` it takes and returns the bias too:

    >>> covariance = second_moment(x, center=True)
    >>> weight, bias = tract_weight(weight, covariance, bias=jnp.zeros(3), center=True)

    Args:
        weight: W, shape [n, m] for a dense layer, [*kernel, C/g, m] for a convolution.
        second_moment: from :func:`second_moment`; with ``center`` its covariance.
        lam: λ, a positive finite number; a scalar array is not checked.
        bias: the layer's bias, with m entries; only with ``center=True``.
        center: as in `trainact.TrAct`.
        relative: as in `trainact.TrAct`.

    Raises:
        TrActTypeError: an argument has the wrong type.
        TrActValueError: an argument is out of range, or its shape does not fit.
        UnsupportedLayerError: with ``center=True``, the weight is differentiated without the bias.
    """
    options = check_options(Options(center, relative))
    weight = check_input(weight, "weight")
    if center:
        if not isinstance(second_moment, Covariance):
            raise TrActTypeError(
                f"center={center!r} needs the covariance: pass what second_moment(x, ..., "
                f"center=True) returned; got {type(second_moment).__name__}."
            )
        matrix, mean = (check_input(one, "second_moment") for one in second_moment)
    else:
        if isinstance(second_moment, Covariance):
            raise TrActTypeError(
                "a covariance belongs to center=True or center='batchnorm'; got center=False."
            )
        matrix, mean = check_input(second_moment, "second_moment"), None
    _check_shapes(weight, matrix, mean)
    _check_given_bias(bias, weight, center)
    if not isinstance(lam, jax.Array | np.ndarray):
        lam = check_lam(lam)
    elif check_input(lam, "lam").ndim:
        raise TrActValueError(f"lam= has the shape {lam.shape}; use one number.")
    dtype = find_dtype(matrix, weight)
    moment = lax.stop_gradient(jax.tree.map(lambda one: one.astype(dtype), (matrix, mean)))
    weight, bias = _pass(options, weight, bias, moment, jnp.asarray(lam, dtype))
    return weight if bias is None else (weight, bias)


def precondition_call(
    weight: jax.Array,
    bias: jax.Array | None,
    x: jax.Array,
    patches: Patches,
    lam: float,
    options: Options,
) -> tuple[jax.Array, jax.Array | None]:
    """Return weight and bias unchanged, but with TrAct's gradients, for one call of a layer.

    The second moment is computed only if a gradient is taken, also in code that is not compiled.
    Without a gradient, the input may have symbolic sizes.

    Args:
        weight: W, shape [*kernel, C/g, m].
        bias: the layer's bias, or None.
        x: the layer's input, as in :func:`measure_second_moment`.
        patches: how the layer cuts it.
        lam: λ, checked.
        options: checked.

    Raises:
        TrActTypeError: input or weight are complex.
        UnsupportedLayerError: with ``center=True``, the weight is differentiated without the bias.
    """
    weight, x = check_input(weight, "weight"), check_input(x)
    x = lax.stop_gradient(x)  # else a gradient by the input would use up the rule for the weight
    if options.center is True:
        return _pass_call(patches, options, weight, bias, x, lam)
    weight, _ = _pass_call(patches, options, weight, None, x, lam)
    return weight, bias


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _pass(options: Options, weight: Any, bias: Any, moment: Any, lam: Any) -> Any:
    return weight, bias


def _pass_forward(options: Options, weight: Any, bias: Any, moment: Any, lam: Any) -> Any:
    moment, lam = jax.tree.map(_take_value, (moment, lam))
    return _forward(options, weight, bias, moment, lam)


def _pass_backward(options: Options, kept: Any, grads: Any) -> Any:
    (matrix, _), lam = kept
    grads = jax.tree.map(_fill_zeros, grads, is_leaf=_is_zero)
    _check_axes(matrix, lam, grads[0])
    divide = functools.partial(divide_gradients, relative=options.relative)
    mesh = jax.typeof(grads[0]).sharding.mesh
    if mesh.explicit_axes:  # the gradients keep their shardings, and XLA divides the work
        own = jax.tree.map(lambda grad: jax.typeof(grad).sharding, grads)
        divide = jax.sharding.auto_axes(divide, axes=mesh.explicit_axes, out_sharding=own)
    return *divide(*grads, *kept), None, None


_pass.defvjp(_pass_forward, _pass_backward, symbolic_zeros=True)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _pass_call(patches: Patches, options: Options, weight: Any, bias: Any, x: Any, lam: Any) -> Any:
    return weight, bias


def _call_forward(
    patches: Patches, options: Options, weight: Any, bias: Any, x: Any, lam: Any
) -> Any:
    dtype = find_dtype(x.value, weight.value)
    check_known_size(x.value)
    moment: Moment
    if options.center:
        moment = measure_covariance(x.value, patches, dtype, options.axis_name)
    else:
        moment = measure_second_moment(x.value, patches, dtype, options.axis_name), None
    return _forward(options, weight, bias, moment, lam.value)


def _call_backward(patches: Patches, options: Options, kept: Any, grads: Any) -> Any:
    return _pass_backward(options, kept, grads)


_pass_call.defvjp(_call_forward, _call_backward, symbolic_zeros=True)


def _forward(options: Options, weight: Any, bias: Any, moment: Moment, lam: Any) -> Any:
    """Return the values of weight and bias, and what the backward keeps.

    With ``center=True`` and a weight that is not differentiated, μ is left out: the bias then has
    its plain gradient.

    Raises:
        UnsupportedLayerError: ``center=True``, and the weight is differentiated without the bias.
    """
    if options.center is True and weight.perturbed and not bias.perturbed:
        raise UnsupportedLayerError(
            "center=True trains weight and bias together, but this gradient is of the weight "
            "alone: differentiate the bias too, or use center='batchnorm' if a batch norm follows "
            "the layer."
        )
    if options.center is True and not weight.perturbed:
        moment = moment[0], None
    return jax.tree.map(_take_value, (weight, bias)), (moment, lam)


def _take_value(primal: Any) -> Any:
    return primal.value


def _is_zero(grad: Any) -> bool:
    return isinstance(grad, jax.custom_derivatives.SymbolicZero)


def _fill_zeros(grad: Any) -> Any:
    return jnp.zeros(grad.shape, grad.dtype) if _is_zero(grad) else grad


def divide_gradients(
    grad_weight: jax.Array,
    grad_bias: jax.Array | None,
    moment: Moment,
    lam: jax.Array,
    *,
    relative: bool,
) -> tuple[jax.Array, jax.Array | None]:
    """Return ΔW and Δb, in the shapes and dtypes of the plain gradients.

    If the factorization fails, or the second moment is not finite, the gradient is NaN.

    Args:
        grad_weight: G, shape [*kernel, C/g, m].
        grad_bias: g_b, with m entries; None leaves the bias out. Without μ it stays as it is.
        moment: xᵀx/b and None, or C and μ.
        lam: λ.
        relative: multiply λ by the mean eigenvalue.
    """
    matrix, mean = moment
    groups, num_inputs, _ = matrix.shape
    shape = (num_inputs, groups, grad_weight.shape[-1] // groups)
    grad = grad_weight.astype(matrix.dtype).reshape(shape).swapaxes(0, 1)
    if grad_bias is not None and mean is not None:
        column = grad_bias.astype(matrix.dtype).reshape(groups, 1, -1)
        grad = grad - mean[:, :, None] * column
    trace = jnp.trace(matrix, axis1=1, axis2=2)
    damping = jnp.broadcast_to(lam, (groups,))
    is_constant = jnp.zeros((groups,), bool)
    if relative:
        damping, is_constant = scale_damping(lam, trace / max(1, num_inputs), mean)
    damping = damping + 0 * trace  # NaN if it is not finite: LAPACK accepts infinities
    damped = matrix + damping[:, None, None] * jnp.eye(num_inputs, dtype=matrix.dtype)[None]
    tract = jnp.where(is_constant[:, None, None], jnp.zeros_like(grad), solve(damped, grad))
    delta = tract.swapaxes(0, 1).reshape(grad_weight.shape).astype(grad_weight.dtype)
    if grad_bias is None or mean is None:
        return delta, grad_bias
    rounded = delta.astype(matrix.dtype).reshape(shape)
    moved = jnp.einsum("gn,ngm->gm", mean, rounded, precision=lax.Precision.HIGHEST)
    change = column.reshape(groups, -1) - moved
    return delta, change.reshape(grad_bias.shape).astype(grad_bias.dtype)


def scale_damping(
    lam: jax.Array, mean_eigenvalue: jax.Array, mean: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    """Return λ times the mean eigenvalue of each group [g], and which groups have constant rows.

    Rows that are constant up to rounding have no scale, and determine no step of the weight: their
    ΔW is zero, and their damping 1. A covariance loses digits where the columns of the mean differ
    (see `measure_covariance`), and almost none to what they have in common.
    """
    number = jnp.finfo(mean_eigenvalue.dtype)
    error = CONSTANT * float(number.eps)
    dust = jnp.zeros_like(mean_eigenvalue)
    if mean is not None:
        dust = error * mean.var(-1) + error**2 * jnp.square(mean).mean(-1)
    is_constant = mean_eigenvalue <= dust
    return jnp.where(is_constant, 1.0, lam * mean_eigenvalue), is_constant


def check_bias(layer: Any, where: str = "") -> None:
    """Raise an UnsupportedLayerError if a layer for ``center=True`` has no bias."""
    if not layer.use_bias:
        raise UnsupportedLayerError(
            f"{where}{type(layer).__name__} has no bias, but center=True trains weight and bias "
            "together: without the bias, the mean of z would move in the wrong way. Train a bias "
            "(use_bias=True), or use center='batchnorm' if a batch norm follows the layer."
        )


def _check_axes(matrix: jax.Array, lam: jax.Array, grad: jax.Array) -> None:
    """Raise a TrActValueError if one gradient of all samples meets a second moment or λ of each.

    JAX would divide it by each of them, and add up the results.
    """
    if _list_vmaps(matrix) - _list_vmaps(grad):
        raise TrActValueError(
            "under this vmap each sample has its own second moment, but all share one weight: give "
            "the vmap an axis_name, and pass the same axis_name to the layer or to second_moment; "
            "nested vmaps take a tuple of names."
        )
    if _list_vmaps(lam) - _list_vmaps(grad):
        raise TrActValueError(
            "under this vmap each sample has its own lam, but all share one weight: map over the "
            "weight too, or use one lam."
        )


def _list_vmaps(array: Any) -> set[int]:
    """Return the vmaps over which an array has a value for each sample.

    Only the tracers of vmap have ``batch_dim``; JAX has no public way to ask.
    """
    found = set()
    while isinstance(array, jax.core.Tracer):
        if hasattr(array, "batch_dim"):
            found.add(id(array._trace))
        array = getattr(array, "val", getattr(array, "primal", None))
    return found


def _check_shapes(weight: jax.Array, matrix: jax.Array, mean: jax.Array | None) -> None:
    num_inputs, outputs = math.prod(weight.shape[:-1]), weight.shape[-1] if weight.ndim else 0
    if weight.ndim < 2:
        raise TrActTypeError(
            "tract_weight needs the weight of a dense layer [n, m] or of a convolution "
            f"[*kernel, C/g, m]; got {weight.ndim} dimensions."
        )
    if matrix.ndim != 3 or matrix.shape[1:] != (num_inputs, num_inputs) or outputs % len(matrix):
        raise TrActValueError(
            f"a weight of shape {weight.shape} does not fit a second moment of shape "
            f"{matrix.shape}; it needs [g, {num_inputs}, {num_inputs}], where g divides the "
            f"{outputs} outputs. Give second_moment the arguments of the layer."
        )
    if mean is not None and mean.shape != matrix.shape[:2]:
        raise TrActValueError(
            f"a covariance with a matrix of shape {matrix.shape} needs a mean of shape "
            f"{matrix.shape[:2]}; got {mean.shape}. Pass what second_moment(x, ..., center=True) "
            "returned."
        )


def _check_given_bias(bias: jax.Array | None, weight: jax.Array, center: Center) -> None:
    if bias is None and center is True:
        raise TrActValueError(
            "tract_weight with center=True changes the gradients of weight and bias together; "
            "pass the layer's bias=, or use center='batchnorm' if a batch norm follows the layer."
        )
    if bias is None:
        return
    if center is not True:
        raise TrActValueError(
            f"tract_weight changes a bias only with center=True; got center={center!r}. Leave "
            "bias= out and add the bias as it is."
        )
    if check_input(bias, "bias").size != weight.shape[-1]:
        raise TrActValueError(
            f"a bias of shape {bias.shape} does not fit a weight of shape {weight.shape}; it needs "
            f"{weight.shape[-1]} entries."
        )
