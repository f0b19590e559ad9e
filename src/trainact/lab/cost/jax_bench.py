"""The measurements of ``trainact bench --jax``: compiled layers and steps, plain and with TrAct.

The layers are those of ``trainact bench``, on the same numbers of images. Times are compared as
there. The extra memory is what XLA reports for TrAct's own work, compiled alone.
"""

import importlib.metadata
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from torch import nn

from trainact.jax import second_moment, tract_weight
from trainact.jax.nnx import apply_tract
from trainact.lab.cost.bench import (
    JAX_FILE,
    Bench,
    Row,
    is_same_setup,
    make_table,
    read_jax_bench,
    write_record,
)
from trainact.lab.cost.cases import LAYERS
from trainact.lab.cost.jax_networks import ResNet18, ViTSmall
from trainact.lab.cost.timing import Work

__all__ = ["JaxBench"]

PACKAGES = ("jax", "jaxlib", "flax", "optax")
CLASSES = 10


@dataclass(frozen=True)
class JaxWork:
    """Functions to time, all on the same input."""

    variants: dict[str, Work]
    extra: Work
    extra_bytes: int
    input_bytes: int


@dataclass(frozen=True)
class LayerCase:
    """Forward and backward of a first layer, given as torch's layer and the shape of its input."""

    name: str
    layer: Any
    shape: tuple[int, ...]

    def set_up(self, dtype: Any) -> JaxWork:
        """Return what to time."""
        is_conv = isinstance(self.layer, nn.Conv2d)
        shape = (self.shape[0], *self.shape[2:], self.shape[1]) if is_conv else self.shape
        weight_shape = tuple(reversed(self.layer.weight.shape))
        arguments: dict[str, Any] = {}
        if isinstance(self.layer, nn.Conv2d):
            weight_shape = (*self.layer.kernel_size, *reversed(self.layer.weight.shape[:2]))
            sides = [(side, side) for side in self.layer.padding]
            arguments = {"strides": self.layer.stride, "padding": sides}

        def apply(x: Any, weight: Any, bias: Any) -> Any:
            if not arguments:
                return x @ weight + bias
            window, sides = arguments["strides"], arguments["padding"]
            spec = ("NHWC", "HWIO", "NHWC")
            return (
                jax.lax.conv_general_dilated(x, weight, window, sides, dimension_numbers=spec)
                + bias
            )

        def measure(x: Any) -> Any:
            return second_moment(x, weight_shape[:2] if is_conv else None, **arguments)

        @jax.jit
        def plain(x: Any, weight: Any, bias: Any, grad_z: Any) -> Any:
            z, pull = jax.vjp(lambda *values: apply(x, *values), weight, bias)
            return z, pull(grad_z)

        @jax.jit
        def tract(x: Any, weight: Any, bias: Any, grad_z: Any) -> Any:
            def forward(weight: Any, bias: Any) -> Any:
                return apply(x, tract_weight(weight, measure(x)), bias)

            z, pull = jax.vjp(forward, weight, bias)
            return z, pull(grad_z)

        x, weight = _draw(shape, 0, dtype), _draw(weight_shape, 1, dtype)
        bias = jnp.zeros(weight_shape[-1], dtype)
        grad_z = _draw(jax.eval_shape(apply, x, weight, bias).shape, 2, dtype)
        values = (x, weight, bias, grad_z)
        variants = {"plain": _wait(plain, *values), "trainact": _wait(tract, *values)}
        return JaxWork(variants, *_compile_extra(measure, x, weight), x.nbytes)


