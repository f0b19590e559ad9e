"""Rules that change the gradient of the first layer's weight before the optimizer steps.

Symbols are those of :mod:`trainact.preconditioner`: G is the plain weight gradient, shape [m, n],
g_b the bias gradient, shape [m], x the rows and b their number.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainact.lab.recipes.recipe import Recipe
from trainact.lab.training.first_layer.row_moments import (
    Moments,
    Reduce,
    RowMoments,
    find_layers,
    find_moment_dtype,
    make_empty,
    measure_rows,
    sum_moment_over_ranks,
    visit_inputs,
)
from trainact.options import widest_dtype
from trainact.preconditioner import precondition
from trainact.rows import PlainLayer, patches_of_layer, unfold_in_chunks
from trainact.second_moment import SecondMoment

__all__ = [
    "Centralised",
    "GradientRule",
    "Mac",
    "NormPreserving",
    "choose_rho",
    "make_gradient_rule",
    "measure_rows_with_ones",
]

RHO_OVERLAPPING, RHO_PATCHES = 1.0, 3.0
"""MAC's damping ρ of convolutions whose patches overlap, and of all other layers."""

ReadImages = Callable[[], Iterable[Tensor]]
"""Returns this rank's training images in batches [N, C, H, W], as the network receives them."""


class GradientRule(ABC):
    """A rule for the gradients of some layers."""

    def __init__(self, layers: Sequence[PlainLayer]) -> None:
        self.layers = layers

    @torch.no_grad()
    def apply(self) -> None:
        """Change the layers' gradients in place.

        Call this once per step on every rank, when the gradient is that of the whole batch: after
        the last backward, the exchange between ranks and the unscaling of fp16.
        """
        self.prepare()
        for layer in self.layers:
            if layer.weight.grad is not None:
                self.change(layer)

    def prepare(self) -> None:
        """Do what is needed once per step, whether or not a layer has a gradient."""
        return

    @abstractmethod
    def change(self, layer: PlainLayer) -> None:
        """Change the gradient of one layer in place."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint must hold; every rank has the same."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        del state


class Centralised(GradientRule):
    """Gradient centralisation: G minus its mean over the inputs of each output.

    ΔW = G (I - 11ᵀ/n). The bias keeps its gradient.
    """

    def change(self, layer: PlainLayer) -> None:
        """Subtract each output's mean."""
        grad = _read_grad(layer.weight)
        grad.sub_(grad.mean(dim=tuple(range(1, grad.dim())), keepdim=True))


class NormPreserving(GradientRule):
    """TrAct's direction with the norm of the plain gradient.

    ΔW = T |G| / |T| with T = G (xᵀx/b + λI)⁻¹ and the Frobenius norm, for each layer. The rows are
    those of the whole batch: all micro-batches and all ranks. The bias keeps its gradient.
    """

    def __init__(self, layers: Sequence[PlainLayer], rows: RowMoments, lam: float) -> None:
        super().__init__(layers)
        self.rows, self.lam = rows, lam
        self.moments: Moments = {}

    def prepare(self) -> None:
        """Take the rows of the step."""
        self.moments = self.rows.take()

    def change(self, layer: PlainLayer) -> None:
        """Replace the gradient by TrAct's, scaled."""
        grad = _read_grad(layer.weight)
        tract = precondition(grad, self.moments[layer.weight], self.lam)
        tiny = torch.finfo(grad.dtype).tiny  # a zero gradient stays zero
        grad.copy_(tract * (grad.norm() / tract.norm().clamp(min=tiny)))


