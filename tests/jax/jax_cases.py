"""Layers in JAX beside the torch layers that `trainact.reference` takes, on the same numbers."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jaxlib", reason="trainact.jax needs jax")

import jax
import jax.numpy as jnp
import torch
from hypothesis import strategies as st
from torch import nn

from trainact import TrAct, reference

jax.config.update("jax_default_prng_impl", "unsafe_rbg")  # initial weights compile faster

CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


@dataclass(frozen=True)
class Geometry:
    """A dense layer (no kernel) or a convolution, and the shape of its input [N, *size, C]."""

    shape: tuple[int, ...]
    outputs: int = 4
    kernel: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    padding: Any = "VALID"
    dilation: tuple[int, ...] = ()
    groups: int = 1
    seed: int = 0
    values: dict[str, np.ndarray] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        random = np.random.default_rng(self.seed)
        dims = len(self.kernel)
        object.__setattr__(self, "strides", self.strides or (1,) * dims)
        object.__setattr__(self, "dilation", self.dilation or (1,) * dims)
        inputs = self.shape[-1] // self.groups
        values = {
            "x": random.standard_normal(self.shape) + 0.3,
            "weight": random.standard_normal((*self.kernel, inputs, self.outputs)),
            "bias": random.standard_normal(self.outputs),
        }
        object.__setattr__(self, "values", values)
        values["grad_z"] = random.standard_normal(self._output_shape())

    @property
    def arguments(self) -> dict[str, Any]:
        """Of `second_moment`, after the input."""
        if not self.kernel:
            return {}
        return {
            "kernel_size": self.kernel,
            "strides": self.strides,
            "padding": self.padding,
            "dilation": self.dilation,
            "feature_group_count": self.groups,
        }

    def apply(self, x: Any, weight: Any, bias: Any) -> Any:
        """Return z."""
        if not self.kernel:
            return x @ weight + bias
        spec = "HWD"[: len(self.kernel)]
        return (
            jax.lax.conv_general_dilated(
                x,
                weight,
                self.strides,
                self.padding,
                rhs_dilation=self.dilation,
                dimension_numbers=(f"N{spec}C", f"{spec}IO", f"N{spec}C"),
                feature_group_count=self.groups,
            )
            + bias
        )

    def _output_shape(self) -> tuple[int, ...]:
        v = self.values
        return jax.eval_shape(self.apply, v["x"], v["weight"], v["bias"]).shape

    def pad(self) -> np.ndarray:
        """Return the input padded or cropped, with NumPy alone."""
        x = self.values["x"]
        spans = [d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilation, strict=True)]
        sides = self.padding
        if isinstance(sides, str):
            sides = []
            for length, span, step in zip(x.shape[1:-1], spans, self.strides, strict=True):
                total = max(0, (math.ceil(length / step) - 1) * step + span - length)
                total = 0 if self.padding == "VALID" else total
                low = total - total // 2 if self.padding == "SAME_LOWER" else total // 2
                sides.append((low, total - low))
        for axis, (before, after) in enumerate(sides, start=1):
            stop = x.shape[axis] - max(0, -after)
            x = np.take(x, range(max(0, -before), max(max(0, -before), stop)), axis)
            width = [(0, 0)] * x.ndim
            width[axis] = (max(0, before), max(0, after))
            x = np.pad(x, width)
        return x

    def torch_layer(self) -> tuple[nn.Module, torch.Tensor]:
        """Return the layer of torch in float64, without padding, and its padded input."""
        weight = torch.from_numpy(self.values["weight"])
        if not self.kernel:
            layer = nn.Linear(*weight.shape).double()
            x = torch.from_numpy(self.values["x"])
        else:
            layer = CONVOLUTIONS[len(self.kernel)](
                self.shape[-1],
                self.outputs,
                self.kernel,
                self.strides,
                0,
                self.dilation,
                self.groups,
            ).double()
            x = torch.from_numpy(self.pad()).movedim(-1, 1)
        with torch.no_grad():
            layer.weight.copy_(weight.movedim((-1, -2), (0, 1)))
            layer.bias.copy_(torch.from_numpy(self.values["bias"]))
        return layer, x

    def expected(self, lam: float, **options: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the reference's gradients of weight and bias, in the layout of JAX."""
        layer, x = self.torch_layer()
        grad_z = torch.from_numpy(self.values["grad_z"])
        grad_z = grad_z.movedim(-1, 1) if self.kernel else grad_z
        grads = reference.tract_gradients_of_layer(layer, x, grad_z, lam, **options)
        weight, bias = (grad.detach() for grad in grads)
        return weight.movedim((0, 1), (-1, -2)).numpy(), bias.numpy()

    def train_core(self, lam: float, **options: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the gradients of the PyTorch core in float32, in the layout of JAX."""
        plain, x = self.torch_layer()
        layer = TrAct(plain.float(), lam, **options)
        grad_z = torch.from_numpy(self.values["grad_z"]).float()
        layer(x.float()).backward(grad_z.movedim(-1, 1) if self.kernel else grad_z)
        return layer.weight.grad.movedim((0, 1), (-1, -2)).numpy(), layer.bias.grad.numpy()

    def expected_moment(self) -> np.ndarray:
        """Return xᵀx/b from rows that the reference cuts out one by one."""
        layer, x = self.torch_layer()
        rows = reference.cut_patches(x, layer)
        if self.kernel:  # channels first become channels last
            rows = rows.unflatten(2, (-1, math.prod(self.kernel))).transpose(2, 3).flatten(2)
        return (rows.mT @ rows / max(1, rows.shape[1])).numpy()


DENSE = Geometry((20, 6))
GEOMETRIES = {
    "dense": DENSE,
    "dense-tokens": Geometry((3, 7, 6)),
    "dense-few-rows": Geometry((5, 16)),
    "conv1d": Geometry((4, 9, 2), 5, (3,), padding=[(1, 1)]),
    "conv-3x3-same": Geometry((4, 8, 7, 3), 5, (3, 3), padding="SAME"),
    "conv-7x7-stride-2": Geometry((3, 15, 14, 3), 5, (7, 7), (2, 2), [(3, 3), (3, 3)]),
    "conv-patches": Geometry((3, 12, 8, 3), 5, (4, 4), (4, 4)),
    "conv-few-rows": Geometry((2, 8, 8, 3), 5, (4, 4), (4, 4)),
    "conv-odd": Geometry((3, 9, 8, 2), 4, (2, 3), (3, 1), [(1, 0), (2, 1)], (1, 2)),
    "conv-cropped": Geometry((3, 9, 8, 2), 4, (3, 3), (1, 2), [(-1, 2), (1, -2)]),
    "conv-same-lower": Geometry((2, 8, 7, 3), 4, (4, 3), (2, 1), "SAME_LOWER"),
    "conv-groups": Geometry((3, 8, 8, 4), 6, (3, 3), groups=2),
    "conv-depthwise": Geometry((3, 8, 8, 3), 6, (3, 3), padding="SAME", groups=3),
    "conv-one-position": Geometry((1, 3, 3, 3), 4, (3, 3)),
    "conv-no-images": Geometry((0, 8, 8, 3), 4, (3, 3)),
    "conv3d": Geometry((3, 4, 6, 6, 2), 4, (2, 2, 2), (1, 2, 2), [(1, 1), (0, 0), (0, 0)]),
}


@st.composite
def geometries(draw, most_dimensions: int = 3) -> Geometry:
    """Draw a dense layer or a convolution that fits its input."""
    seed = draw(st.integers(0, 1000))
    if draw(st.integers(0, 3)) == 0:
        lead = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
        return Geometry((*lead, draw(st.integers(1, 9))), draw(st.integers(1, 5)), seed=seed)
    dims = draw(st.integers(1, most_dimensions))
    biggest = {1: 7, 2: 5, 3: 3}[dims]
    groups = draw(st.integers(1, 3))
    kernel, strides, dilation = (
        tuple(draw(st.integers(1, most)) for _ in range(dims)) for most in (biggest, 4, 2)
    )
    padding = draw(st.sampled_from(["VALID", "SAME", "SAME_LOWER", "pairs"]))
    if padding == "pairs":
        padding = [(draw(st.integers(-1, 3)), draw(st.integers(-1, 3))) for _ in range(dims)]
    spans = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    room = [2 if isinstance(padding, list) else 0] * dims
    size = [
        draw(st.integers(span + more, span + more + {1: 12, 2: 6, 3: 3}[dims]))
        for span, more in zip(spans, room, strict=True)
    ]
    channels = groups * draw(st.integers(1, 3))
    shape = (draw(st.integers(0, 3)), *size, channels)
    outputs = groups * draw(st.integers(1, 3))
    return Geometry(shape, outputs, kernel, strides, padding, dilation, groups, seed)


def assert_near(actual: Any, expected: Any, rtol: float = 1e-9) -> None:
    """Compare by the norm of the difference."""
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    assert actual.shape == expected.shape
    difference, bound = np.linalg.norm(actual - expected), rtol * np.linalg.norm(expected)
    assert difference <= bound + 1e-300, f"differs by {difference:.3g}, {bound:.3g} allowed"


def assert_gradients(
    actual: Any, expected: Any, geometry: Geometry, lam: float, rtol: float = 1e-8
) -> None:
    """Compare gradients of weight and bias; where all cancels, what is left is rounding over λ."""
    dust = 1e-2 * np.linalg.norm(geometry.values["grad_z"]) / lam
    for grad, wanted in zip(actual, expected, strict=True):
        grad = np.asarray(grad)
        assert grad.shape == wanted.shape
        assert np.linalg.norm(grad - wanted) <= rtol * (np.linalg.norm(wanted) + dust)


def as_jax(geometry: Geometry, dtype: Any) -> tuple[Any, ...]:
    """Return x, weight, bias and grad_z as arrays of JAX."""
    return tuple(
        jnp.asarray(geometry.values[name], dtype) for name in ("x", "weight", "bias", "grad_z")
    )


def count_operators(text: str) -> dict[str, int]:
    """Return how often each operator occurs in a compiled program."""
    names = [
        line.split(" = ", 1)[1].split("(", 1)[0].split()[-1]
        for line in text.splitlines()
        if " = " in line
    ]
    return {name: names.count(name) for name in set(names)}
