"""A whitened start in JAX is that of the core."""

import itertools

import pytest

pytest.importorskip("jaxlib", reason="trainact.jax needs jax")

import jax
import jax.numpy as jnp
import numpy as np

from jax_cases import GEOMETRIES, assert_near
from slow_cases import mark_slow
from trainact import reference
from trainact.errors import TrActTypeError, TrActValueError, UnsupportedLayerError
from trainact.jax import second_moment, whiten_weight

SETTINGS = [
    {},
    {"filters": "random"},
    {"scale": "unit", "signs": False},
    {"scale": 0.5, "eps": 0.01},
]


def whiten_geometry(geometry, **settings):
    arguments = dict(geometry.arguments)
    arguments.pop("kernel_size", None)
    with jax.enable_x64(True):
        weight, x = (jnp.asarray(geometry.values[name]) for name in ("weight", "x"))
        return np.asarray(whiten_weight(weight, x, **arguments, **settings))


@pytest.mark.parametrize("settings", mark_slow(SETTINGS, 2))
@pytest.mark.parametrize(
    "name", ["dense", "conv-3x3-same", "conv-patches", "conv-groups", "conv1d"]
)
def test_filters_are_those_of_the_reference(name, settings):
    geometry = GEOMETRIES[name]
    layer, x = geometry.torch_layer()
    expected = reference.whitened_weight_of_layer(layer, x, **settings).detach()
    assert_near(whiten_geometry(geometry, **settings), expected.movedim((0, 1), (-1, -2)), 1e-8)


def test_more_filters_than_directions_are_rotations():
    x = np.random.default_rng(0).standard_normal((500, 4)) @ np.diag([4, 2, 1, 0.5])
    with jax.enable_x64(True):
        weight = whiten_weight(jnp.ones((4, 24)), jnp.asarray(x), scale="unit", eps=0, seed=3)
        again = whiten_weight(jnp.ones((4, 24)), jnp.asarray(x), scale="unit", eps=0, seed=3)
    assert np.array_equal(weight, again)
    z = x @ np.asarray(weight, np.float64)
    moment = z.T @ z / 500
    assert_near(moment[:4, :4], np.eye(4), 1e-6)
    assert_near(moment[8:12, 8:12], np.eye(4), 1e-6)
    assert not np.allclose(weight[:, :4], weight[:, 8:12])


def test_batches_count_by_their_rows():
    x = np.random.default_rng(0).standard_normal((10, 8, 8, 3)).astype(np.float32)
    weight = jnp.ones((3, 3, 3, 8))
    whole = whiten_weight(weight, x, padding="SAME", scale="unit")
    parts = whiten_weight(weight, [(x[:3], None), (x[3:], None)], padding="SAME", scale="unit")
    assert_near(parts, whole, 1e-5)


W, X = jnp.ones((4, 2)), jnp.asarray(np.random.default_rng(0).random((30, 4)))


@pytest.mark.parametrize(
    ("arguments", "settings", "error", "message"),
    [
        ((W, 3), {}, TrActTypeError, "images takes one batch or an iterable of batches"),
        ((W, ["a"]), {}, TrActTypeError, "batch 0 is a str"),
        ((W, {"image": X}), {}, TrActTypeError, "an iterable of batches, .* got dict"),
        ((W, []), {}, TrActValueError, "images holds no batch"),
        ((jnp.ones(3), X), {}, TrActTypeError, "needs the weight of a dense layer"),
        ((W, X[:, :3]), {}, TrActValueError, r"a weight of shape \(4, 2\) does not fit"),
        ((W, X[:0]), {}, TrActValueError, "the images have no rows"),
        (
            (jnp.ones((4, 3)), X[:2]),
            {"signs": False},
            TrActValueError,
            "the images have 2 rows, and 3 outputs need at least 3",
        ),
        ((W, X * jnp.nan), {}, TrActValueError, "its inputs are not finite"),
        ((W, jnp.ones((9, 4))), {}, TrActValueError, "its inputs are constant"),
        ((0 * W, X), {}, TrActValueError, "scale='keep' would keep it"),
        ((W, X), {"scale": 1e60}, TrActValueError, "the whitened weight is not finite in float32"),
        ((W, X), {"filters": "x"}, TrActValueError, "filters='x' is unknown"),
        ((W, X), {"eps": -1}, TrActValueError, "eps=-1 is out of range"),
    ],
)
def test_unusable_arguments_are_named(arguments, settings, error, message):
    with pytest.raises(error, match=message):
        whiten_weight(*arguments, **settings)


