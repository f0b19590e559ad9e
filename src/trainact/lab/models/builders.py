"""Networks with values, ready to train: the lab's own, a zoo's, or any function that makes one."""

import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from trainact.errors import TrActTypeError, TrActValueError
from trainact.lab.models.networks import NETWORKS, build_network
from trainact.lab.models.zoos import build_with_values, list_names
from trainact.lab.recipes.recipe import ModelFields

__all__ = ["build_for_training"]

ZOOS = ("timm", "torchvision")


def build_for_training(
    fields: ModelFields, num_classes: int, channels: int, image_size: int
) -> nn.Module:
    """Build the recipe's model, with random weights, for images [N, channels, size, size].

    The name is ``lab:NAME``, ``timm:NAME``, ``torchvision:NAME``, a bare name (looked up in that
    order) or ``package.module:function``, called with those of ``num_classes``, ``in_channels`` and
    ``image_size`` that it takes.

    Raises:
        TrActValueError: there is no such model, or it does not take the recipe's arguments.
        TrActTypeError: what was made is no module.
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
        return _call(fields.name, build_with_values, source, name, image_size, **options)
    function = _import_function(source, name)
    given = {"num_classes": num_classes, "in_channels": channels, "image_size": image_size}
    accepted = inspect.signature(function).parameters
    takes_all = any(p.kind is p.VAR_KEYWORD for p in accepted.values())
    options = {key: value for key, value in given.items() if takes_all or key in accepted}
    model = _call(fields.name, function, **{**options, **fields.arguments})
    if not isinstance(model, nn.Module):
        raise TrActTypeError(f"{fields.name} returned a {type(model).__name__}, not an nn.Module.")
    return model


def _resolve(reference: str) -> tuple[str, str]:
    source, colon, name = reference.partition(":")
    if colon:
        return source, name
    for source in ("lab", *ZOOS):
        if reference in (NETWORKS if source == "lab" else list_names(source)):
            return source, reference
    raise TrActValueError(
        f"no model is named {reference!r}; give lab:NAME (one of {', '.join(sorted(NETWORKS))}), "
        "timm:NAME, torchvision:NAME or package.module:function."
    )


def _import_function(module: str, name: str) -> Callable[..., Any]:
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # a module beside the user, as with python -m
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise TrActValueError(
            f"{module}:{name} is no model: there is no module {error.name!r}. Give lab:NAME, "
            "timm:NAME, torchvision:NAME or package.module:function."
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
