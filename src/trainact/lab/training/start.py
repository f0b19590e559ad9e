"""The start of the first layers: whitened or scaled filters, and weights that are not trained."""

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

from trainact import whiten
from trainact.errors import TrActValueError
from trainact.lab.data.images import Images, Standard
from trainact.lab.recipes.recipe import Recipe
from trainact.lab.training.batches import EvaluationBatches, Place
from trainact.lab.training.first_layer.row_moments import find_layers, visit_inputs
from trainact.options import widest_dtype
from trainact.reference import preactivations_as_rows
from trainact.rows import PlainLayer

__all__ = ["freeze_layers", "read_start_images", "start_layers"]


def start_layers(
    network: nn.Module, names: Sequence[str], recipe: Recipe, images: Iterator[Tensor]
) -> None:
    """Give the named layers the recipe's start, from batches of images [N, C, H, W]."""
    fields = recipe.model
    if fields.start == "scaled":
        layers = find_layers(network, names, "model.start='scaled'", needs_rows=True)
        _scale_weights(network, dict(zip(names, layers, strict=True)), images)
    elif fields.start != "default":
        whiten(
            network,
            images,
            filters=fields.start,
            scale=fields.start_scale,
            signs=fields.start_signs,
            seed=recipe.run.seed,
            max_images=None,  # ``images`` are those of the recipe
            layers=names,
        )


def _scale_weights(
    network: nn.Module, layers: dict[str, PlainLayer], images: Iterable[Tensor]
) -> None:
    """Multiply each layer's weight by one factor, after which its outputs have unit variance.

    The variance is that over all rows, about the mean of each output, averaged over the outputs.
    The bias has no effect on it and stays.
    """
    sums = {layer: _Sums(layer.weight) for layer in layers.values()}

    def add(layer: PlainLayer, x: Tensor) -> None:
        sums[layer].add(preactivations_as_rows(layer.forward(x), layer))

    visit_inputs(network, list(sums), images, add)
    for name, layer in layers.items():
        variance = sums[layer].find_variance()
        if not 0 < variance < float("inf"):
            raise TrActValueError(
                f"layer {name!r}: its outputs have the variance {variance:g} on the training "
                "images, so that model.start='scaled' cannot scale them to 1."
            )
        with torch.no_grad():
            layer.weight.mul_(variance**-0.5)


class _Sums:
    """The number of rows of z, and for each output their sum and the sum of their squares."""

    def __init__(self, weight: Tensor) -> None:
        dtype = widest_dtype(weight.device, torch.float32)
        self.num_rows = 0
        self.sums = torch.zeros(2, len(weight), dtype=dtype, device=weight.device)

    def add(self, z: Tensor) -> None:
        z = z.to(self.sums.dtype)
        self.num_rows += len(z)
        self.sums += torch.stack([z.sum(0), z.square().sum(0)])

    def find_variance(self) -> float:
        mean, square = self.sums / max(1, self.num_rows)
        return (square - mean.square()).mean().item()


def read_start_images(
    images: Images, recipe: Recipe, standard: Standard, device: torch.device
) -> Iterator[Tensor]:
    """Yield batches of the training images that a start is computed from.

    They are the first ones in order, prepared as test images are; every rank reads them all.
    """
    part = images.select(torch.arange(min(recipe.model.start_images, len(images))))
    for share in EvaluationBatches(part, recipe.data, standard, Place(0, 1, device)).read():
        yield share.images


def freeze_layers(network: nn.Module, names: Sequence[str]) -> None:
    """Exclude the weights of the named layers from training, but not their biases."""
    for name in names:
        weight = network.get_submodule(name).weight
        assert isinstance(weight, nn.Parameter)
        weight.requires_grad_(False)
