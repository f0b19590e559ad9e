"""Helpers for tests of networks."""

import functools

import torch
from torch import nn

from trainact.lab.models.networks import build_network


@functools.cache
def build_without_values(name: str) -> nn.Module:
    """Return the network at 100 classes in evaluation mode; not to be changed."""
    with torch.device("meta"):
        return build_network(name, 100).eval()


def count_parameters(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def list_layers(network: nn.Module, kind: type[nn.Module]) -> list[nn.Module]:
    return [module for module in network.modules() if isinstance(module, kind)]
