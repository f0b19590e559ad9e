"""Layers of Flax and Equinox: the plain layer but for the gradient, which is the reference's."""

import pickle

import pytest

pytest.importorskip("jaxlib", reason="trainact.jax needs jax")

from jax_cases import (
    GEOMETRIES,
    Geometry,
    as_jax,
    assert_gradients,
    assert_near,
    count_operators,
    geometries,
)
from slow_cases import mark_slow

pytest.importorskip("flax", reason="the layers need flax")
pytest.importorskip("equinox", reason="the layers need equinox")
pytest.importorskip("optax", reason="the steps need optax")

import equinox as eqx
import flax.linen as nn
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import optax
import torch
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from trainact import reference
from trainact.errors import (
    TrActTypeError,
    TrActValueError,
    UnsupportedLayerError,
)
from trainact.jax import equinox as tract_eqx
from trainact.jax import linen as tract_linen
from trainact.jax import nnx as tract_nnx
from trainact.jax import second_moment, tract_weight

OPTIONS = [
    (center, relative) for center in (False, True, "batchnorm") for relative in (False, True)
]
KEY = jax.random.key(0)


def list_flax_arguments(geometry: Geometry) -> dict:
    return {
        "kernel_size": geometry.kernel,
        "strides": geometry.strides,
        "padding": geometry.padding,
        "kernel_dilation": geometry.dilation,
        "feature_group_count": geometry.groups,
    }


def make_nnx(geometry: Geometry, classes=tract_nnx, **options):
    rngs = nnx.Rngs(0)
    dtype = {"param_dtype": jnp.zeros(()).dtype}
    if not geometry.kernel:
        linear = classes.TrActLinear if classes is tract_nnx else classes.Linear
        return linear(geometry.shape[-1], geometry.outputs, rngs=rngs, **dtype, **options)
    conv = classes.TrActConv if classes is tract_nnx else classes.Conv
    return conv(
        geometry.shape[-1],
        geometry.outputs,
        **list_flax_arguments(geometry),
        rngs=rngs,
        **dtype,
        **options,
    )


def run_nnx(geometry: Geometry, x, weight, bias, grad_z, **options):
    layer = make_nnx(geometry, **options)
    layer.kernel[...], layer.bias[...] = weight, bias

    def loss(layer, x):
        z = layer(x)
        return (z * grad_z).sum(), z

    grads, z = nnx.jit(nnx.grad(loss, has_aux=True))(layer, x)
    return z, grads["kernel"][...], grads["bias"][...]


def run_linen(geometry: Geometry, x, weight, bias, grad_z, **options):
    if geometry.kernel:
        layer = tract_linen.TrActConv(geometry.outputs, **list_flax_arguments(geometry), **options)
    else:
        layer = tract_linen.TrActDense(geometry.outputs, **options)

    def loss(parameters):
        z = layer.apply({"params": parameters}, x)
        return (z * grad_z).sum(), z

    grads, z = jax.jit(jax.grad(loss, has_aux=True))({"kernel": weight, "bias": bias})
    return z, grads["kernel"], grads["bias"]


def run_equinox(geometry: Geometry, x, weight, bias, grad_z, **options):
    options = {"axis_name": "batch", "key": KEY, **options}
    if geometry.kernel:
        layer = tract_eqx.TrActConv2d(
            geometry.shape[-1],
            geometry.outputs,
            geometry.kernel,
            geometry.strides,
            geometry.padding,
            geometry.dilation,
            geometry.groups,
            **options,
        )
        weight, bias = jnp.moveaxis(weight, (-1, -2), (0, 1)), bias[:, None, None]
        x, grad_z = jnp.moveaxis(x, -1, 1), jnp.moveaxis(grad_z, -1, 1)
    else:
        layer = tract_eqx.TrActLinear(geometry.shape[-1], geometry.outputs, **options)
        weight = weight.T
        x, grad_z = x.reshape(-1, x.shape[-1]), grad_z.reshape(-1, grad_z.shape[-1])
    layer = eqx.tree_at(lambda one: (one.weight, one.bias), layer, (weight, bias))

    @eqx.filter_jit
    @eqx.filter_grad(has_aux=True)
    def grad(layer):
        z = jax.vmap(layer, axis_name="batch")(x)
        return (z * grad_z).sum(), z

    grads, z = grad(layer)
    if geometry.kernel:
        z, weight = jnp.moveaxis(z, 1, -1), jnp.moveaxis(grads.weight, (0, 1), (-1, -2))
        return z, weight, grads.bias.reshape(-1)
    return z.reshape(geometry.values["grad_z"].shape), grads.weight.T, grads.bias


