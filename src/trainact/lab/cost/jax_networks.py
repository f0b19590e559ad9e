"""Networks of ``trainact bench --jax`` in Flax NNX: ResNet-18 and ViT-S/16, as small as can be."""

from collections.abc import Callable

import jax
from flax import nnx

__all__ = ["ResNet18", "ViTSmall"]


class ResNet18(nnx.Module):
    """A ResNet-18; with a small stem, a 3 x 3 convolution with stride 1, for CIFAR."""

    def __init__(self, classes: int, *, small_stem: bool, rngs: nnx.Rngs) -> None:
        """Build it with random weights."""
        kernel, stride = ((3, 3), 1) if small_stem else ((7, 7), 2)
        padding = kernel[0] // 2
        self.stem = nnx.Conv(3, 64, kernel, stride, padding=padding, use_bias=False, rngs=rngs)
        self.norm = nnx.BatchNorm(64, rngs=rngs)
        widths = [64, 64, 128, 128, 256, 256, 512, 512]
        self.blocks = nnx.List(
            _Block(before, width, 1 + (width > before), rngs)
            for before, width in zip([64, *widths], widths, strict=False)
        )
        self.head = nnx.Linear(512, classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return logits [N, classes] of images [N, height, width, 3]."""
        x = nnx.relu(self.norm(self.stem(x)))
        x = nnx.max_pool(x, (3, 3), (2, 2), "SAME")
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((1, 2)))


class _Block(nnx.Module):
    def __init__(self, before: int, width: int, stride: int, rngs: nnx.Rngs) -> None:
        def conv(inputs: int, size: int, step: int) -> nnx.Conv:
            return nnx.Conv(inputs, width, (size, size), step, use_bias=False, rngs=rngs)

        self.conv1, self.norm1 = conv(before, 3, stride), nnx.BatchNorm(width, rngs=rngs)
        self.conv2, self.norm2 = conv(width, 3, 1), nnx.BatchNorm(width, rngs=rngs)
        self.shortcut = conv(before, 1, stride) if before != width else None

    def __call__(self, x: jax.Array) -> jax.Array:
        y = nnx.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return nnx.relu(y + (x if self.shortcut is None else self.shortcut(x)))


class ViTSmall(nnx.Module):
    """A ViT-S/16 for images of 224 pixels."""

    def __init__(self, classes: int, *, rngs: nnx.Rngs) -> None:
        """Build it with random weights."""
        self.stem = nnx.Conv(3, 384, (16, 16), 16, padding="VALID", rngs=rngs)
        self.positions = nnx.Param(0.02 * jax.random.normal(rngs.params(), (1, 196, 384)))
        self.blocks = nnx.List(_Transformer(384, rngs) for _ in range(12))
        self.norm = nnx.LayerNorm(384, rngs=rngs)
        self.head = nnx.Linear(384, classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return logits [N, classes] of images [N, 224, 224, 3]."""
        x = self.stem(x)
        x = x.reshape(len(x), -1, x.shape[-1]) + self.positions[...]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


class _Transformer(nnx.Module):
    def __init__(self, width: int, rngs: nnx.Rngs) -> None:
        self.norm1, self.norm2 = (nnx.LayerNorm(width, rngs=rngs) for _ in range(2))
        self.attention = nnx.MultiHeadAttention(6, width, decode=False, rngs=rngs)
        self.expand = nnx.Linear(width, 4 * width, rngs=rngs)
        self.project = nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.attention(self.norm1(x))
        activation: Callable[[jax.Array], jax.Array] = nnx.gelu
        return x + self.project(activation(self.expand(self.norm2(x))))