class Mac(GradientRule):
    """MAC's rule for the first layer, with the second moment of the whole training set.

    [ΔW, Δb] = [G, g_b] (E[x̃ᵀx̃] + ρI)⁻¹ with x̃ = [x, 1]; without a trained bias x̃ = x. The mean is
    over all training images, without augmentation. It is measured in the first step and then fixed.
    Each group of a convolution has its own.
    """

    def __init__(
        self,
        layers: Sequence[PlainLayer],
        network: nn.Module,
        read_images: ReadImages,
        moment_dtype: torch.dtype | None,
        reduce: Reduce,
    ) -> None:
        super().__init__(layers)
        self.network, self.read_images = network, read_images
        self.moment_dtype, self.reduce = moment_dtype, reduce
        self.moments: list[SecondMoment] = []

    def prepare(self) -> None:
        """Measure the second moments, unless this was done before."""
        if self.moments:
            return
        parts = {layer: make_empty(layer, ones=_trains_bias(layer)) for layer in self.layers}

        def add(layer: PlainLayer, x: Tensor) -> None:
            measure = measure_rows_with_ones if _trains_bias(layer) else measure_rows
            parts[layer].add_(measure(layer, x, self.moment_dtype))

        visit_inputs(self.network, self.layers, self.read_images(), add)
        self.moments = [sum_moment_over_ranks(parts[layer], self.reduce) for layer in self.layers]

    def change(self, layer: PlainLayer) -> None:
        """Precondition weight and bias together."""
        moment = self.moments[self.layers.index(layer)]
        weight, bias, rho = layer.weight, layer.bias, choose_rho(layer)
        grad = _read_grad(weight)
        if bias is None or not _trains_bias(layer):
            grad.copy_(precondition(grad, moment, rho))
            return
        both = torch.cat([grad.flatten(1), _read_grad(bias)[:, None]], dim=1)
        both = precondition(both, moment, rho)
        grad.copy_(both[:, :-1].reshape(grad.shape))
        _read_grad(bias).copy_(both[:, -1])

    def state_dict(self) -> dict[str, Any]:
        """Return Σ x̃ᵀx̃ and Σ b of each layer."""
        return {"moments": [[moment.total, moment.num_rows] for moment in self.moments]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with the second moments of a checkpoint."""
        device = self.layers[0].weight.device
        self.moments = [
            SecondMoment(total.to(device), num_rows.to(device))
            for total, num_rows in state["moments"]
        ]


def make_gradient_rule(
    recipe: Recipe,
    network: nn.Module,
    names: Iterable[str],
    read_images: ReadImages,
    reduce: Reduce,
) -> GradientRule | None:
    """Return the recipe's rule for the named layers, None if it has none.

    Raises:
        UnsupportedLayerError: the rule cannot be used with one of the layers.
    """
    name = recipe.optimizer.first_layer_rule
    setting = f"optimizer.first_layer_rule={name!r}"
    if name == "none":
        return None
    if name == "centralised":
        return Centralised(find_layers(network, names, setting))
    layers = find_layers(network, names, setting, needs_rows=True)
    moment_dtype = find_moment_dtype(recipe.tract)
    if name == "mac":
        return Mac(layers, network, read_images, moment_dtype, reduce)
    return NormPreserving(layers, RowMoments(layers, moment_dtype, reduce), recipe.tract.lam)


def choose_rho(layer: PlainLayer) -> float:
    """Return MAC's damping ρ for a layer.

    >>> choose_rho(nn.Conv2d(3, 8, 3)), choose_rho(nn.Conv2d(3, 8, 4, stride=4))
    (1.0, 3.0)
    """
    patches = patches_of_layer(layer)
    spans = [d * (k - 1) + 1 for k, d in zip(patches.kernel_size, patches.dilation, strict=True)]
    overlaps = any(step < span for step, span in zip(patches.stride, spans, strict=True))
    return RHO_OVERLAPPING if overlaps else RHO_PATCHES


def measure_rows_with_ones(
    layer: PlainLayer, x: Tensor, moment_dtype: torch.dtype | None
) -> SecondMoment:
    """Return Σ x̃ᵀx̃, shape [g, n+1, n+1], of the rows x̃ = [x, 1], and their number."""
    moment = measure_rows(layer, x, moment_dtype)
    wide = widest_dtype(x.device, moment.total.dtype)
    sums = torch.zeros(moment.total.shape[:2], dtype=wide, device=x.device)
    for chunk in unfold_in_chunks(x, patches_of_layer(layer)):
        sums += chunk.sum(1, dtype=wide)
    total = F.pad(moment.total.to(wide), (0, 1, 0, 1))
    total[:, -1, :-1] = total[:, :-1, -1] = sums
    total[:, -1, -1] = moment.num_rows
    return SecondMoment(total, moment.num_rows)


def _trains_bias(layer: PlainLayer) -> bool:
    return layer.bias is not None and layer.bias.requires_grad


def _read_grad(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad
