"""Weights keep their values and get the reference's gradient."""

import pytest

pytest.importorskip("jaxlib", reason="trainact.jax needs jax")

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from jax_cases import DENSE, GEOMETRIES, Geometry, as_jax, assert_gradients, assert_near, geometries
from slow_cases import mark_slow
from trainact.errors import TrActTypeError, TrActValueError, UnsupportedLayerError
from trainact.jax import Covariance, second_moment, tract_weight

OPTIONS = [
    (center, relative) for center in (False, True, "batchnorm") for relative in (False, True)
]


def take_gradients(geometry: Geometry, dtype, lam=0.1, center=False, relative=False):
    """Return the gradients of weight and bias by the function."""
    x, weight, bias, grad_z = as_jax(geometry, dtype)

    def loss(weight, bias):
        moment = second_moment(x, **geometry.arguments, center=bool(center))
        if center is True:
            weight, bias = tract_weight(
                weight, moment, lam, bias=bias, center=True, relative=relative
            )
        else:
            weight = tract_weight(weight, moment, lam, center=center, relative=relative)
        return (geometry.apply(x, weight, bias) * grad_z).sum()

    return jax.jit(jax.grad(loss, argnums=(0, 1)))(weight, bias)


def check_gradient(geometry: Geometry, lam: float, center, relative: bool) -> None:
    with jax.enable_x64(True):
        grads = take_gradients(geometry, jnp.float64, lam, center, relative)
    expected = geometry.expected(lam, center=center, relative=relative)
    assert_gradients(grads, expected, geometry, lam)


@pytest.mark.parametrize("name", GEOMETRIES)
def test_it_is_the_explicit_inverse(name):
    check_gradient(GEOMETRIES[name], 0.1, False, False)


@pytest.mark.parametrize(
    "name", mark_slow(["conv-groups", "dense", "conv-3x3-same", "conv-few-rows"], 2)
)
@pytest.mark.parametrize(("center", "relative"), OPTIONS[1:])
def test_options_are_those_of_the_core(name, center, relative):
    check_gradient(GEOMETRIES[name], 0.1, center, relative)


CASES = (geometries(), st.sampled_from([0.01, 0.1, 1.0]), st.sampled_from(OPTIONS))


@given(*CASES)
@settings(max_examples=10)
def test_it_is_the_explicit_inverse_for_any_layer(geometry, lam, options):
    check_gradient(geometry, lam, *options)


@pytest.mark.slow
@given(*CASES)
@settings(max_examples=300)
def test_it_is_the_explicit_inverse_for_any_of_many_layers(geometry, lam, options):
    check_gradient(geometry, lam, *options)


@pytest.mark.parametrize("name", mark_slow(GEOMETRIES, 5))
@pytest.mark.parametrize("center", mark_slow([True, False]))
def test_float32_agrees_with_the_core(name, center):
    geometry = GEOMETRIES[name]
    grads = take_gradients(geometry, jnp.float32, center=center)
    expected = geometry.train_core(0.1, center=center)
    assert_gradients(grads, expected, geometry, 0.1, 1e-5)


def test_a_lam_of_each_sample_needs_a_weight_of_each():
    x, weight = jnp.eye(4, 5), jnp.ones((5, 3))
    lams = jnp.array([0.1, 10.0])

    def loss(weight, lam):
        return (x @ tract_weight(weight, second_moment(x), lam)).sum()

    with pytest.raises(TrActValueError, match="each sample has its own lam, but all share one"):
        jax.grad(lambda weight: jax.vmap(loss, (None, 0))(weight, lams).sum())(weight)
    weights = jnp.stack([weight, weight])
    grads = jax.grad(lambda weights: jax.vmap(loss)(weights, lams).sum())(weights)
    assert_near(grads[1], jax.grad(loss)(weight, 10.0), 1e-6)


def test_the_weight_keeps_its_bits_and_dtype():
    x, weight, *_ = as_jax(GEOMETRIES["conv-3x3-same"], jnp.float32)
    moment = second_moment(x, (3, 3), padding="SAME")
    for dtype in (jnp.float32, jnp.bfloat16, jnp.float16):
        some = weight.astype(dtype)
        same = tract_weight(some, moment)
        assert same.dtype == dtype
        assert np.array_equal(same, some)
        grad = jax.grad(lambda w: (tract_weight(w, moment) ** 2).sum().astype(jnp.float32))(some)
        assert grad.dtype == dtype


