"""Models of Flax NNX: finding the first layer, changing it to TrAct and back."""

import pytest

pytest.importorskip("jaxlib", reason="trainact.jax needs jax")
pytest.importorskip("flax", reason="the layers need flax")

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from trainact.errors import (
    FirstLayerNotFoundError,
    TrActTypeError,
    TrActValueError,
    UnsupportedLayerError,
)
from trainact.jax import nnx as tract_nnx


class Stem(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.body = nnx.Conv(8, 8, (3, 3), rngs=rngs)  # its name comes first in the alphabet
        self.stem = nnx.Conv(3, 8, (3, 3), rngs=rngs)
        self.head = nnx.Linear(8, 10, rngs=rngs)

    def __call__(self, x):
        return self.head(nnx.relu(self.body(nnx.relu(self.stem(x)))).mean((1, 2)))


def test_nnx_checkpoints_load_both_ways():
    plain, tract = Stem(nnx.Rngs(0)), Stem(nnx.Rngs(1))
    tract_nnx.apply_tract(tract)
    states = [nnx.state(model) for model in (plain, tract)]
    assert jax.tree.structure(states[0]) == jax.tree.structure(states[1])
    nnx.update(tract, states[0])
    x = jnp.ones((2, 8, 8, 3))
    assert np.array_equal(plain(x), tract(x))


def test_the_first_layer_is_the_first_one_called():
    model = Stem(nnx.Rngs(0))
    kernel = model.stem.kernel
    assert tract_nnx.apply_tract(model, 0.2) == "stem"
    assert type(model.stem) is tract_nnx.TrActConv
    assert model.stem.kernel is kernel
    assert model.stem.lam == 0.2
    assert type(model.body) is nnx.Conv
    assert tract_nnx.remove_tract(model) == ["stem"]
    assert type(model.stem) is nnx.Conv
    assert not hasattr(model.stem, "lam")
    assert tract_nnx.remove_tract(model) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kernel_size": (3, 3), "mask": jnp.ones((3, 3, 3, 4))}, "Conv has a mask"),
        ({"kernel_size": (3, 3), "input_dilation": 2}, "input_dilation=2; TrAct takes 1"),
        ({"kernel_size": (2, 2, 2, 2)}, "Conv has 4 dimensions"),
    ],
)
def test_a_layer_that_cannot_be_trained_is_not_changed(arguments, message):
    layer = nnx.Conv(3, 4, rngs=nnx.Rngs(0), **arguments)
    with pytest.raises(UnsupportedLayerError, match=message):
        tract_nnx.apply_tract(layer)
    assert type(layer) is nnx.Conv


def test_classes_of_your_own_are_not_changed_back():
    class Own(tract_nnx.TrActConv):
        pass

    model = Stem(nnx.Rngs(0))
    tract_nnx.apply_tract(model)
    model.body = Own(8, 8, (3, 3), rngs=nnx.Rngs(0))
    with pytest.raises(UnsupportedLayerError, match="layer 'body': remove_tract cannot change Own"):
        tract_nnx.remove_tract(model)
    assert type(model.stem) is tract_nnx.TrActConv


def test_a_removed_layer_leaves_no_trace():
    plain = nnx.Linear(5, 4, rngs=nnx.Rngs(0))
    layer = nnx.clone(plain)
    tract_nnx.apply_tract(layer)
    assert nnx.graphdef(layer) == nnx.graphdef(tract_nnx.TrActLinear(5, 4, rngs=nnx.Rngs(0)))
    tract_nnx.remove_tract(layer)
    assert nnx.graphdef(layer) == nnx.graphdef(plain)
    assert jax.tree.structure(layer) == jax.tree.structure(plain)


class Flattened(nnx.Module):
    """Fails on images of other sizes than 28, after a layer that sees a constant."""

    def __init__(self):
        self.positions = nnx.Linear(3, 4, rngs=nnx.Rngs(0))
        self.stem = nnx.Linear(784, 4, rngs=nnx.Rngs(0))

    def __call__(self, x):
        shift = self.positions(jnp.ones((1, 3)))
        return self.stem(x.reshape(len(x), 784)) + shift


def test_a_layer_before_a_failure_does_not_end_the_search():
    assert tract_nnx.apply_tract(Flattened()) == "stem"


class Conditioned(nnx.Module):
    """Calls layers on constants and on other arguments first."""

    def __init__(self, wrap=lambda layer, x: layer(x)):
        rngs = nnx.Rngs(0)
        self.positions, self.time = nnx.Embed(5, 4, rngs=rngs), nnx.Linear(3, 4, rngs=rngs)
        self.stem, self.body = (nnx.Conv(n, 4, (3, 3), rngs=rngs) for n in (3, 4))
        self.wrap = wrap

    def __call__(self, x, time=None, flag=False):
        assert flag is False  # a traced flag would fail
        shift = self.positions(jnp.zeros(1, int)) + self.time(jnp.ones(3) if time is None else time)
        return self.body(self.wrap(self.stem, x) + shift)


@pytest.mark.parametrize(
    ("model", "example", "expected"),
    [
        (Conditioned(), None, "stem"),
        (Conditioned(), (jnp.ones((2, 8, 8, 3)), jnp.ones((2, 1, 1, 3)), False), "stem"),
        (Conditioned(nnx.remat(lambda layer, x: layer(x))), None, "stem"),
        (Conditioned(nnx.jit(lambda layer, x: layer(x))), None, "stem"),
    ],
    ids=["constants", "arguments", "remat", "jit"],
)
def test_layers_that_the_image_does_not_reach_do_not_count(model, example, expected):
    assert tract_nnx.apply_tract(model, example_input=example) == expected


