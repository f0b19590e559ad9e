"""The cases of ``trainact bench --jax``, on a tiny network."""

import pytest

pytest.importorskip("jaxlib", reason="bench --jax needs jax")
pytest.importorskip("flax", reason="bench --jax needs flax")
pytest.importorskip("optax", reason="bench --jax needs optax")
pytest.importorskip("rich", reason="the lab's tables need rich")

import jax
import jax.numpy as jnp
from flax import nnx

from trainact.lab.cost.jax_bench import STEPS, StepCase


class Tiny(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.stem = nnx.Conv(3, 4, (3, 3), rngs=rngs)
        self.head = nnx.Linear(4, 10, rngs=rngs)

    def __call__(self, x):
        return self.head(nnx.relu(self.stem(x)).mean((1, 2)))


@pytest.mark.slow
def test_a_step_trains_plain_and_with_tract():
    work = StepCase("tiny", Tiny, (10, 8, 8, 3)).set_up(jnp.float32)
    for name in ("plain", "trainact"):
        first, second = float(work.variants[name]()), float(work.variants[name]())
        assert second < first, name
    (grad,) = work.extra()
    assert grad.shape == (3, 3, 3, 4)
    assert work.input_bytes == 10 * 8 * 8 * 3 * 4


@pytest.mark.parametrize("case", STEPS, ids=lambda case: case.name)
def test_a_network_gives_logits(case):
    graph, state = nnx.split(nnx.eval_shape(lambda: case.make(nnx.Rngs(0))))
    images = jax.ShapeDtypeStruct(case.shape, jnp.float32)
    logits = jax.eval_shape(lambda state, x: nnx.merge(graph, state)(x), state, images)
    assert logits.shape == (case.shape[0], 10)
