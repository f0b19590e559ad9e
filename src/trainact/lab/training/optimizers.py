"""Optimizers, their steps and learning rates."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from torch import Tensor, nn

from trainact.lab.recipes.recipe import OptimizerFields, ScheduleFields

__all__ = [
    *("Stepper", "find_first_parameters", "find_undecayed", "make_optimizers"),
    *("rate_at", "set_rate"),
]


def make_optimizers(
    model: nn.Module, first_layers: Iterable[str], fields: OptimizerFields
) -> list[torch.optim.Optimizer]:
    """Return one optimizer, or two if the first layer has a separate one.

    The first layer's parameters are a separate group in every arm, so that this does not differ
    between arms. A group's ``lr_scale`` multiplies the scheduled learning rate. If vectors have no
    weight decay, they are in separate groups.
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
    """Return biases, norms, other vectors and the parameters of ``model.no_weight_decay()``.

    timm's models return their class tokens and position embeddings there, as DeiT does.
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
    """Return the groups with and without weight decay; ``free`` has the ids of the latter."""
    decayed = {"params": [p for p in parameters if id(p) not in free], "lr_scale": scale}
    others = [p for p in parameters if id(p) in free]
    groups = [decayed, {"params": others, "lr_scale": scale, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def find_first_parameters(model: nn.Module, first_layers: Iterable[str]) -> list[nn.Parameter]:
    """Return the trainable parameters of the named layers, each once."""
    found = {
        id(parameter): parameter
        for name in first_layers
        for parameter in model.get_submodule(name).parameters()
        if parameter.requires_grad
    }
    return list(found.values())


def _make(fields: OptimizerFields, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    options: dict[str, Any] = {"lr": fields.lr, "weight_decay": fields.weight_decay}
    if fields.name == "sgd":
        momentum, nesterov = fields.momentum, fields.nesterov
        return torch.optim.SGD(groups, momentum=momentum, nesterov=nesterov, **options)
    options |= {"betas": (fields.betas[0], fields.betas[1])}
    options |= {"eps": fields.eps} if fields.eps else {}
    match fields.name:
        case "adam":
            return torch.optim.Adam(groups, **options)
        case "adamw":
            return torch.optim.AdamW(groups, **options)
        case "lamb":
            from trainact.lab.torchvision_import import import_torchvision

            import_torchvision()
            from timm.optim import Lamb

            # optimizer.clip_norm clips instead, and logs the norm
            return Lamb(groups, max_grad_norm=None, **options)


def rate_at(fields: ScheduleFields, lr: float, step: int, steps_per_epoch: int) -> float:
    """Return the learning rate of step ``step``, counted from 0 over the whole run.

    With ``per="epoch"`` the rate is constant in each epoch, and the first epoch of a warm-up has
    the rate ``warmup_from``.

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
        case "triangle":
            part, peak = epoch / fields.epochs, fields.triangle_peak
            if part < peak:
                return lr * (fields.triangle_start + (1 - fields.triangle_start) * part / peak)
            return lr * (1 - (1 - fields.triangle_end) * min((part - peak) / (1 - peak), 1.0))
        case "cosine":
            before = fields.warmup_epochs if fields.cosine_over == "rest" else 0.0
            part = min((epoch - before) / max(fields.epochs - before, 1e-9), 1.0)
            return fields.final_lr + (lr - fields.final_lr) * (1 + math.cos(math.pi * part)) / 2


def set_rate(optimizers: Iterable[torch.optim.Optimizer], rate: float) -> None:
    """Set the learning rate of every group, multiplied by its ``lr_scale``."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate * group["lr_scale"]


class Stepper:
    """Steps all optimizers of a run, or none if the gradient overflows.

    With fp16 the loss is scaled up, so that small gradients do not vanish, and sometimes a large
    one overflows. Then the scale is halved and the step is skipped: weights do not change, and
    buffers that the forward pass changed, such as the statistics of batch norm, are restored.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        network: nn.Module,
        optimizers: Sequence[AcceleratedOptimizer],
    ) -> None:
        self.scaler, self.optimizers = accelerator.scaler, optimizers
        floating = [buffer for buffer in network.buffers() if buffer.is_floating_point()]
        self.buffers = [] if self.scaler is None else floating
        self.before: list[Tensor] = []

    def begin(self) -> None:
        """Copy the buffers; call this before the forward pass."""
        self.before = [buffer.clone() for buffer in self.buffers]

    def finish(self, norm: Tensor) -> bool:
        """Step, unless the norm of the unscaled gradient is not finite, and clear the gradient.

        Accelerate's own step would update the scale between two optimizers and would step one if
        only the other's gradient overflowed. Returns whether the weights have changed.
        """
        stepped = self.scaler is None or bool(norm.isfinite())
        for optimizer in self.optimizers if stepped else ():
            if self.scaler is None:
                optimizer.step()
            else:
                self.scaler.step(optimizer.optimizer)
        if not stepped:
            for buffer, value in zip(self.buffers, self.before, strict=True):
                buffer.copy_(value)
        if self.scaler is not None:
            self.scaler.update()
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        return stepped
