"""What TrAct adds to a training step, counted in multiply-adds on shapes alone.

A layer with groups g, n inputs per output, m outputs and b rows (output positions of all images):

    second moment    b g n(n+1)/2    where patches do not overlap: one half of the symmetric product
                     b g n²          where they do: each row with itself, or, if that is less,
                     b g C² s s' k' (h + 2k - 2)    by lines, h at once: C channels of a group,
                                     strides s, s' and kernel sizes k, k' of the first and the last
                                     dimension (large batches; small ones take rows)
    factorization    g n³/3
    two solves       n² m

With fewer rows than inputs (b < n) the b × b system takes the place of the n × n one: the same
sums with b and n exchanged, and 2 b n m for the products around the solve. A step of the model is
three forwards: one, and a backward of twice its cost.
"""

import copy
import math
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from trainact.example_inputs import Call, list_example_inputs
from trainact.first_layer import find_first_layers
from trainact.overlapping_patches import LINE_ROWS
from trainact.rows import PlainLayer, count_rows, patches_of_layer
from trainact.torch_internals import TorchDispatchMode, tree_leaves, tree_map

__all__ = ["Cost", "FirstLayer", "count_extra", "count_forward", "estimate_cost"]

BATCH = 128
"""Images in the step whose cost is estimated."""


@dataclass(frozen=True)
class FirstLayer:
    """One first layer, seen with one image."""

    name: str
    layer: str
    """As it prints."""
    num_inputs: int
    """n"""
    num_outputs: int
    """m"""
    rows_per_image: int
    """b of a batch of one"""
    extra: float
    """TrAct's multiply-adds in a step."""


@dataclass(frozen=True)
class Cost:
    """A model's first layers and what TrAct would add to a step of it."""

    layers: tuple[FirstLayer, ...]
    batch: int
    forward: float
    """Multiply-adds of the model's forward of one image."""
    complete: bool
    """Whether that forward ran to its end on shapes alone; if not, ``ratio`` is an upper bound."""

    @property
    def ratio(self) -> float:
        """TrAct's multiply-adds over those of the model's forward and backward."""
        if not self.forward:
            return math.inf
        return sum(layer.extra for layer in self.layers) / (3 * self.batch * self.forward)

    def __str__(self) -> str:
        return f"{'' if self.complete else '< '}{100 * self.ratio:.2g} %"


def count_extra(layer: PlainLayer, num_rows: int) -> float:
    """Return the multiply-adds that TrAct adds for ``num_rows`` rows; see the module's table."""
    groups = getattr(layer, "groups", 1)
    n, m, b = math.prod(layer.weight.shape[1:]), layer.weight.shape[0], num_rows
    if b < n:
        return groups * (b * (b + 1) / 2 * n + b**3 / 3) + b * b * m + 2 * b * n * m
    return groups * (b * _count_products(layer, n) + n**3 / 3) + n * n * m


def _count_products(layer: PlainLayer, num_inputs: int) -> float:
    """Return the multiply-adds of the second moment for one row of one group."""
    patches = patches_of_layer(layer)
    kernel, stride, dilation = patches.kernel_size, patches.stride, patches.dilation
    spans = (d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True))
    if all(span <= step for span, step in zip(spans, stride, strict=True)):
        return num_inputs * (num_inputs + 1) / 2
    if any(step > 1 for step in dilation):
        return num_inputs**2
    lines, lines_stride = (kernel[0], stride[0]) if len(kernel) > 1 else (1, 1)
    channels = num_inputs // (lines * kernel[-1])  # in three dimensions, times the middle one
    leading = channels * min(stride[-1], kernel[-1])
    at_once = max(1, LINE_ROWS // leading)
    pairs = leading * channels * kernel[-1] * (at_once + 2 * lines - 2)
    return min(num_inputs**2, lines_stride * pairs)


def estimate_cost(
    model: nn.Module,
    names: list[str] | None = None,
    *,
    example_input: Any = None,
    batch: int = BATCH,
) -> Cost:
    """Count, on a copy without values, a forward of one image and what TrAct would add to it."""
    names = find_first_layers(model, example_input) if names is None else names
    shell = copy.deepcopy(model).to("meta").eval().requires_grad_(False)
    layers = {name: shell.get_submodule(name) for name in names}
    best: tuple[bool, float, dict[str, int]] = (False, 0.0, {})
    for call in list_example_inputs(shell, example_input):
        counted = _count_forward(shell, call, layers)
        if counted[2] and counted[:2] > best[:2]:
            best = counted
        if best[0]:
            break
    complete, forward, rows = best
    images = _count_images(call)
    seen = [
        _describe(name, layer, rows.get(name, 0) // images, batch) for name, layer in layers.items()
    ]
    return Cost(tuple(seen), batch, forward / images, complete)


def count_forward(model: nn.Module, images: Any) -> float | None:
    """Return the multiply-adds of a forward of ``images`` on the meta device.

    None where shapes alone do not carry the model to its end. The counter of torch, which also
    keeps count by module, takes several times as long.
    """
    counter = _OperatorCounter()
    try:
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
            model(images)
    except Exception:
        return None
    return counter.flops / 2


class _OperatorCounter(TorchDispatchMode):
    """Adds up the floating-point operations of every operator that torch has a formula for."""

    flops = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            self.flops += formula(*args, **(kwargs or {}), out_val=output)
        return output


def _count_forward(
    model: nn.Module, call: Call, layers: dict[str, nn.Module]
) -> tuple[bool, float, dict[str, int]]:
    """Return whether the forward ended, its multiply-adds so far, and the rows of ``layers``."""
    rows: dict[str, int] = {}

    def watch(name: str) -> Any:
        def hook(layer: Any, args: tuple[Any, ...], output: Any) -> None:
            rows[name] = rows.get(name, 0) + count_rows(args[0], patches_of_layer(layer))

        return hook

    handles = [layer.register_forward_hook(watch(name)) for name, layer in layers.items()]
    counter = FlopCounterMode(display=False)
    args, kwargs = tree_map(_to_meta, call)
    try:
        with (
            torch.no_grad(),
            warnings.catch_warnings(),
            sdpa_kernel(SDPBackend.MATH),
            counter,
        ):
            warnings.simplefilter("ignore")
            model(*args, **kwargs)
    except Exception:  # shapes alone do not carry every model to its end
        return False, counter.get_total_flops() / 2, rows
    finally:
        for handle in handles:
            handle.remove()
    return True, counter.get_total_flops() / 2, rows


def _describe(name: str, layer: Any, rows: int, batch: int) -> FirstLayer:
    return FirstLayer(
        name=name,
        layer=repr(layer),
        num_inputs=math.prod(layer.weight.shape[1:]),
        num_outputs=layer.weight.shape[0],
        rows_per_image=rows,
        extra=count_extra(layer, rows * batch),
    )


def _to_meta(value: Any) -> Any:
    return value.to("meta") if isinstance(value, Tensor) else value


def _count_images(call: Call) -> int:
    first = next(leaf for leaf in tree_leaves(call) if isinstance(leaf, Tensor))
    return first.shape[0] if first.dim() > 3 else 1