RUNS = {"nnx": run_nnx, "linen": run_linen, "equinox": run_equinox}


def check_layer(kind: str, geometry: Geometry, lam: float, center, relative: bool) -> None:
    with jax.enable_x64(True):
        values = as_jax(geometry, jnp.float64)
        run = RUNS[kind]
        z, *grads = run(geometry, *values, lam=lam, center=center, relative=relative)
        assert_near(z, geometry.apply(*values[:3]), 1e-12)
    expected = geometry.expected(lam, center=center, relative=relative)
    assert_gradients(grads, expected, geometry, lam)


@pytest.mark.parametrize(
    "name", mark_slow(["conv1d", "conv-cropped", "conv3d", "conv-same-lower"], 2)
)
@pytest.mark.parametrize("kind", ["nnx", "linen"])
def test_flax_has_layers_of_other_dimensions_and_paddings(kind, name):
    check_layer(kind, GEOMETRIES[name], 0.1, True, False)


FEW = ["dense", "conv-3x3-same", "conv-7x7-stride-2", "conv-patches", "conv-groups", "conv-odd"]


@pytest.mark.parametrize("name", mark_slow(FEW, 2))
@pytest.mark.parametrize("kind", RUNS)
def test_a_layer_has_the_gradient_of_the_reference(kind, name):
    check_layer(kind, GEOMETRIES[name], 0.1, False, False)


@pytest.mark.parametrize(("center", "relative"), mark_slow(OPTIONS[::-1][:-1], 2))
@pytest.mark.parametrize("kind", RUNS)
def test_options_are_those_of_the_core(kind, center, relative):
    check_layer(kind, GEOMETRIES["conv-3x3-same"], 0.1, center, relative)


@pytest.mark.parametrize("name", mark_slow(["dense", "conv-7x7-stride-2"]))
@pytest.mark.parametrize("kind", RUNS)
def test_float32_agrees_with_the_core(kind, name):
    geometry = GEOMETRIES[name]
    _, *grads = RUNS[kind](geometry, *as_jax(geometry, jnp.float32), center=True)
    assert_gradients(grads, geometry.train_core(0.1, center=True), geometry, 0.1, 1e-5)


LAMS = st.sampled_from([0.01, 0.1, 1.0])
CASES = (st.sampled_from(list(RUNS)), geometries(), LAMS, st.sampled_from(OPTIONS))


def check_any_layer(kind: str, geometry: Geometry, lam: float, options) -> None:
    if kind == "equinox" and (len(geometry.kernel) in (1, 3) or 0 in geometry.shape):
        kind = "nnx"
    check_layer(kind, geometry, lam, *options)


@given(*CASES)
@settings(max_examples=40)
def test_any_layer_has_the_gradient_of_the_reference(kind, geometry, lam, options):
    check_any_layer(kind, geometry, lam, options)


@pytest.mark.slow
@given(*CASES)
@settings(max_examples=300)
def test_any_of_many_layers_has_the_gradient_of_the_reference(kind, geometry, lam, options):
    check_any_layer(kind, geometry, lam, options)


PADDED = {
    "CIRCULAR": ("circular", (2, 8, 7, 3), (3, 4)),
    "REFLECT": ("reflect", (2, 8, 7, 3), (4, 3)),
    "REPLICATE": ("replicate", (2, 8, 7, 3), (3, 3)),
}


