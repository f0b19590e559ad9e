"""Multiply-adds counted from shapes: a model's forward, and what TrAct adds to a training step.

For a layer with g groups, n inputs per output, m outputs and b rows (output positions of the whole
batch), TrAct adds:

    second moment    b g n(n+1)/2    patches do not overlap: half of the symmetric product
                     b g n²          patches overlap, by unfolding, or, if that is less,
                     b g C² s s' k' (h + 2k - 2)    by lines, h at a time: C channels per group,
                                     strides s, s' and kernel sizes k, k' of the first and the last
                                     dimension (large batches; small ones are unfolded)
    factorization    g n³/3
    two solves       n² m

With fewer rows than inputs (b < n), a b × b system replaces the n × n one: the same terms with b
and n exchanged, plus 2 b n m for the products around the solve. A training step of the model counts
as three forwards, because a backward costs about two.
"""

import copy
import math
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import flop_registry

from trainact.example_inputs import Call, list_example_inputs
from trainact.first_layer import find_first_layers
from trainact.lab.cost.defaults import BATCH
from trainact.lab.models.detection.faster_rcnn import (
    RATIOS,
    STAGES,
    WIDTH,
    FasterRcnnFields,
    VggBackbone,
    VggHead,
)
from trainact.lab.models.zoos import build_on_meta, copy_to_meta
from trainact.lab.schema import build_table
from trainact.overlapping_patches import LEFT_HEIGHT
from trainact.rows import PlainLayer, count_rows, patches_of_layer
from trainact.torch_internals import TorchDispatchMode, tree_leaves

__all__ = [
    "LayerCost",
    "ModelCost",
    "count_detector",
    "count_extra",
    "count_forward",
    "estimate_cost",
]


@dataclass(frozen=True)
class LayerCost:
    """One first layer and TrAct's work in it."""

    name: str
    layer: str  # its repr
    num_inputs: int  # n
    num_outputs: int  # m
    rows_per_image: int  # b for a batch of one image
    extra: float  # multiply-adds that TrAct adds to a training step


@dataclass(frozen=True)
class ModelCost:
    """A model's first layers and TrAct's share of a training step."""

    layers: tuple[LayerCost, ...]
    batch: int
    forward: float  # multiply-adds of the model's forward for one image
    complete: bool  # if the forward failed on the meta device, ``ratio`` is an upper bound

    @property
    def ratio(self) -> float:
        """TrAct's multiply-adds divided by those of the model's forward and backward."""
        if not self.forward:
            return math.inf
        return sum(layer.extra for layer in self.layers) / (3 * self.batch * self.forward)

    def __str__(self) -> str:
        return f"{'' if self.complete else '< '}{100 * self.ratio:.2g} %"


def count_extra(layer: PlainLayer, num_rows: int) -> float:
    """Return TrAct's multiply-adds for ``num_rows`` rows; see the module's docstring."""
    groups = getattr(layer, "groups", 1)
    n, m, b = math.prod(layer.weight.shape[1:]), layer.weight.shape[0], num_rows
    if b < n:
        return groups * (b * (b + 1) / 2 * n + b**3 / 3) + b * b * m + 2 * b * n * m
    return groups * (b * _count_products(layer, n) + n**3 / 3) + n * n * m