def test_the_gradient_by_the_input_is_the_plain_one():
    geometry = GEOMETRIES["conv-3x3-same"]
    x, weight, bias, grad_z = as_jax(geometry, jnp.float32)

    def loss(x, tract):
        moment = second_moment(x, **geometry.arguments)
        return (
            geometry.apply(x, tract_weight(weight, moment) if tract else weight, bias) * grad_z
        ).sum()

    grads = [jax.grad(loss)(x, tract) for tract in (True, False)]
    assert np.array_equal(*grads)


def test_lam_may_be_an_array():
    x, weight, *_ = as_jax(DENSE, jnp.float32)
    moment = second_moment(x)

    @jax.jit
    def grad(lam):
        return jax.grad(lambda w: (x @ tract_weight(w, moment, lam)).sum())(weight)

    expected = jax.grad(lambda w: (x @ tract_weight(w, moment, 0.3)).sum())(weight)
    assert_near(grad(jnp.float32(0.3)), expected, 1e-6)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_the_solve_has_the_wider_dtype(dtype):
    x, weight, *_ = as_jax(DENSE, jnp.float32)
    moment = second_moment(x).astype(dtype)
    with jax.enable_x64(True):
        wide = jnp.asarray(weight, jnp.float64 if dtype == jnp.float32 else jnp.float32)
        grad = jax.grad(lambda w: (tract_weight(w, moment) * wide).sum())(wide)
    assert grad.dtype == wide.dtype
    matrix = np.asarray(moment[0], np.float64) + 0.1 * np.eye(6)
    exact = np.linalg.solve(matrix, np.asarray(weight, np.float64))
    assert_near(grad, exact, 1e-12 if wide.dtype == jnp.float64 else 1e-5)


def test_rows_without_a_scale_give_no_step_if_lam_is_relative():
    x, weight = jnp.full((10, 4), 3.0), jnp.ones((4, 2))
    moment = second_moment(x, center=True)

    def loss(weight, bias):
        weight, bias = tract_weight(weight, moment, bias=bias, center=True, relative=True)
        return (x @ weight + bias).sum()

    grads = jax.grad(loss, argnums=(0, 1))(weight, jnp.zeros(2))
    assert not grads[0].any()
    assert np.array_equal(grads[1], [10, 10])


def test_one_row_of_different_pixels_gives_no_step_if_lam_is_relative():
    check_gradient(Geometry((1, 4, 1), 1, (4,)), 0.1, center=True, relative=True)


@pytest.mark.parametrize("shift", [30.0, 1000.0])
def test_rows_far_from_zero_have_a_scale(shift):
    geometry = Geometry((300, 6))
    geometry.values["x"] += shift
    x, weight, bias, grad_z = as_jax(geometry, jnp.float32)
    moment = second_moment(x, center=True)

    def loss(weight, bias):
        weight, bias = tract_weight(weight, moment, bias=bias, center=True, relative=True)
        return ((x @ weight + bias) * grad_z).sum()

    grads = jax.grad(loss, argnums=(0, 1))(weight, bias)
    for grad, wanted in zip(
        grads, geometry.train_core(0.1, center=True, relative=True), strict=True
    ):
        assert_near(grad, wanted, 1e-2)


def test_constant_rows_determine_no_step_of_the_weight():
    """Not even a tiny one, which an optimizer that takes signs would make a whole step."""
    x, weight = 3 * jnp.ones((16, 4)), jnp.ones((4, 2))

    def loss(weight):
        covariance = second_moment(x, center=True)
        weight = tract_weight(weight, covariance, center="batchnorm", relative=True)
        return jnp.square(x @ weight).sum()

    assert not np.asarray(jax.grad(loss)(weight)).any()


def test_a_second_moment_that_overflows_gives_nan():
    x = jnp.full((8, 4), 3e19)
    gradient = jax.grad(lambda weight: (x @ tract_weight(weight, second_moment(x))).sum())
    assert np.isnan(gradient(jnp.ones((4, 2)))).all()


@pytest.mark.parametrize(("center", "relative"), OPTIONS)
def test_a_weight_without_inputs_has_an_empty_gradient(center, relative):
    x, weight, bias = jnp.zeros((4, 0)), jnp.zeros((0, 3)), jnp.zeros(3)

    def loss(weight, bias):
        moment = second_moment(x, center=bool(center))
        if center is True:
            options = {"bias": bias, "center": True, "relative": relative}
            weight, bias = tract_weight(weight, moment, **options)
        else:
            weight = tract_weight(weight, moment, center=center, relative=relative)
        return (x @ weight + bias).sum()

    grads = jax.grad(loss, (0, 1))(weight, bias)
    assert grads[0].shape == (0, 3)
    assert np.isfinite(grads[1]).all()