@pytest.mark.parametrize("kind", RUNS)
@pytest.mark.parametrize("padding", mark_slow(PADDED))
def test_other_paddings_than_zeros_count_too(kind, padding):
    mode, shape, kernel = PADDED[padding]
    if padding == "REPLICATE" and kind != "equinox":
        pytest.skip("Flax has no such padding")
    random = np.random.default_rng(0)
    x, weight = random.standard_normal(shape), random.standard_normal((*kernel, 3, 4))
    grad_z = random.standard_normal((*shape[:-1], 4))
    layer = torch.nn.Conv2d(3, 4, kernel, padding="same", padding_mode=mode).double()
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(weight).movedim((-1, -2), (0, 1)))
    expected = reference.tract_gradient_of_layer(
        layer, torch.from_numpy(x).movedim(-1, 1), torch.from_numpy(grad_z).movedim(-1, 1)
    )
    with jax.enable_x64(True):
        grad = take_padded_gradient(kind, padding, kernel, x, weight, grad_z)
    assert_near(grad, expected.movedim((0, 1), (-1, -2)).detach().numpy(), 1e-9)


def take_padded_gradient(kind, padding, kernel, x, weight, grad_z):
    x, weight, grad_z = map(jnp.asarray, (x, weight, grad_z))
    if kind == "equinox":
        layer = tract_eqx.TrActConv2d(
            3, 4, kernel, padding="SAME", padding_mode=padding, axis_name="batch", key=KEY
        )
        kernel_first = jnp.moveaxis(weight, (-1, -2), (0, 1))
        layer = eqx.tree_at(lambda one: one.weight, layer, kernel_first)

        def loss(layer):
            z = jax.vmap(layer, axis_name="batch")(jnp.moveaxis(x, -1, 1))
            return (jnp.moveaxis(z, 1, -1) * grad_z).sum()

        return jnp.moveaxis(eqx.filter_grad(loss)(layer).weight, (0, 1), (-1, -2))
    if kind == "linen":
        layer = tract_linen.TrActConv(4, kernel, padding=padding)
        variables = {"kernel": weight, "bias": jnp.zeros(4)}
        return jax.grad(lambda p: (layer.apply({"params": p}, x) * grad_z).sum())(variables)[
            "kernel"
        ]
    layer = tract_nnx.TrActConv(
        3, 4, kernel, padding=padding, param_dtype=jnp.float64, rngs=nnx.Rngs(0)
    )
    layer.kernel[...] = weight
    return nnx.grad(lambda layer: (layer(x) * grad_z).sum())(layer)["kernel"][...]


def test_causal_convolutions_and_several_batch_dimensions():
    x = jnp.asarray(np.random.default_rng(0).standard_normal((2, 3, 9, 2)), jnp.float32)
    layers = [
        tract_nnx.TrActConv(2, 4, 3, padding=padding, rngs=nnx.Rngs(0))
        for padding in ("CAUSAL", [(2, 0)])
    ]
    grads = [
        nnx.grad(lambda layer: (layer(x) ** 2).sum())(layer)["kernel"][...] for layer in layers
    ]
    assert_near(grads[0], grads[1], 1e-6)


# The same parameters


class Network(nn.Module):
    conv: type
    dense: type

    @nn.compact
    def __call__(self, x):
        x = nn.relu(self.conv(8, (3, 3))(x))
        x = nn.relu(nn.Conv(8, (3, 3))(x))
        return self.dense(10)(x.mean((1, 2)))


def test_linen_checkpoints_load_both_ways():
    x = jnp.ones((2, 8, 8, 3))
    plain = Network(nn.Conv, nn.Dense)
    tract = Network(tract_linen.TrActConv, tract_linen.TrActDense)
    variables = [network.init(KEY, x) for network in (plain, tract)]
    assert jax.tree.structure(variables[0]) == jax.tree.structure(variables[1])
    assert "Conv_1" in variables[1]["params"]
    for one, other in zip(*map(jax.tree.leaves, variables), strict=True):
        assert np.array_equal(one, other)
    assert np.array_equal(plain.apply(variables[1], x), tract.apply(variables[0], x))
    assert pickle.loads(pickle.dumps(tract_linen.TrActConv)) is tract_linen.TrActConv


