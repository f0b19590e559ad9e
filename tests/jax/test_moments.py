"""The second moment equals that of rows cut out one by one, in bounded memory, and has no gradient."""

import pytest

pytest.importorskip("jaxlib", reason="trainact.jax needs jax")

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings

from jax_cases import GEOMETRIES, Geometry, as_jax, assert_near, geometries
from slow_cases import mark_slow
from trainact.errors import TrActTypeError, TrActValueError
from trainact.jax import Covariance, second_moment
from trainact.jax.overlapping_patches import prefers_columns, sum_by_columns
from trainact.jax.patches import describe_patches


def check_moment(geometry: Geometry) -> None:
    with jax.enable_x64(True):
        x, *_ = as_jax(geometry, jnp.float64)
        measured = jax.jit(lambda x: second_moment(x, **geometry.arguments))(x)
        covariance = jax.jit(lambda x: second_moment(x, **geometry.arguments, center=True))(x)
    expected = geometry.expected_moment()
    assert_near(measured, expected, 1e-12)
    if len(geometry.kernel) == 2 and geometry.groups == 1 and set(geometry.dilation) == {1}:
        assert_near(sum_by_columns_of(geometry), expected, 1e-12)
    matrix, mean = map(np.asarray, covariance)
    assert_near(matrix + mean[:, :, None] * mean[:, None, :], expected, 1e-12)


def sum_by_columns_of(geometry: Geometry) -> np.ndarray:
    """Return the moment by the method that small inputs do not choose."""
    with jax.enable_x64(True):
        x, *_ = as_jax(geometry, jnp.float64)
        patches = describe_patches(x.shape, *list(geometry.arguments.values())[:4])
        if not patches.count_rows(x):
            return geometry.expected_moment()
        total = jax.jit(lambda x: sum_by_columns(x, patches, x.dtype))(x)
        return np.asarray(total) / patches.count_rows(x)


@pytest.mark.parametrize("name", mark_slow(GEOMETRIES, 8))
def test_it_is_that_of_the_rows(name):
    check_moment(GEOMETRIES[name])


@given(geometries())
@settings(max_examples=10)
def test_it_is_that_of_the_rows_of_any_layer(geometry):
    check_moment(geometry)


@pytest.mark.slow
@given(geometries())
@settings(max_examples=300)
def test_it_is_that_of_the_rows_of_any_of_many_layers(geometry):
    check_moment(geometry)


@pytest.mark.parametrize(
    "geometry",
    [
        Geometry((40, 261)),
        Geometry((2, 20, 30, 3), 5, (10, 10), (10, 10)),
        Geometry((2, 23, 27, 3), 5, (11, 11), (4, 4), "SAME"),
    ],
)
def test_wide_rows_are_multiplied_in_blocks_of_columns(geometry):
    check_moment(geometry)


def test_numbers_may_be_those_of_numpy():
    x = jnp.asarray(np.random.default_rng(0).random((2, 9, 8, 4)), jnp.float32)
    expected = second_moment(x, (3, 2), (2, 1), 1, feature_group_count=2)
    given = second_moment(
        x, np.array([3, 2]), np.array([2, 1]), np.int64(1), feature_group_count=np.int64(2)
    )
    assert np.array_equal(given, expected)


def test_covariances_are_measured_where_jax_promotes_nothing():
    with jax.enable_x64(True), jax.numpy_dtype_promotion("strict"):
        x = jnp.asarray(np.random.default_rng(0).random((2, 9, 8, 3)), jnp.float64)
        assert second_moment(x, (3, 3), center=True).matrix.dtype == jnp.float64


def test_one_image_needs_no_batch_dimension():
    x = jnp.asarray(np.random.default_rng(0).random((9, 8, 3)), jnp.float32)
    with_batch = second_moment(x[None], (3, 3), padding=1)
    assert np.array_equal(second_moment(x, (3, 3), padding=1), with_batch)


