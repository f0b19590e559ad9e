"""Optimizers and learning rates from a recipe."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from trainact.lab.recipes.recipe import OptimizerFields, ScheduleFields

__all__ = ["find_first_parameters", "find_undecayed", "make_optimizers", "rate_at", "set_rate"]


def make_optimizers(
    model: nn.Module, first_layers: Iterable[str], fields: OptimizerFields
) -> list[torch.optim.Optimizer]:
    """Return the optimizer, or two where the first layer has one of its own.

    The first layer's parameters are a group by themselves in every arm, so that arms differ in
    nothing else. A group's ``lr_scale`` multiplies the scheduled rate. Where vectors do not decay,
    each group has a twin for them.
    """
    first = find_first_parameters(model, first_layers)
    ids = set(map(id, first))
    rest = [p for p in model.parameters() if p.requires_grad and id(p) not in ids]
    free = set() if fields.decay_vectors else set(map(id, find_undecayed(model)))
    if fields.first_layer_name == "sgd":
        rate = fields.first_layer_sgd_lr * fields.first_layer_lr
        own = torch.optim.SGD(
            _make_groups(first, rate / fields.lr, free),
            lr=rate,
            momentum=fields.momentum,
            weight_decay=fields.weight_decay,
        )
        return [own, _make(fields, _make_groups(rest, 1.0, free))]
    groups = _make_groups(first, fields.first_layer_lr, free) + _make_groups(rest, 1.0, free)
    return [_make(fields, groups)]


def find_undecayed(model: nn.Module) -> list[nn.Parameter]:
    """Return biases, norms and other vectors, and what ``model.no_weight_decay()`` names.

    Those names are timm's class tokens and positions. DeiT leaves the same parameters undecayed.
    """
    ask = getattr(model, "no_weight_decay", None)
    named = set(ask()) if callable(ask) else set()
    return [
        parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
        and (parameter.ndim <= 1 or name.endswith(".bias") or name in named)
    ]


def _make_groups(
    parameters: list[nn.Parameter], scale: float, free: set[int]
) -> list[dict[str, Any]]:
    """Return a group of the parameters that decay and one of those whose ids are ``free``."""
    decayed = {"params": [p for p in parameters if id(p) not in free], "lr_scale": scale}
    others = [p for p in parameters if id(p) in free]
    groups = [decayed, {"params": others, "lr_scale": scale, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def find_first_parameters(model: nn.Module, first_layers: Iterable[str]) -> list[nn.Parameter]:
    """Return the trained parameters of the named layers, each once."""
    found = {
        id(parameter): parameter
        for name in first_layers
        for parameter in model.get_submodule(name).parameters()
        if parameter.requires_grad
    }
    return list(found.values())


def _make(fields: OptimizerFields, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    decay, betas = fields.weight_decay, (fields.betas[0], fields.betas[1])
    eps: dict[str, Any] = {"eps": fields.eps} if fields.eps else {}
    match fields.name:
        case "sgd":
            return torch.optim.SGD(
                groups,
                lr=fields.lr,
                momentum=fields.momentum,
                weight_decay=decay,
                nesterov=fields.nesterov,
            )
        case "adam":
            return torch.optim.Adam(groups, lr=fields.lr, betas=betas, weight_decay=decay, **eps)
        case "adamw":
            return torch.optim.AdamW(groups, lr=fields.lr, betas=betas, weight_decay=decay, **eps)
        case "lamb":
            from trainact.lab.torchvision_import import import_torchvision

            import_torchvision()
            from timm.optim import Lamb

            return Lamb(
                groups,
                lr=fields.lr,
                betas=betas,
                weight_decay=decay,
                max_grad_norm=None,  # the run clips, and logs the norm: optimizer.clip_norm
                **eps,
            )


def rate_at(fields: ScheduleFields, lr: float, step: int, steps_per_epoch: int) -> float:
    """Return the learning rate of step ``step``, counted from 0 over the whole run.

    With ``per`` epoch the rate of an epoch is that of its first step, except that the warm-up then
    counts whole epochs: 0 or ``warmup_from`` in the first.

    >>> fields = ScheduleFields(epochs=4, name="cosine")
    >>> [round(rate_at(fields, 1.0, step, 2), 3) for step in (0, 4, 8)]
    [1.0, 0.5, 0.0]
    """
    epoch = step / steps_per_epoch
    if fields.per == "epoch":
        epoch = float(step // steps_per_epoch)
    if epoch < fields.warmup_epochs:
        return fields.warmup_from + (lr - fields.warmup_from) * epoch / fields.warmup_epochs
    match fields.name:
        case "constant":
            return lr
        case "steps":
            return lr * fields.decay ** sum(epoch >= milestone for milestone in fields.milestones)
        case "cosine":
            before = fields.warmup_epochs if fields.cosine_over == "rest" else 0.0
            part = min((epoch - before) / max(fields.epochs - before, 1e-9), 1.0)
            return fields.final_lr + (lr - fields.final_lr) * (1 + math.cos(math.pi * part)) / 2


def set_rate(optimizers: Iterable[torch.optim.Optimizer], rate: float) -> None:
    """Give every group the rate times its own scale."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate * group["lr_scale"]
