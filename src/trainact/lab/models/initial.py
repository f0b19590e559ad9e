"""The network that a run begins with: built, TrAct in its first layers, its initial weights."""

import hashlib

import torch
from torch import nn

from trainact import apply_tract, find_first_layers
from trainact.lab.data.images import ImageData, ImageTensor
from trainact.lab.models.builders import build_for_training
from trainact.lab.models.pretrained import LoadedWeights, find_weights, load_weights
from trainact.lab.recipes.recipe import Recipe, TractFields

__all__ = ["build_model", "hash_weights", "load_initial_weights", "put_tract"]


def build_model(recipe: Recipe, data: ImageData) -> tuple[nn.Module, list[str]]:
    """Return the network and the names of its first layers, TrAct in them if the recipe says so."""
    channels, size = 3, recipe.data.image_size
    if isinstance(data.train, ImageTensor):
        channels, size = data.train.images.shape[1], data.train.images.shape[2]
    network = build_for_training(recipe.model, len(data.classes), channels, size)
    example = torch.zeros(2, channels, size, size)
    names = list(recipe.tract.layers) or find_first_layers(network, example)
    put_tract(network, names, recipe.tract)
    return network, names


def put_tract(network: nn.Module, names: list[str], fields: TractFields) -> None:
    """Put TrAct into the named layers, where the recipe has it on."""
    if fields.enabled:
        apply_tract(
            network,
            fields.lam,
            layers=names,
            moment_dtype=torch.float64 if fields.moment == "float64" else None,
            sync=fields.sync,
        )


def load_initial_weights(recipe: Recipe, network: nn.Module) -> LoadedWeights | None:
    """Give the network the recipe's initial weights; a smoke run does without where none is given.

    Returns:
        What was read, or None where the recipe starts from random weights.
    """
    fields = recipe.model
    if not fields.weights and (not fields.pretraining or recipe.run.smoke):
        return None
    return load_weights(network, find_weights(fields, recipe.run.seed), fields.weights_strict)


def hash_weights(network: nn.Module) -> str:
    """Return the SHA-256 of all names and values of a network."""
    digest = hashlib.sha256()
    for name, value in network.state_dict().items():
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()