def test_equinox_checkpoints_load_both_ways(tmp_path):
    arguments = {"kernel_size": 3, "padding": 1}
    plain = eqx.nn.Conv2d(3, 4, **arguments, key=KEY)
    tract = tract_eqx.TrActConv2d(3, 4, **arguments, key=jax.random.key(1))
    eqx.tree_serialise_leaves(tmp_path / "plain.eqx", plain)
    loaded = eqx.tree_deserialise_leaves(tmp_path / "plain.eqx", tract)
    assert np.array_equal(loaded.weight, plain.weight)
    eqx.tree_serialise_leaves(tmp_path / "tract.eqx", loaded)
    eqx.tree_deserialise_leaves(tmp_path / "tract.eqx", plain)


@pytest.mark.parametrize("kind", RUNS)
def test_optax_steps_along_the_gradient(kind):
    geometry = GEOMETRIES["conv-3x3-same"]
    values = as_jax(geometry, jnp.float32)
    _, grad, _ = RUNS[kind](geometry, *values)
    optimizer = optax.sgd(0.1)
    updates, _ = optimizer.update(grad, optimizer.init(values[1]))
    assert_near(updates, -0.1 * geometry.expected(0.1)[0], 1e-5)


DENSE = GEOMETRIES["dense"]


def make_dense(kind: str):
    """Return a function of weight, bias and rows that applies a dense layer with TrAct."""
    layers = {
        "nnx": tract_nnx.TrActLinear(6, 4, rngs=nnx.Rngs(0)),
        "linen": tract_linen.TrActDense(4),
        "equinox": tract_eqx.TrActLinear(6, 4, axis_name="batch", key=KEY),
    }
    layer = layers[kind]

    def apply(weight, bias, x):
        if kind == "nnx":
            model = nnx.clone(layer)
            model.kernel[...], model.bias[...] = weight, bias
            return model(x)
        if kind == "linen":
            return layer.apply({"params": {"kernel": weight, "bias": bias}}, x)
        one = eqx.tree_at(lambda one: (one.weight, one.bias), layer, (weight.T, bias))
        return jax.vmap(one, axis_name="batch")(x)

    return apply


@pytest.mark.parametrize("kind", RUNS)
def test_a_penalty_on_the_input_gradient_is_preconditioned_once(kind):
    x, weight, bias, _ = as_jax(DENSE, jnp.float32)

    def penalty(weight, apply):
        return jnp.square(jax.grad(lambda x: jnp.tanh(apply(weight, bias, x)).sum())(x)).sum()

    plain = jax.grad(penalty)(weight, lambda weight, bias, x: x @ weight + bias)
    matrix = x.T @ x / len(x) + 0.1 * jnp.eye(6)
    apply = make_dense(kind)
    assert_near(jax.grad(penalty)(weight, apply), jnp.linalg.solve(matrix, plain), 1e-4)
    _, moved = jax.jvp(lambda x: apply(weight, bias, x), (x,), (x,))
    assert_near(moved, x @ weight, 1e-5)


@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize(
    "name", mark_slow(["conv-groups", "dense", "conv-7x7-stride-2", "conv-patches"])
)
def test_layers_run_where_jax_promotes_nothing(name, center):
    geometry = GEOMETRIES[name]
    layer = make_nnx(geometry, center=center, relative=center, dtype=jnp.bfloat16)
    x = as_jax(geometry, jnp.bfloat16)[0]
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        grads = nnx.grad(lambda layer: layer(x).astype(jnp.float32).sum())(layer)
    assert np.isfinite(np.asarray(grads["kernel"][...])).all()


def test_linen_calls_are_captured_once():
    x = jnp.ones((1, 8, 8, 3))
    for plain, layer in [
        (nn.Conv(4, (3, 3)), tract_linen.TrActConv(4, (3, 3))),
        (nn.Dense(4), tract_linen.TrActDense(4)),
    ]:
        variables = plain.init(KEY, x)
        seen = [
            jax.tree.structure(one.apply(variables, x, capture_intermediates=True)[1])
            for one in (plain, layer)
        ]
        assert seen[0] == seen[1]


