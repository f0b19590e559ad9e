"""The start of the first layers: whitened filters, and weights that are not trained."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from trainact import whiten
from trainact.lab.data.images import Images, Standard
from trainact.lab.recipes.recipe import Recipe
from trainact.lab.training.batches import EvaluationBatches, Place

__all__ = ["freeze_layers", "read_start_images", "whiten_layers"]


def whiten_layers(
    network: nn.Module, names: Sequence[str], recipe: Recipe, images: Iterator[Tensor]
) -> None:
    """Give the named layers the recipe's start, from batches of images [N, C, H, W]."""
    fields = recipe.model
    if fields.start != "default":
        whiten(
            network,
            images,
            filters=fields.start,
            scale=fields.start_scale,
            signs=fields.start_signs,
            seed=recipe.run.seed,
            layers=names,
        )


def read_start_images(
    images: Images, recipe: Recipe, standard: Standard, device: torch.device
) -> Iterator[Tensor]:
    """Yield batches of the training images that a whitened start is computed from.

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
