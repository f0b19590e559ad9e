"""Build the model of a recipe, add TrAct to its first layers and load its initial weights."""

import contextlib
import hashlib
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trainact import apply_tract, find_first_layers
from trainact.errors import TrActTypeError, TrActValueError
from trainact.lab.data.images import ImageData, ImageTensor
from trainact.lab.models.networks import NETWORKS, build_network
from trainact.lab.models.pretrained import LoadedWeights, find_weights, load_weights
from trainact.lab.models.zoos import build_zoo_model, list_names
from trainact.lab.recipes.recipe import ModelFields, Recipe, TractFields
from trainact.lab.text import describe_unknown

__all__ = ["add_tract", "build_model", "build_recipe_model", "hash_weights", "load_initial_weights"]

ZOOS = ("timm", "torchvision")
ACCEPTED = "Accepted are lab:NAME, timm:NAME, torchvision:NAME and package.module:function."


def build_recipe_model(recipe: Recipe, data: ImageData) -> tuple[nn.Module, list[str]]:
    """Return the network and the names of its first layers, with TrAct if the recipe enables it."""
    channels, size = 3, recipe.data.image_size
    if isinstance(data.train, ImageTensor):
        channels, size = data.train.images.shape[1], data.train.images.shape[2]
    network = build_model(recipe.model, len(data.classes), channels, size)
    example = torch.zeros(2, channels, size, size)
    names = list(recipe.tract.layers) or find_first_layers(network, example)
    add_tract(network, names, recipe.tract)
    return network, names


def build_model(fields: ModelFields, num_classes: int, channels: int, image_size: int) -> nn.Module:
    """Build a model with random weights for images [N, channels, image_size, image_size].

    Its name is ``lab:NAME``, ``timm:NAME``, ``torchvision:NAME``, a bare name, which is looked up
    in that order, or ``package.module:function``. The function is called with those of
    ``num_classes``, ``in_channels`` and ``image_size`` that it accepts.

    Raises:
        TrActValueError: there is no such model, or it does not accept the recipe's arguments.
        TrActTypeError: the function returned something other than a module.
    """
    source, name = _resolve(fields.name)
    if source == "lab":
        return build_network(name, num_classes, channels, image_size, **fields.arguments)
    if source in ZOOS:
        options = {"num_classes": num_classes, **fields.arguments}
        if channels != 3:
            if source == "torchvision":
                raise TrActValueError(
                    f"torchvision's {name} takes 3 channels, the images have {channels}; use a "
                    "model of timm or of the lab."
                )
            options["in_chans"] = channels
        return _call(fields.name, build_zoo_model, source, name, image_size, **options)
    given = {"num_classes": num_classes, "in_channels": channels, "image_size": image_size}
    with _import_from_here():
        function = _import_function(source, name)
        accepted = inspect.signature(function).parameters
        takes_all = any(p.kind is p.VAR_KEYWORD for p in accepted.values())
        options = {key: value for key, value in given.items() if takes_all or key in accepted}
        model = _call(fields.name, function, **{**options, **fields.arguments})
    if not isinstance(model, nn.Module):
        raise TrActTypeError(f"{fields.name} returned a {type(model).__name__}, not an nn.Module.")
    return model


def add_tract(network: nn.Module, names: list[str], fields: TractFields) -> None:
    """Add TrAct to the named layers, if the recipe enables it.

    With ``tract.center``, layers without a trained bias are centered as is right before a batch
    norm.
    """
    if not fields.enabled:
        return
    options: dict[str, Any] = {
        "moment_dtype": torch.float64 if fields.moment == "float64" else None,
        "sync": fields.sync,
    }
    if fields.relative:
        options["relative"] = True
    if fields.moment_decay:
        options["moment_decay"] = fields.moment_decay
    if not fields.center:
        apply_tract(network, fields.lam, layers=names, **options)
        return
    biased = [name for name in names if _has_trained_bias(network.get_submodule(name))]
    others = [name for name in names if name not in biased]
    for chosen, center in ((biased, True), (others, "batchnorm")):
        if chosen:
            options["center"] = center
            apply_tract(network, fields.lam, layers=chosen, **options)


def load_initial_weights(recipe: Recipe, network: nn.Module) -> LoadedWeights | None:
    """Load the recipe's initial weights and return which; None if they stay random.

    A smoke run without a file keeps random weights.
    """
    fields = recipe.model
    if not fields.weights and (not fields.pretraining or recipe.run.smoke):
        return None
    path = find_weights(fields, recipe.run.seed)
    return load_weights(network, path, fields.weights_strict, fields.positions)


def hash_weights(network: nn.Module) -> str:
    """Return the SHA-256 of all names and values of a network."""
    digest = hashlib.sha256()
    for name, value in network.state_dict().items():
        if not isinstance(value, torch.Tensor):  # extra state of a module
            continue
        digest.update(name.encode())
        content: Any = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
        digest.update(content)
    return digest.hexdigest()


def _has_trained_bias(layer: nn.Module) -> bool:
    bias = getattr(layer, "bias", None)
    return isinstance(bias, nn.Parameter) and bias.requires_grad


def _resolve(reference: str) -> tuple[str, str]:
    source, colon, name = reference.partition(":")
    if colon:
        return source, name
    for source in ("lab", *ZOOS):
        if reference in (NETWORKS if source == "lab" else list_names(source)):
            return source, reference
    raise TrActValueError(f"{describe_unknown(reference, NETWORKS, 'model')} {ACCEPTED}")


@contextlib.contextmanager
def _import_from_here() -> Iterator[None]:
    """Let modules in the working directory be imported, as ``python -m`` does."""
    here = str(Path.cwd())
    if here in sys.path:
        yield
        return
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)


def _import_function(module: str, name: str) -> Callable[..., Any]:
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise TrActValueError(
            f"{module}:{name} is not a model: there is no module {error.name!r}. {ACCEPTED}"
        ) from error
    function = getattr(found, name, None)
    if not callable(function):
        raise TrActValueError(f"module {module} has no function {name!r}.")
    return function


def _call(reference: str, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    try:
        return function(*args, **options)
    except TypeError as error:
        shown = ", ".join(f"{key}={value!r}" for key, value in options.items())
        raise TrActValueError(f"{reference} cannot be built with {shown}: {error}.") from error