def test_equinox_layers_change_to_tract_and_back():
    for plain in (eqx.nn.Linear(6, 4, key=KEY), eqx.nn.Conv2d(3, 4, 3, padding=1, key=KEY)):
        layer = tract_eqx.apply_tract(plain, 0.2, relative=True, axis_name="batch")
        made = type(layer)(*((6, 4) if layer.weight.ndim == 2 else (3, 4, 3)), lam=0.2,
                           relative=True, axis_name="batch", key=KEY,
                           **({} if layer.weight.ndim == 2 else {"padding": 1}))  # fmt: skip
        assert jax.tree.structure(layer) == jax.tree.structure(made)
        assert layer.weight is plain.weight
        back = tract_eqx.remove_tract(layer)
        assert jax.tree.structure(back) == jax.tree.structure(plain)
        with pytest.raises(UnsupportedLayerError, match="call remove_tract first"):
            tract_eqx.apply_tract(layer)
        with pytest.raises(UnsupportedLayerError, match="remove_tract takes a TrActLinear"):
            tract_eqx.remove_tract(plain)
    with pytest.raises(UnsupportedLayerError, match="has no bias, but center=True"):
        tract_eqx.apply_tract(eqx.nn.Linear(6, 4, use_bias=False, key=KEY), center=True)
    with pytest.raises(UnsupportedLayerError, match="got Conv1d"):
        tract_eqx.apply_tract(eqx.nn.Conv1d(3, 4, 3, key=KEY))


def test_layers_refuse_what_they_cannot_train():
    x = jnp.ones((2, 8, 8, 3))
    with pytest.raises(UnsupportedLayerError, match="has no bias, but center=True"):
        tract_eqx.TrActLinear(3, 4, use_bias=False, center=True, key=KEY)
    with pytest.raises(UnsupportedLayerError, match="has no bias, but center=True"):
        tract_nnx.TrActLinear(3, 4, use_bias=False, center=True, rngs=nnx.Rngs(0))
    with pytest.raises(UnsupportedLayerError, match="has no bias, but center=True"):
        tract_linen.TrActDense(4, use_bias=False, center=True).init(KEY, x)
    with pytest.raises(UnsupportedLayerError, match=r"input_dilation=2; TrAct takes 1\."):
        tract_linen.TrActConv(4, (3, 3), input_dilation=2).init(KEY, x)
    mask = jnp.ones((3, 3, 3, 4))
    with pytest.raises(UnsupportedLayerError, match="Conv has a mask; TrAct takes none"):
        tract_linen.TrActConv(4, (3, 3), mask=mask).init(KEY, x)
    with pytest.raises(UnsupportedLayerError, match="Conv has a mask; TrAct takes none"):
        tract_nnx.TrActConv(3, 4, (3, 3), mask=mask, rngs=nnx.Rngs(0))
    with pytest.raises(UnsupportedLayerError, match="Conv has 4 dimensions; TrAct takes 1 to 3"):
        tract_nnx.TrActConv(3, 4, (2, 2, 2, 2), rngs=nnx.Rngs(0))
    with pytest.raises(TrActTypeError, match="axis_name=3 is not accepted"):
        tract_nnx.TrActLinear(3, 4, axis_name=3, rngs=nnx.Rngs(0))
    with pytest.raises(
        TrActValueError, match=r"one image \[C, height, width\]; got the shape \(3,"
    ):
        tract_eqx.TrActConv2d(3, 4, 3, key=KEY)(jnp.ones((3, 8)))
    with pytest.raises(TrActValueError, match="lam=0 is out of range"):
        tract_linen.TrActDense(4, lam=0).init(KEY, x)
    layer = tract_nnx.TrActConv(3, 4, (3, 3), rngs=nnx.Rngs(0))
    layer.lam = -1.0
    with pytest.raises(TrActValueError, match=r"lam=-1\.0 is out of range"):
        layer(x)