def test_compiled_code_is_refused():
    with pytest.raises(TrActTypeError, match="call it outside of jit"):
        jax.jit(whiten_weight)(W, X)


def test_a_model_whose_weight_cannot_be_set_is_refused():
    nnx = pytest.importorskip("flax.nnx", reason="needs flax")
    from trainact.jax.nnx import whiten

    def make():
        rngs = nnx.Rngs(0)
        return nnx.Sequential(nnx.WeightNorm(nnx.Conv(3, 8, (3, 3), rngs=rngs), rngs=rngs))

    images = jnp.ones((2, 8, 8, 3))
    with pytest.raises(UnsupportedLayerError, match="WeightNorm computes the weight"):
        whiten(make(), images)
    for options in ({}, {"layer": "layers.0.layer_instance"}):
        with pytest.raises(TrActValueError, match="this one has only shapes"):
            whiten(nnx.eval_shape(make), images, **options)


def test_a_model_of_nnx_is_whitened_in_place():
    nnx = pytest.importorskip("flax.nnx", reason="needs flax")
    from trainact.jax.nnx import apply_tract, whiten

    random = np.random.default_rng(0)
    images = jnp.asarray(random.standard_normal((16, 8, 8, 3)), jnp.float32)

    def make():
        rngs = nnx.Rngs(0)
        return nnx.Sequential(
            lambda x: 2 * x,
            nnx.Conv(3, 8, (3, 3), padding="CIRCULAR", rngs=rngs),
            nnx.relu,
            nnx.Conv(8, 4, (3, 3), rngs=rngs),
        )

    model, other = make(), make()
    kernel = model.layers[1].kernel[...]
    assert whiten(model, images) == "layers.1"
    padded = jnp.pad(2 * images, [(0, 0), (1, 1), (1, 1), (0, 0)], mode="wrap")
    assert_near(model.layers[1].kernel[...], whiten_weight(kernel, padded), 1e-6)
    apply_tract(other, layer="layers.1")
    whiten(other, [(images[:9], None), (images[9:], None)], layer="layers.1")
    assert_near(other.layers[1].kernel[...], model.layers[1].kernel[...], 1e-5)
    moment = second_moment(padded, (3, 3))
    filters = model.layers[1].kernel[...].reshape(27, 8)
    z = np.asarray(filters.T @ moment[0] @ filters)
    assert abs(z[0, 1]) < 1e-4 * z[0, 0]
    third = make()
    endless = itertools.chain([images[:8]], itertools.repeat(images[8:]))
    whiten(third, endless, max_images=16)
    assert_near(third.layers[1].kernel[...], model.layers[1].kernel[...], 1e-5)
    third = make()
    whiten(third, (images, 3 * images))  # images and targets
    assert_near(third.layers[1].kernel[...], model.layers[1].kernel[...], 1e-5)
    with pytest.raises(TrActValueError, match="max_images=0 is out of range"):
        whiten(third, images, max_images=0)
    dropped = nnx.Sequential(nnx.Dropout(0.5, rngs=nnx.Rngs(0)), *make().layers)
    assert whiten(dropped, images) == "layers.2"  # in evaluation mode
    assert_near(dropped.layers[2].kernel[...], model.layers[1].kernel[...], 1e-6)
    assert not dropped.layers[0].deterministic
    masked = nnx.Conv(3, 8, (3, 3), mask=jnp.ones((3, 3, 3, 8)), rngs=nnx.Rngs(0))
    with pytest.raises(UnsupportedLayerError, match="Conv has a mask"):
        whiten(masked, images)
    with pytest.raises(TrActValueError, match=r"on an array of shape \(4,\) and float32 failed"):
        whiten(model, jnp.ones(4), layer="layers.1")
    with pytest.raises(
        TrActValueError, match=r"layer 'layers.1': a weight of shape .* does not fit"
    ):
        whiten(model, jnp.concatenate([images, images], -1), layer="layers.1")