STEMS = {
    "3x3": ((32, 32, 32, 3), (3, 3), (1, 1), "SAME"),
    "3x3-large": ((4, 224, 224, 3), (3, 3), (1, 1), "SAME"),
    "7x7-stride-2": ((8, 224, 224, 3), (7, 7), (2, 2), [(3, 3), (3, 3)]),
    "11x11-stride-4": ((8, 224, 224, 3), (11, 11), (4, 4), [(2, 2), (2, 2)]),
    "patches": ((32, 224, 224, 3), (16, 16), (16, 16), "VALID"),
    "conv1d": ((8, 16000, 1), (80,), (4,), [(38, 38)]),
    "conv3d": ((4, 16, 112, 112, 3), (3, 7, 7), (1, 2, 2), [(1, 1), (3, 3), (3, 3)]),
}


KINDS_OF_INPUTS = mark_slow(
    [(dtype, center) for dtype in (jnp.float32, jnp.bfloat16) for center in (False, True)]
)


def measure_memory(shape, kernel, strides, padding, dtype, center=False) -> float:
    """Return the temporary memory of the compiled moment over the input."""
    measure = jax.jit(lambda x: second_moment(x, kernel, strides, padding, center=center))
    compiled = measure.lower(jax.ShapeDtypeStruct(shape, dtype)).compile()
    analysis = compiled.memory_analysis()
    return analysis.temp_size_in_bytes / analysis.argument_size_in_bytes


def test_overlapping_patches_of_large_inputs_are_multiplied_by_columns():
    shapes = {name: (arguments[0], *arguments[1:]) for name, arguments in STEMS.items()}
    chosen = [
        name
        for name, (shape, *arguments) in shapes.items()
        if prefers_columns(jnp.zeros(shape), describe_patches(shape, *arguments))
    ]
    assert chosen == ["3x3-large", "7x7-stride-2", "11x11-stride-4"]


@pytest.mark.parametrize("name", STEMS)
@pytest.mark.parametrize(("dtype", "center"), KINDS_OF_INPUTS)
def test_it_needs_at_most_twice_the_memory_of_the_input(name, dtype, center):
    assert measure_memory(*STEMS[name], dtype, center) <= 2


@pytest.mark.parametrize("num_inputs", [100, 400, 768])
@pytest.mark.parametrize(("dtype", "center"), KINDS_OF_INPUTS)
def test_the_bound_holds_for_dense_layers(num_inputs, dtype, center):
    matrices = 3 * 4 * num_inputs**2
    shape = (64, 256, num_inputs)
    compiled = jax.jit(lambda x: second_moment(x, center=center))
    analysis = compiled.lower(jax.ShapeDtypeStruct(shape, dtype)).compile().memory_analysis()
    assert analysis.temp_size_in_bytes <= 2 * analysis.argument_size_in_bytes + matrices


@pytest.mark.parametrize("num_inputs", [300, 301])
@pytest.mark.parametrize("center", [False, True])
def test_wide_rows_are_converted_in_blocks_of_columns(num_inputs, center):
    x = np.random.default_rng(0).standard_normal((50, num_inputs)) + 1
    rows = np.asarray(jnp.asarray(x, jnp.bfloat16), np.float64)
    measured = second_moment(jnp.asarray(x, jnp.bfloat16), center=center)
    expected = np.cov(rows.T, bias=True) if center else rows.T @ rows / 50
    assert_near(measured.matrix[0] if center else measured[0], expected, 1e-6)


def test_the_bound_holds_for_single_images_under_vmap():
    def measure(x):
        return second_moment(x, (3, 3), padding="SAME", axis_name="batch")

    images = jax.ShapeDtypeStruct((64, 96, 96, 3), jnp.float32)
    mapped = jax.vmap(measure, axis_name="batch", out_axes=None)
    analysis = jax.jit(mapped).lower(images).compile().memory_analysis()
    assert analysis.temp_size_in_bytes <= 2 * analysis.argument_size_in_bytes


def test_products_are_in_float32_whatever_the_input():
    x = jnp.asarray(np.random.default_rng(0).standard_normal((64, 16, 16, 3)), jnp.bfloat16)
    low = second_moment(x, (3, 3), padding="SAME")
    full = second_moment(x.astype(jnp.float32), (3, 3), padding="SAME")
    assert low.dtype == jnp.float32
    assert_near(low, full, 1e-6)
    pixels = jnp.asarray(np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3)), jnp.uint8)
    assert_near(second_moment(pixels), second_moment(pixels.astype(jnp.float32)), 1e-6)