def _count_products(layer: PlainLayer, num_inputs: int) -> float:
    """Return the multiply-adds of the second moment, per row and group."""
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
    at_once = max(1, LEFT_HEIGHT // leading)
    pairs = leading * channels * kernel[-1] * (at_once + 2 * lines - 2)
    return min(num_inputs**2, lines_stride * pairs)


def estimate_cost(
    model: nn.Module,
    names: list[str] | None = None,
    *,
    example_input: Any = None,
    batch: int = BATCH,
) -> ModelCost:
    """Count one image's forward and TrAct's work on a copy of the model on the meta device.

    The first layers and an example input are searched for by default; ``batch`` is the number of
    images in a training step.
    """
    names = find_first_layers(model, example_input) if names is None else names
    shell = copy.deepcopy(model).to("meta").eval().requires_grad_(False)
    layers: dict[str, Any] = {name: shell.get_submodule(name) for name in names}
    best: tuple[bool, float, dict[str, int]] = (False, 0.0, {})
    for call in list_example_inputs(shell, example_input):
        counted = _count_with_rows(shell, call, layers)
        if counted[2] and counted[:2] > best[:2]:
            best = counted
        if best[0]:
            break
    complete, forward, rows = best
    images = _count_images(call)
    costs = []
    for name, layer in layers.items():
        weight, per_image = layer.weight, rows.get(name, 0) // images
        inputs, extra = math.prod(weight.shape[1:]), count_extra(layer, per_image * batch)
        costs.append(LayerCost(name, repr(layer), inputs, len(weight), per_image, extra))
    return ModelCost(tuple(costs), batch, forward / images, complete)


def count_forward(model: nn.Module, images: Any) -> float | None:
    """Return the multiply-adds of a forward on the meta device, or None where it fails there."""
    complete, work = _count_call(model, (images,), {})
    return work if complete else None


def count_detector(
    arguments: dict[str, Any], num_classes: int, image_size: int
) -> tuple[float, float]:
    """Return the multiply-adds of a Faster R-CNN's forward for one image, in training and testing.

    The meta device cannot run the whole detector, so its parts are added up. The image has sides of
    3 : 4, as most of VOC2007, the short one with ``image_size`` pixels. The classes do not include
    the background. The head sees the regions of the loss in training, and all proposals in testing.

    >>> train, test = count_detector({}, 20, 600)
    >>> f"{train:.4g} {test:.4g}"
    '1.664e+11 1.87e+11'
    """
    fields: FasterRcnnFields = build_table(FasterRcnnFields, arguments, "model.arguments")
    backbone = build_on_meta(lambda: VggBackbone(fields.width))
    channels = STAGES[-1][0] * fields.width // WIDTH
    head = build_on_meta(lambda: VggHead(channels, fields.hidden, fields.dropout))
    width = min(image_size * 4 // 3, fields.longest)
    image = torch.zeros(1, 3, image_size, width, device="meta")
    convolutions = count_forward(backbone, image)
    assert convolutions is not None
    anchors = len(fields.anchors) * len(RATIOS)
    proposing = backbone(image)[0, 0].numel() * (9 * channels**2 + channels * anchors * 5)
    linear = sum(p.numel() for p in head.parameters() if p.ndim == 2)
    region = linear + fields.hidden * 5 * (num_classes + 1)
    regions = fields.regions_per_image, fields.test_proposals[1]
    train, test = (convolutions + proposing + region * number for number in regions)
    return train, test


def _count_with_rows(
    model: nn.Module, call: Call, layers: dict[str, Any]
) -> tuple[bool, float, dict[str, int]]:
    """Return whether the forward ran to its end, its multiply-adds, and the rows of ``layers``."""
    rows: dict[str, int] = {}

    def watch(name: str) -> Any:
        def hook(layer: Any, args: tuple[Any, ...], output: Any) -> None:
            rows[name] = rows.get(name, 0) + count_rows(args[0], patches_of_layer(layer))

        return hook

    handles = [layer.register_forward_hook(watch(name)) for name, layer in layers.items()]
    complete, work = _count_call(model, *copy_to_meta(call))
    for handle in handles:
        handle.remove()
    return complete, work, rows


def _count_call(model: nn.Module, args: Any, kwargs: Any) -> tuple[bool, float]:
    """Return whether a forward ran to its end, and its multiply-adds."""
    counter = _OperatorCounter()
    try:
        with torch.no_grad(), warnings.catch_warnings(), sdpa_kernel(SDPBackend.MATH), counter:
            warnings.simplefilter("ignore")
            model(*args, **kwargs)
    except Exception:  # some models read values, which the meta device does not have
        return False, counter.flops / 2
    return True, counter.flops / 2


class _OperatorCounter(TorchDispatchMode):
    """Adds up the floating-point operations of every operator that torch has a formula for.

    Several times faster than torch's ``FlopCounterMode``, which also counts per module.
    """

    flops = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            self.flops += formula(*args, **(kwargs or {}), out_val=output)
        return output


def _count_images(call: Call) -> int:
    first = next(leaf for leaf in tree_leaves(call) if isinstance(leaf, Tensor))
    return first.shape[0] if first.dim() > 3 else 1
