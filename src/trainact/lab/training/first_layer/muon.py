"""Muon, from timm, and the weights that it is meant for."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from trainact.errors import TrActError
from trainact.lab.torchvision_import import import_torchvision
from trainact.rows import SUPPORTED_LAYERS

__all__ = ["find_hidden_weights", "keep_norms", "make_muon"]

ATTENTION_WEIGHTS = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")
"""Matrices that nn.MultiheadAttention holds itself."""


def make_muon(
    groups: Iterable[dict[str, Any]], lr: float, momentum: float, weight_decay: float
) -> torch.optim.Optimizer:
    """Return timm's Muon with the settings of its publication.

    With μ the momentum, M ← μM + G, U = G + μM, X = U/|U|. Then five times A = XXᵀ,
    X ← aX + (bA + cA²) X with (a, b, c) = (3.4445, -4.775, 2.0315), which brings all singular
    values of X near 1. W ← (1 - lr·d) W - lr √max(1, m/n) X with weight decay d. A convolution's
    weight is a matrix [m, n] with n = channels times kernel size; X is transposed if m > n.

    timm averages, M ← μM + (1 - μ)G: U is smaller by 1 - μ and X is the same. X is computed in
    bfloat16.

    Raises:
        TrActError: the installed timm has no Muon.
    """
    import_torchvision()
    try:
        from timm.optim import Muon
    except ImportError as error:
        raise TrActError(
            "muon needs timm's optimizer Muon, which this version of timm does not have: "
            "pip install --upgrade timm"
        ) from error
    marked = [{**group, "use_muon": True} for group in groups]  # or timm decides by shape
    return Muon(
        marked,
        lr=lr,
        momentum=momentum,
        weight_decay=weight_decay,
        nesterov=True,
        ns_coefficients="original",
        adjust_lr_fn="original",
    )


def keep_norms(optimizer: torch.optim.Optimizer) -> None:
    """Let an optimizer scale each weight [m, ...] to the norm √m after every step.

    The norm being fixed, there is no weight decay. This suits layers with a norm behind them.
    """
    for group in optimizer.param_groups:
        group["weight_decay"] = 0.0
    optimizer.register_step_post_hook(_scale_weights)


@torch.no_grad()
def _scale_weights(optimizer: torch.optim.Optimizer, *arguments: Any) -> None:
    del arguments
    for group in optimizer.param_groups:
        for weight in group["params"]:
            norm = weight.norm().clamp(min=1e-12)  # weights of 0 stay 0
            weight.mul_(len(weight) ** 0.5 / norm)


def find_hidden_weights(model: nn.Module, first_layers: Iterable[str]) -> list[nn.Parameter]:
    """Return the trainable weights of hidden layers that are matrices, each once.

    These are the weights of Linear layers, attention and convolutions without groups. The first
    layers, the classifier, embeddings, positions and class tokens are left out. The classifier is
    what timm's ``get_classifier`` returns, or else the last layer in the order of
    ``model.modules()``.
    """
    left_out = [model.get_submodule(name) for name in first_layers] + _find_classifiers(model)
    excluded = {id(parameter) for module in left_out for parameter in module.parameters()}
    found: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for weight in _list_matrices(module):
            if weight.requires_grad and id(weight) not in excluded:
                found[id(weight)] = weight
    return list(found.values())


def _list_matrices(module: nn.Module) -> list[nn.Parameter]:
    if isinstance(module, nn.MultiheadAttention):
        weights = [getattr(module, name) for name in ATTENTION_WEIGHTS]
    elif isinstance(module, SUPPORTED_LAYERS) and getattr(module, "groups", 1) == 1:
        weights = [module.weight]
    else:
        weights = []
    return [weight for weight in weights if isinstance(weight, nn.Parameter)]


def _find_classifiers(model: nn.Module) -> list[nn.Module]:
    ask = getattr(model, "get_classifier", None)
    if callable(ask):
        answer = ask()
        answers = answer if isinstance(answer, tuple | list) else [answer]
        classifiers = [module for module in answers if isinstance(module, nn.Module)]
        if any(list(module.parameters()) for module in classifiers):
            return classifiers
    layers: list[nn.Module] = [m for m in model.modules() if isinstance(m, SUPPORTED_LAYERS)]
    return layers[-1:]