def test_the_covariance_keeps_its_digits_far_from_zero():
    x = np.random.default_rng(0).standard_normal((16, 8, 8, 3)).astype(np.float32)
    centred = second_moment(jnp.asarray(x), (3, 3), center=True)
    shifted = second_moment(jnp.asarray(x + 1000), (3, 3), center=True)
    assert_near(shifted.matrix, centred.matrix, 2e-4)
    assert_near(shifted.mean, centred.mean + 1000, 1e-6)


def test_the_mean_over_an_axis_is_the_moment_of_all_rows():
    x = jnp.asarray(np.random.default_rng(0).standard_normal((6, 8, 8, 3)) + 1, jnp.float32)
    for center in (False, True):
        whole = second_moment(x, (3, 3), padding="SAME", center=center)

        def measure(image, center=center):
            return second_moment(image, (3, 3), padding="SAME", axis_name="i", center=center)

        mapped = jax.vmap(measure, axis_name="i", out_axes=None)(x)
        for one, other in zip(jax.tree.leaves(mapped), jax.tree.leaves(whole), strict=True):
            assert_near(one, other, 1e-6)


def test_it_has_no_gradient():
    x = jnp.ones((5, 4))
    assert not jax.grad(lambda x: second_moment(x).sum())(x).any()
    grads = jax.grad(lambda x: sum(map(jnp.sum, second_moment(x, center=True))))(x)
    assert not grads.any()


X = jnp.ones((2, 8, 8, 4))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            (X, None, 1, "VALID", 1, 1, 3),
            TrActTypeError,
            "axis_name=3 is not accepted; use the name",
        ),
        (([[1.0]],), TrActTypeError, r"x= takes a JAX array; got list\."),
        ((X.astype(complex),), TrActTypeError, "TrAct needs a real input; got complex"),
        ((jnp.ones(()),), TrActValueError, "x has no dimensions"),
        ((X, (3, 3, 3, 3)), TrActValueError, "has 4 dimensions; use 1 to 3"),
        ((X, 3), TrActValueError, r"a convolution of 1 dimensions takes \[N, \*size, C\] with 3"),
        ((X, 3.5), TrActTypeError, r"kernel_size=3\.5 is not accepted; use whole numbers"),
        ((X, (3, 0)), TrActValueError, r"kernel_size=\(3, 0\) is out of range"),
        ((X, (3, 3), 1.5), TrActTypeError, r"strides=1\.5 is not accepted; use whole numbers"),
        ((X, (3, 3), (1, 1, 1)), TrActValueError, "has 3 numbers for 2 dimensions"),
        ((X, (3, 3), 1, "FULL"), TrActValueError, "padding='FULL' is unknown; use 'VALID'"),
        ((X, (3, 3), 1, [(1, 1)]), TrActValueError, "has 1 entries for 2 dimensions"),
        ((X, (3, 3), 1, None), TrActTypeError, "padding=None is a NoneType"),
        ((X, (3, 3), 1, [(1,), (1, 1)]), TrActTypeError, r"padding=.* is not accepted"),
        ((X, (3, 3), 1, [1.5, 1]), TrActTypeError, r"padding=.* is not accepted"),
        ((X, (3, 3), 1, "SAME", 0), TrActValueError, "dilation=0 is out of range"),
        ((X, (3, 3), 1, "SAME", 1, 3), TrActValueError, "3 does not divide the 4 channels"),
        ((X, (3, 3), 1, "SAME", 1, True), TrActTypeError, "feature_group_count=True"),
    ],
)
def test_unusable_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        second_moment(*arguments)


@pytest.mark.parametrize(
    "padding",
    [
        jax.lax.padtype_to_pads((8, 8), (3, 3), (1, 1), "SAME"),  # NumPy's numbers
        np.ones((2, 2), int),
        [[1, 1], (1, 1)],
        [1, np.int64(1)],
        np.int64(1),
        "same",
    ],
)
def test_paddings_are_those_of_lax(padding):
    x = jnp.asarray(np.random.default_rng(0).random((2, 8, 8, 3)), jnp.float32)
    expected = second_moment(x, (3, 3), padding="SAME")
    assert np.array_equal(second_moment(x, (3, 3), padding=padding), expected)


def test_center_is_a_flag():
    with pytest.raises(TrActTypeError, match="center='batchnorm' is not accepted"):
        second_moment(X, center="batchnorm")
    assert isinstance(second_moment(X, center=True), Covariance)