@pytest.mark.parametrize("wrap", [lambda loss: loss, jax.jit, jax.checkpoint])
def test_center_moves_the_bias_with_the_weight_or_not_at_all(wrap):
    random = np.random.default_rng(0)
    x = jnp.asarray(random.standard_normal((9, 5)) + 1, jnp.float32)
    weight, bias = jnp.ones((5, 3)), jnp.ones(3)

    @wrap
    def loss(weight, bias):
        covariance = second_moment(x, center=True)
        weight, bias = tract_weight(weight, covariance, bias=bias, center=True)
        return jnp.sin(x @ weight + bias).sum()

    plain = jax.grad(lambda bias: jnp.sin(x @ weight + bias).sum())(bias)
    assert_near(jax.grad(loss, 1)(weight, bias), plain, 1e-6)
    both = jax.grad(loss, (0, 1))(weight, bias)
    assert np.abs(both[1] - plain).max() > 0.1
    with pytest.raises(UnsupportedLayerError, match="differentiate the bias too"):
        jax.grad(loss)(weight, bias)


def test_a_result_without_a_gradient_is_no_obstacle():
    x, weight, bias = jnp.eye(4, 5), jnp.ones((5, 3)), jnp.ones(3)

    def loss(weight, bias):
        covariance = second_moment(x, center=True)
        weight, _ = tract_weight(weight, covariance, bias=bias, center=True)
        return (x @ weight).sum()

    weight, bias = jax.grad(loss, (0, 1))(weight, bias)
    assert np.isfinite(weight).all()
    assert np.abs(bias).max() > 0  # what the change of the weight does to the mean of z


W, S, C = jnp.ones((4, 2)), jnp.ones((1, 4, 4)), second_moment(jnp.ones((3, 4)), center=True)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (([1.0], S), {}, TrActTypeError, r"weight= takes a JAX array; got list\."),
        ((jnp.ones(4), S), {}, TrActTypeError, r"needs the weight of a dense layer \[n, m\]"),
        (
            (W, jnp.ones((4, 4))),
            {},
            TrActValueError,
            r"does not fit a second moment of shape \(4, 4\)",
        ),
        ((W, jnp.ones((3, 4, 4))), {}, TrActValueError, "where g divides the 2 outputs"),
        (
            (W, S, 0.0),
            {},
            TrActValueError,
            r"lam=0.0 is out of range; use a positive finite number",
        ),
        ((W, S, jnp.ones(1)), {}, TrActValueError, r"lam= has the shape \(1,\); use one number"),
        ((W, S, "0.1"), {}, TrActTypeError, "lam='0.1' is a str"),
        ((W, S, np.array(1j)), {}, TrActTypeError, "needs a real lam; got complex128"),
        (
            (W, Covariance([1.0], [2.0])),
            {"center": "batchnorm"},
            TrActTypeError,
            r"second_moment= takes a JAX array; got list\.",
        ),
        (
            (W, Covariance(C.matrix, jnp.ones((1, 2)))),
            {"center": "batchnorm"},
            TrActValueError,
            r"needs a mean of shape \(1, 4\); got \(1, 2\)",
        ),
        ((W, S), {"center": "mean"}, TrActValueError, "center='mean' is not accepted"),
        ((W, S), {"relative": 1}, TrActTypeError, "relative=1 is not accepted"),
        (
            (W, S),
            {"center": "batchnorm"},
            TrActTypeError,
            "center='batchnorm' needs the covariance",
        ),
        ((W, C), {}, TrActTypeError, "a covariance belongs to center=True"),
        ((W, C), {"center": True}, TrActValueError, "pass the layer's bias="),
        ((W, S), {"bias": jnp.ones(2)}, TrActValueError, "changes a bias only with center=True"),
        (
            (W, C),
            {"center": True, "bias": jnp.ones(3)},
            TrActValueError,
            r"a bias of shape \(3,\) does not fit",
        ),
    ],
)
def test_unusable_arguments_are_named(arguments, options, error, message):
    with pytest.raises(error, match=message):
        tract_weight(*arguments, **options)
