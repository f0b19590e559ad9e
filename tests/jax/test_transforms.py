"""JAX's transformations of a step with TrAct."""

import pytest

pytest.importorskip("jaxlib", reason="trainact.jax needs jax")

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import AxisType, PartitionSpec

from jax_cases import assert_near, count_operators
from slow_cases import mark_slow
from trainact.errors import TrActValueError
from trainact.jax import second_moment, tract_weight

RANDOM = np.random.default_rng(0)
IMAGES = jnp.asarray(RANDOM.standard_normal((8, 12, 12, 3)), jnp.float32)
TARGETS = jnp.asarray(RANDOM.standard_normal((8, 12, 12, 4)), jnp.float32)
WEIGHT = jnp.asarray(RANDOM.standard_normal((3, 3, 3, 4)), jnp.float32)
DIMENSIONS = ("NHWC", "HWIO", "NHWC")


def forward(weight, images, tract=True):
    if tract:
        weight = tract_weight(weight, second_moment(images, (3, 3), padding="SAME"))
    return lax.conv_general_dilated(images, weight, (1, 1), "SAME", dimension_numbers=DIMENSIONS)


def loss(weight, images=IMAGES, targets=TARGETS):
    return jnp.square(jnp.tanh(forward(weight, images)) - targets).mean()


GRADIENT = jax.grad(loss)(WEIGHT)


def test_jit_and_checkpoint_do_not_change_the_gradient():
    assert_near(jax.jit(jax.grad(loss))(WEIGHT), GRADIENT, 1e-6)
    assert_near(jax.grad(jax.checkpoint(loss))(WEIGHT), GRADIENT, 1e-6)


@pytest.mark.slow
def test_an_ensemble_has_a_second_moment_each():
    weights, images = jnp.stack([WEIGHT, 2 * WEIGHT]), jnp.stack([IMAGES, IMAGES + 1])
    grads = jax.vmap(jax.grad(loss), (0, 0, None))(weights, images, TARGETS)
    for grad, weight, some in zip(grads, weights, images, strict=True):
        assert_near(grad, jax.grad(loss)(weight, some), 1e-5)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda mapped: jax.grad(lambda weight: mapped(weight).sum()),
        lambda mapped: jax.grad(lambda weight: jax.jit(mapped)(weight).sum()),
        lambda mapped: jax.jit(jax.grad(lambda weight: jax.checkpoint(mapped)(weight).sum())),
    ],
)
@pytest.mark.parametrize("inner", mark_slow([jax.jit(loss), loss]))
def test_samples_that_share_a_weight_need_the_name_of_their_axis(wrap, inner):
    def mapped(weight):
        return jax.vmap(lambda image, target: inner(weight, image[None], target))(IMAGES, TARGETS)

    assert mapped(WEIGHT).shape == (8,)
    with pytest.raises(TrActValueError, match="pass the same axis_name to the layer"):
        wrap(mapped)(WEIGHT)


def test_an_ensemble_of_samples_needs_the_name_of_their_axis_too():
    weights = jnp.stack([WEIGHT, 2 * WEIGHT])

    def mean(weight, axis_name=None):
        def sample(image):
            moment = second_moment(image, (3, 3), axis_name=axis_name)
            dense = tract_weight(weight, moment)
            return jnp.tanh(jnp.tensordot(image[:3, :3], dense, 3)).sum()

        return jax.vmap(sample, axis_name="batch")(IMAGES).mean()

    grads = jax.vmap(jax.grad(lambda weight: mean(weight, "batch")))(weights)
    for grad, weight in zip(grads, weights, strict=True):
        assert_near(grad, jax.grad(lambda weight: mean(weight, "batch"))(weight), 1e-5)
    for wrap in (lambda one: one, jax.jit):
        with pytest.raises(TrActValueError, match="pass the same axis_name to the layer"):
            wrap(jax.vmap(jax.grad(mean)))(weights)


@pytest.mark.slow
def test_gradients_of_single_samples_have_their_own_second_moment():
    grads = jax.vmap(jax.grad(loss), (None, 0, 0))(WEIGHT, IMAGES[:, None], TARGETS[:, None])
    for grad, image, target in zip(grads, IMAGES, TARGETS, strict=True):
        assert_near(grad, jax.grad(loss)(WEIGHT, image[None], target[None]), 1e-5)


@pytest.mark.parametrize("width", mark_slow([160, 12]))
def test_shard_map_needs_no_more_than_the_name_of_the_axis(width):
    mesh = jax.make_mesh((1,), ("batch",), axis_types=(AxisType.Auto,))
    images = jnp.asarray(RANDOM.standard_normal((2, 12, width, 3)), jnp.float32)

    def some_loss(weight, images, axis_name=None):
        moment = second_moment(images, (3, 3), padding="SAME", axis_name=axis_name)
        weight = tract_weight(weight, moment)
        z = lax.conv_general_dilated(images, weight, (1, 1), "SAME", dimension_numbers=DIMENSIONS)
        return jnp.square(z).mean()

    def take_gradient(weight, images):
        return jax.grad(lambda w: lax.pmean(some_loss(w, images, "batch"), "batch"))(weight)

    specs = (PartitionSpec(), PartitionSpec("batch"))
    mapped = jax.shard_map(take_gradient, mesh=mesh, in_specs=specs, out_specs=PartitionSpec())
    assert_near(jax.jit(mapped)(WEIGHT, images), jax.grad(some_loss)(WEIGHT, images), 1e-5)


@pytest.mark.slow
def test_a_scan_over_steps_is_the_loop():
    def step(weight, images):
        return weight - 0.1 * jax.grad(loss)(weight, images), None

    batches = jnp.stack([IMAGES, IMAGES[::-1] + 0.5, IMAGES * 2])
    scanned, _ = jax.jit(lambda weight: lax.scan(step, weight, batches))(WEIGHT)
    looped = WEIGHT
    for batch in batches:
        looped, _ = step(looped, batch)
    assert_near(scanned, looped, 1e-5)


@pytest.mark.slow
def test_donated_buffers_train_as_others_do():
    optimizer = optax.adam(1e-2)

    def step(weight, state):
        updates, state = optimizer.update(jax.grad(loss)(weight), state)
        return optax.apply_updates(weight, updates), state

    expected, _ = step(WEIGHT, optimizer.init(WEIGHT))
    donated = jax.jit(step, donate_argnums=(0, 1))
    weight, _ = donated(WEIGHT.copy(), optimizer.init(WEIGHT))
    assert_near(weight, expected, 1e-6)


def test_bfloat16_gradients_are_close():
    grad = jax.grad(loss)(WEIGHT.astype(jnp.bfloat16), IMAGES.astype(jnp.bfloat16), TARGETS)
    assert grad.dtype == jnp.bfloat16
    assert_near(grad, GRADIENT, 0.05)


@pytest.mark.parametrize("function", [forward, jax.checkpoint(forward)])
def test_compiled_inference_has_neither_moment_nor_solve(function):
    compiled = jax.jit(function).lower(WEIGHT, IMAGES).compile().as_text()
    plain = (
        jax.jit(lambda w, x: forward(w, x, tract=False)).lower(WEIGHT, IMAGES).compile().as_text()
    )
    assert count_operators(compiled) == count_operators(plain)
    training = jax.jit(jax.grad(loss)).lower(WEIGHT).compile().as_text()
    assert "cholesky" in training.lower() or "potrf" in training.lower()
