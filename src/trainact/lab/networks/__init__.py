"""The paper's networks for CIFAR by name."""

import difflib
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import nn

from trainact.errors import TrActValueError
from trainact.lab.networks.resnet import (
    resnet18,
    resnet18_tract,
    resnet34,
    resnet50,
    resnet101,
    resnet152,
)
from trainact.lab.networks.vit import CifarViT

__all__ = ["NETWORKS", "Network", "build_network"]


class Network(NamedTuple):
    """How a network is built and where it comes from."""

    build: Callable[..., nn.Module]
    """Takes ``num_classes`` and, by keyword, ``in_channels``; its docstring tells of the rest."""
    paper: str
    """Authors, title, year."""
    parameters: int
    """At 100 classes and 3 channels of 32 x 32 pixels."""


_DOSOVITSKIY = "Dosovitskiy et al., An Image is Worth 16x16 Words, 2021"
_HE = "He, Zhang, Ren, Sun, Deep Residual Learning for Image Recognition, 2016"

NETWORKS: dict[str, Network] = {
    "resnet18-tract": Network(resnet18_tract, _HE, 11_220_132),
    "vit-cifar": Network(CifarViT, _DOSOVITSKIY, 6_303_460),
    "resnet18": Network(resnet18, _HE, 11_220_132),
    "resnet34": Network(resnet34, _HE, 21_328_292),
    "resnet50": Network(resnet50, _HE, 23_705_252),
    "resnet101": Network(resnet101, _HE, 42_697_380),
    "resnet152": Network(resnet152, _HE, 58_341_028),
}
"""All networks, by the name that recipes use."""


def build_network(
    name: str, num_classes: int, in_channels: int = 3, image_size: int = 32, **arguments: Any
) -> nn.Module:
    """Build a network of ``NETWORKS``.

    >>> network = build_network("resnet18-tract", num_classes=10, width=16)
    >>> sum(parameter.numel() for parameter in network.parameters())
    701466

    Args:
        name: its name.
        num_classes: outputs.
        in_channels: channels of the image.
        image_size: pixels of a side, at least 32; most networks take any size and ignore it.
        arguments: what else the network's builder takes.

    Raises:
        TrActValueError: there is no such network, or it does not take one of the arguments.
    """
    if name not in NETWORKS:
        near = difflib.get_close_matches(name, NETWORKS, n=5, cutoff=0.4)
        shown = f"the nearest names are {', '.join(near)}" if near else "none is near"
        raise TrActValueError(f"There is no network {name!r}; {shown}.")
    build = NETWORKS[name].build
    given = ("num_classes", "in_channels", "image_size")
    accepted = inspect.signature(build).parameters
    unknown = [key for key in arguments if key not in accepted]
    if unknown:
        others = [key for key in accepted if key not in given]
        also = f"besides num_classes, in_channels and image_size it takes {', '.join(others)}"
        raise TrActValueError(
            f"The network {name!r} does not take {', '.join(unknown)}; "
            f"{also if others else 'it takes num_classes, in_channels and image_size alone'}."
        )
    if "image_size" in accepted:
        arguments["image_size"] = image_size
    return build(num_classes, in_channels=in_channels, **arguments)