def test_without_a_gradient_by_the_input_the_first_layer_called_counts():
    stem = nnx.Conv(3, 4, (3, 3), rngs=nnx.Rngs(0))
    model = nnx.Sequential(
        jnp.round, jax.lax.stop_gradient, stem, nnx.Conv(4, 4, (3, 3), rngs=nnx.Rngs(0))
    )
    assert tract_nnx.apply_tract(model) == "layers.2"
    model = nnx.Sequential(lambda x: x / 255, nnx.Conv(3, 4, (3, 3), rngs=nnx.Rngs(0)))
    assert tract_nnx.apply_tract(model, example_input=np.ones((1, 8, 8, 3), np.uint8)) == "layers.1"


class Prepared(nnx.Module):
    def __init__(self, prepare):
        rngs = nnx.Rngs(0)
        self.norm, self.drop = nnx.BatchNorm(3, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)
        self.stem = nnx.Conv(3, 4, (3, 3), rngs=rngs)
        self.prepare = prepare

    def __call__(self, x):
        return self.prepare(self, x)


@pytest.mark.parametrize(
    "prepare",
    [
        lambda model, x: model.stem(model.drop(model.norm(x))),
        lambda model, x: nnx.jit(lambda stem, x: stem(inputs=x))(model.stem, x),
    ],
)
def test_the_search_leaves_statistics_and_random_streams_alone(prepare):
    model = Prepared(prepare)
    images = jnp.asarray(np.random.default_rng(0).standard_normal((4, 8, 8, 3)), jnp.float32)
    before = [np.asarray(one) for one in jax.tree.leaves(nnx.state(model, nnx.BatchStat))]
    assert tract_nnx.whiten(model, images) == "stem"
    assert tract_nnx.apply_tract(model) == "stem"
    assert type(model.stem) is tract_nnx.TrActConv
    after = jax.tree.leaves(nnx.state(model, nnx.BatchStat))
    assert all(np.array_equal(*pair) for pair in zip(before, after, strict=True))
    assert model.drop.rngs.count[...] == 0


def test_the_layer_may_be_named_or_be_the_model():
    model = nnx.Sequential(nnx.Linear(5, 4, rngs=nnx.Rngs(0)), nnx.Linear(4, 3, rngs=nnx.Rngs(0)))
    assert tract_nnx.apply_tract(model, layer="layers.1") == "layers.1"
    assert tract_nnx.apply_tract(model, example_input=jnp.ones((2, 5))) == "layers.0"
    layer = nnx.Linear(5, 4, rngs=nnx.Rngs(0))
    assert tract_nnx.apply_tract(layer) == ""
    assert type(layer) is tract_nnx.TrActLinear


def test_the_search_needs_no_values():
    """A model of shapes, into which a checkpoint is loaded."""
    model = nnx.eval_shape(lambda: Prepared(lambda model, x: model.stem(model.norm(x))))
    assert tract_nnx.apply_tract(model) == "stem"
    assert type(model.stem) is tract_nnx.TrActConv


class Embedded(nnx.Module):
    def __init__(self):
        self.project = nnx.LinearGeneral(3, 4, rngs=nnx.Rngs(0))
        self.head = nnx.Linear(4, 2, rngs=nnx.Rngs(0))

    def __call__(self, x):
        return self.head(self.project(x))


class Special(nnx.Conv):
    pass


def refuse(x):
    raise ValueError("not an image")


@pytest.mark.parametrize(
    ("model", "options", "error", "message"),
    [
        (3, {}, TrActTypeError, "apply_tract takes a flax.nnx.Module"),
        (Stem(nnx.Rngs(0)), {"lam": -1}, TrActValueError, "lam=-1 is out of range"),
        (Stem(nnx.Rngs(0)), {"center": "x"}, TrActValueError, "center='x' is not accepted"),
        (
            Stem(nnx.Rngs(0)),
            {"layer": "x"},
            TrActValueError,
            "has no layer 'x'; its layers are 'body'",
        ),
        (
            nnx.Sequential(refuse, nnx.Linear(5, 4, rngs=nnx.Rngs(0))),
            {},
            FirstLayerNotFoundError,
            r"failed before any layer was reached \(not an image\); pass example_input=",
        ),
        (
            nnx.Sequential(nnx.relu),
            {},
            FirstLayerNotFoundError,
            "ran without reaching an nnx.Linear or nnx.Conv; pass example_input=",
        ),
        (
            Embedded(),
            {},
            UnsupportedLayerError,
            "takes an nnx.Linear or nnx.Conv; got LinearGeneral",
        ),
        (Special(3, 4, (3, 3), rngs=nnx.Rngs(0)), {}, UnsupportedLayerError, "got Special"),
        (
            tract_nnx.TrActConv(3, 4, (3, 3), rngs=nnx.Rngs(0)),
            {},
            UnsupportedLayerError,
            r"TrActConv already trains with TrAct \(lam=0.1\)",
        ),
        (
            nnx.Conv(3, 4, (3, 3), use_bias=False, rngs=nnx.Rngs(0)),
            {"center": True},
            UnsupportedLayerError,
            "Conv has no bias, but center=True",
        ),
    ],
)
def test_a_model_that_cannot_be_changed_is_left_alone(model, options, error, message):
    with pytest.raises(error, match=message):
        tract_nnx.apply_tract(model, **options)
    if isinstance(model, Stem):
        assert type(model.stem) is nnx.Conv