@dataclass(frozen=True)
class StepCase:
    """A whole training step with SGD: forward, backward, update."""

    name: str
    make: Callable[[nnx.Rngs], Any]
    shape: tuple[int, ...]

    def set_up(self, dtype: Any) -> JaxWork:
        """Return what to time."""
        images = _draw(self.shape, 0, dtype)
        labels = jnp.arange(len(images)) % CLASSES

        def loss(model: Any, images: Any, labels: Any) -> Any:
            logits = model(images).astype(jnp.float32)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        @nnx.jit
        def step(model: Any, optimizer: Any, images: Any, labels: Any) -> Any:
            value, grads = nnx.value_and_grad(loss)(model, images, labels)
            optimizer.update(model, grads)
            return value

        def prepare(*, tract: bool) -> Work:
            model = self.make(nnx.Rngs(0))
            cast = jax.tree.map(lambda one: one.astype(dtype), nnx.state(model, nnx.Param))
            nnx.update(model, cast)
            if tract:
                apply_tract(model, layer="stem")
            optimizer = nnx.Optimizer(model, optax.sgd(1e-4, momentum=0.9), wrt=nnx.Param)
            return _wait(step, model, optimizer, images, labels)

        stem = self.make(nnx.Rngs(0)).stem
        kernel, strides, padding = stem.kernel_size, stem.strides, stem.padding

        def measure(x: Any) -> Any:
            return second_moment(x, kernel, strides, padding)

        variants = {"plain": prepare(tract=False), "trainact": prepare(tract=True)}
        weight = stem.kernel[...].astype(dtype)
        return JaxWork(variants, *_compile_extra(measure, images, weight), images.nbytes)


STEPS = (
    StepCase(
        "CIFAR ResNet-18, batch 128",
        lambda rngs: ResNet18(CLASSES, small_stem=True, rngs=rngs),
        (128, 32, 32, 3),
    ),
    StepCase(
        "ResNet-18 at 224, batch 8",
        lambda rngs: ResNet18(CLASSES, small_stem=False, rngs=rngs),
        (8, 224, 224, 3),
    ),
    StepCase(
        "ViT-S/16 at 224, batch 4", lambda rngs: ViTSmall(CLASSES, rngs=rngs), (4, 224, 224, 3)
    ),
)


class JaxBench(Bench):
    """The same for JAX, on its default device."""

    def measure(self, sections: Sequence[str]) -> dict[str, Any]:
        """Measure layers and steps, and write the record after each case; it continues like others.

        Raises:
            TrActValueError: the existing record is damaged, or another kind of record.
        """
        path = self.folder / JAX_FILE
        here = {**self._begin_record("bench-jax"), "compiled": True, "quick": self.quick}
        versions = {name: importlib.metadata.version(name) for name in PACKAGES}
        here["environment"]["packages"] |= versions
        here["environment"] |= {"device": jax.default_backend(), "threads": os.cpu_count()}
        record = read_jax_bench(path)
        if record is None or not is_same_setup(record, here):
            record = here
        for section in (name for name in sections if name != "growth"):
            cases: Sequence[Any] = STEPS
            if section == "layer":
                cases = [LayerCase(case.name, case.make(), case.shape) for case in LAYERS]
            rows: list[Row] = record.setdefault(section, [])
            for row in self._measure_missing(section, cases, self._measure_case, rows):
                rows.append(row)
                write_record(record, path)
            self.console.print(make_table(section, rows))
        write_record(record, path)
        self.console.print(f"wrote {path}")
        return record

    def _measure_case(self, case: Any, rounds: int, advance: Callable[[], None]) -> Row:
        work = case.set_up(jnp.dtype(str(self.dtype).removeprefix("torch.")))
        return self._time_case(case, work, rounds, advance) | {
            "extra_bytes": work.extra_bytes,
            "input_bytes": work.input_bytes,
        }


def _compile_extra(measure: Callable[[Any], Any], x: Any, weight: Any) -> tuple[Work, int]:
    """Return TrAct's own work in the backward, and the bytes that it takes beside its arguments."""

    def run(x: Any, weight: Any, grad: Any) -> Any:
        return jax.vjp(lambda weight: tract_weight(weight, measure(x)), weight)[1](grad)

    values = (x, weight, _draw(weight.shape, 3, weight.dtype))
    compiled = jax.jit(run).lower(*values).compile()
    analysis: Any = compiled.memory_analysis()
    return _wait(compiled, *values), int(analysis.temp_size_in_bytes)


def _wait(function: Callable[..., Any], *values: Any) -> Work:
    return lambda: jax.block_until_ready(function(*values))


def _draw(shape: Sequence[int], seed: int, dtype: Any) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape, np.float32), dtype)
