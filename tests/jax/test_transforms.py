"""JAX's transformations of a step with TrAct."""

import pytest

pytest.importorskip("jaxlib", reason="trainact.jax needs jax")

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from jax_cases import assert_near
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


def test_an_ensemble_has_a_second_moment_each():
    weights, images = jnp.stack([WEIGHT, 2 * WEIGHT]), jnp.stack([IMAGES, IMAGES + 1])
    grads = jax.vmap(jax.grad(loss), (0, 0, None))(weights, images, TARGETS)
    for grad, weight, some in zip(grads, weights, images, strict=True):
        assert_near(grad, jax.grad(loss)(weight, some), 1e-5)


def test_a_scan_over_steps_is_the_loop():
    def step(weight, images):
        return weight - 0.1 * jax.grad(loss)(weight, images), None

    batches = jnp.stack([IMAGES, IMAGES[::-1] + 0.5, IMAGES * 2])
    scanned, _ = jax.jit(lambda weight: lax.scan(step, weight, batches))(WEIGHT)
    looped = WEIGHT
    for batch in batches:
        looped, _ = step(looped, batch)
    assert_near(scanned, looped, 1e-5)


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


def count_operators(text: str) -> dict[str, int]:
    """Return how often each operator occurs in a compiled program."""
    names = [
        line.split(" = ", 1)[1].split("(", 1)[0].split()[-1]
        for line in text.splitlines()
        if " = " in line
    ]
    return {name: names.count(name) for name in set(names)}
