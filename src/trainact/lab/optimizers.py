"""Optimizers and learning rates from a recipe."""

import math
from collections.abc import Iterable

import torch
from torch import nn

from trainact.lab.recipe import OptimizerFields, ScheduleFields

__all__ = ["find_first_parameters", "make_optimizers", "rate_at", "set_rate"]


def make_optimizers(
    model: nn.Module, first_layers: Iterable[str], fields: OptimizerFields
) -> list[torch.optim.Optimizer]:
    """Return the optimizer, or two where the first layer has one of its own.

    The first layer's parameters are a group by themselves in every arm, so that arms differ in
    nothing else. A group's ``lr_scale`` multiplies the scheduled rate.
    """
    first = find_first_parameters(model, first_layers)
    ids = set(map(id, first))
    rest = [p for p in model.parameters() if p.requires_grad and id(p) not in ids]
    if fields.first_layer_name == "sgd":
        scale = fields.first_layer_sgd_lr / fields.lr
        own = torch.optim.SGD(
            [{"params": first, "lr_scale": scale}],
            lr=fields.first_layer_sgd_lr,
            momentum=fields.momentum,
            weight_decay=fields.weight_decay,
        )
        return [own, _make(fields, [{"params": rest, "lr_scale": 1.0}])]
    groups = [
        {"params": first, "lr_scale": fields.first_layer_lr},
        {"params": rest, "lr_scale": 1.0},
    ]
    return [_make(fields, [group for group in groups if group["params"]])]


def find_first_parameters(model: nn.Module, first_layers: Iterable[str]) -> list[nn.Parameter]:
    """Return the trained parameters of the named layers, each once."""
    found = {
        id(parameter): parameter
        for name in first_layers
        for parameter in model.get_submodule(name).parameters()
        if parameter.requires_grad
    }
    return list(found.values())


def _make(fields: OptimizerFields, groups: list[dict[str, object]]) -> torch.optim.Optimizer:
    decay, betas = fields.weight_decay, (fields.betas[0], fields.betas[1])
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
            return torch.optim.Adam(groups, lr=fields.lr, betas=betas, weight_decay=decay)
        case "adamw":
            return torch.optim.AdamW(groups, lr=fields.lr, betas=betas, weight_decay=decay)
        case "lamb":
            from trainact.lab.vision import import_torchvision

            import_torchvision()
            from timm.optim import Lamb

            return Lamb(groups, lr=fields.lr, betas=betas, weight_decay=decay, max_grad_norm=None)


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
            length = max(fields.epochs - fields.warmup_epochs, 1e-9)
            part = min((epoch - fields.warmup_epochs) / length, 1.0)
            return fields.final_lr + (lr - fields.final_lr) * (1 + math.cos(math.pi * part)) / 2


def set_rate(optimizers: Iterable[torch.optim.Optimizer], rate: float) -> None:
    """Give every group the rate times its own scale."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate * group["lr_scale"]