def test_inference_needs_no_axis_and_no_second_moment():
    x = jnp.ones((8, 8, 3))
    layer = tract_nnx.TrActConv(3, 4, (3, 3), axis_name="batch", rngs=nnx.Rngs(0))
    plain = nnx.Conv(3, 4, (3, 3), rngs=nnx.Rngs(0))
    assert np.array_equal(layer(x), plain(x))
    layer = tract_eqx.TrActConv2d(3, 4, 3, axis_name="batch", key=KEY)
    assert np.array_equal(
        layer(jnp.ones((3, 8, 8))), eqx.nn.Conv2d(3, 4, 3, key=KEY)(jnp.ones((3, 8, 8)))
    )


@pytest.mark.parametrize("kind", RUNS)
def test_compiled_inference_is_that_of_the_plain_layer(kind):
    x = jnp.ones((2, 8, 8, 3))

    def compile_layer(is_plain):
        if kind == "nnx":
            layer = (nnx.Conv if is_plain else tract_nnx.TrActConv)(3, 4, (3, 3), rngs=nnx.Rngs(0))
            return jax.jit(lambda x: layer(x))
        if kind == "linen":
            layer = (nn.Conv if is_plain else tract_linen.TrActConv)(4, (3, 3))
            variables = nn.Conv(4, (3, 3)).init(KEY, x)
            return jax.jit(lambda x: layer.apply(variables, x))
        layer = (eqx.nn.Conv2d if is_plain else tract_eqx.TrActConv2d)(8, 4, 3, key=KEY)
        return jax.jit(lambda x: jax.vmap(layer)(x))

    plain, tract = (
        count_operators(compile_layer(one).lower(x).compile().as_text()) for one in (True, False)
    )
    assert tract == plain


@pytest.mark.parametrize("kind", ["nnx", "linen"])
def test_inference_may_have_symbolic_sizes(kind):
    shape = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, h, w, 3"), jnp.float32)
    settings = {"kernel_size": (4, 4), "strides": 4}
    if kind == "nnx":
        graph, state = nnx.split(tract_nnx.TrActConv(3, 4, **settings, rngs=nnx.Rngs(0)))

        def apply(state, x):
            return nnx.merge(graph, state)(x)
    else:
        layer = tract_linen.TrActConv(4, **settings)
        state, apply = layer.init(KEY, jnp.ones((1, 8, 8, 3))), layer.apply
    x = jnp.asarray(np.random.default_rng(0).standard_normal((2, 9, 12, 3)), jnp.float32)
    exported = jax.export.export(jax.jit(apply))(state, shape)
    assert_near(exported.call(state, x), apply(state, x), 1e-6)
    grad = jax.jit(jax.grad(lambda state, x: apply(state, x).sum()))
    with pytest.raises(TrActValueError, match=r"of known size; got the shape \(b, h, w, 3\)"):
        jax.export.export(grad)(state, shape)


def test_inference_of_equinox_may_have_symbolic_sizes():
    layer = tract_eqx.TrActConv2d(3, 4, 4, 4, axis_name="batch", key=KEY)
    shape = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 3, h, w"), jnp.float32)
    apply = jax.jit(lambda x: jax.vmap(layer, axis_name="batch")(x))
    x = jnp.asarray(np.random.default_rng(0).standard_normal((2, 3, 9, 12)), jnp.float32)
    assert_near(jax.export.export(apply)(shape).call(x), apply(x), 1e-6)


class WithVariable(nnx.Module):
    """A module whose layer takes a variable, as a Q-Former's queries are."""

    def __init__(self, linear):
        self.queries = nnx.Param(jnp.arange(12.0).reshape(4, 3))
        self.linear = linear(3, 2, rngs=nnx.Rngs(0))

    def __call__(self):
        return self.linear(self.queries)


