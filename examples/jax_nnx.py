"""A small Flax NNX network on crops of eight photographs, plain and with TrAct.

pip install 'trainact[lab,jax]' && python examples/jax_nnx.py --steps 300
"""

import argparse
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from trainact.jax.nnx import apply_tract
from trainact.lab.data.photos import CLASSES, draw_crops


class Network(nnx.Module):
    """Two convolutions and a linear layer."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        """Build it with random weights."""
        self.stem = nnx.Conv(3, 32, (3, 3), rngs=rngs)
        self.body = nnx.Conv(32, 64, (3, 3), strides=2, rngs=rngs)
        self.head = nnx.Linear(64, len(CLASSES), rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return logits of images [N, 32, 32, 3]."""
        return self.head(nnx.relu(self.body(nnx.relu(self.stem(x)))).mean((1, 2)))


def compute_loss(model: Network, images: jax.Array, labels: jax.Array) -> jax.Array:
    """Return the cross-entropy."""
    return optax.softmax_cross_entropy_with_integer_labels(model(images), labels).mean()


@nnx.jit
def take_step(
    model: Network, optimizer: nnx.Optimizer, images: jax.Array, labels: jax.Array
) -> jax.Array:
    """Change the model in place, and return the loss."""
    loss, grads = nnx.value_and_grad(compute_loss)(model, images, labels)
    optimizer.update(model, grads)
    return loss


def load_photos() -> list[tuple[jax.Array, jax.Array]]:
    """Return the training and the test images, standardised and channels-last, with labels."""
    crops = draw_crops(train=2048, test=512)
    parts = []
    for name in ("train", "test"):
        images = crops[name].images.permute(0, 2, 3, 1).numpy().astype(np.float32)
        parts.append((jnp.asarray((images / 255 - 0.45) / 0.25), jnp.asarray(crops[name].labels)))
    return parts


def draw_batches(count: int, steps: int, size: int = 64) -> Iterator[np.ndarray]:
    """Yield the indices of random batches, the same in each run."""
    random = np.random.default_rng(0)
    for _ in range(steps):
        yield random.choice(count, size, replace=False)


def train(tract: bool, steps: int) -> list[float]:
    """Train plain or with TrAct, print the accuracy, and return the losses."""
    (images, labels), (test_images, test_labels) = load_photos()
    model = Network(nnx.Rngs(0))
    name = "plain"
    if tract:
        name = f"TrAct on {apply_tract(model)}"  # the only line that is new
    optimizer = nnx.Optimizer(model, optax.sgd(0.05, momentum=0.9), wrt=nnx.Param)
    losses = [
        float(take_step(model, optimizer, images[batch], labels[batch]))
        for batch in draw_batches(len(images), steps)
    ]
    correct = model(test_images).argmax(1) == test_labels
    print(f"{name}: loss {losses[0]:.3f} -> {losses[-1]:.3f}, test accuracy {correct.mean():.1%}")
    return losses


def main(argv: Sequence[str] | None = None) -> list[float]:
    """Train twice, and return the losses with TrAct."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    steps = parser.parse_args(argv).steps
    train(tract=False, steps=steps)
    return train(tract=True, steps=steps)


if __name__ == "__main__":
    main()