def test_layers_of_flax_take_what_the_plain_ones_take():
    grads = [
        nnx.grad(lambda one: jnp.sin(one()).sum())(WithVariable(linear))
        for linear in (nnx.Linear, tract_nnx.TrActLinear)
    ]
    plain, tract = (grad["queries"][...] for grad in grads)
    assert np.array_equal(plain, tract)
    rows = [[1.0, 2.0, 3.0]]
    plain, tract = (
        linear(3, 2, rngs=nnx.Rngs(0))(rows) for linear in (nnx.Linear, tract_nnx.TrActLinear)
    )
    assert np.array_equal(plain, tract)
    variable = nnx.Param(jnp.ones((3, 2)))
    moment = second_moment(jnp.ones((4, 3)))
    assert np.array_equal(tract_weight(variable, moment), variable[...])


@pytest.mark.parametrize("kind", RUNS)
def test_with_center_a_frozen_weight_leaves_the_bias_its_plain_gradient(kind):
    x = jnp.asarray(np.random.default_rng(0).standard_normal((6, 3)) + 1, jnp.float32)

    def differentiate(is_plain):
        options = {} if is_plain else {"center": True}
        if kind == "nnx":
            linear = nnx.Linear if is_plain else tract_nnx.TrActLinear
            bias = nnx.DiffState(0, nnx.PathContains("bias"))
            grad = nnx.grad(lambda one: jnp.sin(one(x)).sum(), argnums=bias)
            return grad(linear(3, 2, rngs=nnx.Rngs(0), **options))["bias"][...]
        if kind == "linen":
            layer = (nn.Dense if is_plain else tract_linen.TrActDense)(2, **options)
            params = layer.init(KEY, x)["params"]

            def apply(bias):
                return layer.apply({"params": {**params, "bias": bias}}, x)

            return jax.grad(lambda bias: jnp.sin(apply(bias)).sum())(params["bias"])
        options = {} if is_plain else {"center": True, "axis_name": "batch"}
        linear = eqx.nn.Linear if is_plain else tract_eqx.TrActLinear
        layer = linear(3, 2, key=KEY, **options)

        def loss(bias):
            changed = eqx.tree_at(lambda one: one.bias, layer, bias)
            return jnp.sin(jax.vmap(changed, axis_name="batch")(x)).sum()

        return jax.grad(loss)(layer.bias)

    assert_near(differentiate(is_plain=False), differentiate(is_plain=True), 1e-6)


def test_complex_numbers_are_refused():
    x = jnp.ones((2, 3), jnp.complex64)
    with pytest.raises(TrActTypeError, match="TrAct needs a real input; got complex64"):
        tract_nnx.TrActLinear(3, 4, rngs=nnx.Rngs(0))(x)
    with pytest.raises(TrActTypeError, match="TrAct needs a real weight; got complex64"):
        tract_linen.TrActDense(4, param_dtype=jnp.complex64).init(KEY, x.real)
    with pytest.raises(TrActTypeError, match="TrAct needs a real input; got complex64"):
        jax.vmap(tract_eqx.TrActLinear(3, 4, key=KEY))(x)


def test_tokens_of_equinox_name_both_vmaps():
    x = jnp.asarray(np.random.default_rng(0).standard_normal((5, 7, 6)), jnp.float32)
    layer = tract_eqx.TrActLinear(6, 4, axis_name=["batch", "tokens"], key=KEY)

    def loss(layer):
        over_tokens = jax.vmap(layer, axis_name="tokens")
        return jnp.square(jax.vmap(over_tokens, axis_name="batch")(x)).sum()

    rows = x.reshape(-1, 6)
    plain = 2 * (rows @ layer.weight.T + layer.bias).T @ rows
    matrix = rows.T @ rows / len(rows) + 0.1 * jnp.eye(6)
    grad = eqx.filter_jit(eqx.filter_grad(loss))(layer).weight
    assert_near(grad, jnp.linalg.solve(matrix, plain.T).T, 1e-5)


def test_scalar_inputs_of_equinox():
    layer = tract_eqx.TrActLinear("scalar", 4, axis_name="batch", key=KEY)
    grad = eqx.filter_grad(lambda one: jax.vmap(one, axis_name="batch")(jnp.arange(3.0)).sum())(
        layer
    )
    assert_near(grad.weight, np.full((4, 1), 3 / (5 / 3 + 0.1)), 1e-6)
