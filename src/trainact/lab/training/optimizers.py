"""Optimizers, their steps and learning rates."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from torch import Tensor, nn

from trainact.errors import TrActValueError
from trainact.lab.recipes.recipe import OptimizerFields, ScheduleFields, TractFields
from trainact.lab.training.first_layer.muon import find_hidden_weights, keep_norms, make_muon
from trainact.lab.training.first_layer.row_moments import (
    Reduce,
    RowMoments,
    find_layers,
    find_moment_dtype,
)
from trainact.lab.training.first_layer.stem_optimizers import Asgo, Foof
from trainact.rows import PlainLayer

__all__ = [
    *("Stepper", "find_first_parameters", "find_undecayed", "make_optimizers"),
    *("rate_at", "set_rate"),
]


def make_optimizers(
    model: nn.Module,
    first_layers: Iterable[str],
    fields: OptimizerFields,
    tract: TractFields | None = None,
    reduce: Reduce = torch.clone,
) -> list[torch.optim.Optimizer]:
    """Return the optimizers: of the first layer if it has its own, of a Muon body, of the rest.

    The first layer's parameters are a separate group in every arm, so that this does not differ
    between arms. A group's ``lr_scale`` multiplies the scheduled learning rate. If vectors have no
    weight decay, they are in separate groups. FOOF records the first layer's rows from now on.

    Args:
        model: the network, on its device.
        first_layers: names of its first layers.
        fields: the recipe's table.
        tract: the recipe's table; FOOF takes its λ and its dtype of the second moment.
        reduce: sums a tensor over the ranks.

    Raises:
        UnsupportedLayerError: the first layer's optimizer cannot be used with one of the layers.
        TrActValueError: ``fields.body`` is "muon", and the model has no hidden matrix.
    """
    names = list(first_layers)
    first = find_first_parameters(model, names)
    stem = _choose_stem(first, fields)
    hidden = find_hidden_weights(model, names) if fields.body == "muon" else []
    if fields.body == "muon" and not hidden:
        raise TrActValueError(
            "optimizer.body is 'muon', but the model has no matrix or convolution between its "
            "first layer and its classifier; set optimizer.body=same."
        )
    free = set() if fields.decay_vectors else set(map(id, find_undecayed(model)))
    optimizers: list[torch.optim.Optimizer] = []
    if stem:
        groups = _make_groups(stem, _find_stem_scale(fields), free)
        layers = _find_stem_layers(model, names, fields)
        optimizers.append(_make_stem(groups, layers, fields, tract or TractFields(), reduce))
    if hidden:
        groups = _make_groups(hidden, fields.muon_lr / fields.lr, free)
        optimizers.append(_make_muon(groups, fields))
        if fields.muon_normalise:
            keep_norms(optimizers[-1])
    taken = {id(p) for p in (*stem, *hidden)}
    left = [p for p in first if id(p) not in taken]
    taken |= {id(p) for p in first}
    rest = [p for p in model.parameters() if p.requires_grad and id(p) not in taken]
    scale = fields.first_layer_lr if fields.first_layer_name == "same" else 1.0
    groups = _make_groups(left, scale, free) + _make_groups(rest, 1.0, free)
    return [*optimizers, _make(fields, groups)] if groups else optimizers


def _choose_stem(first: list[nn.Parameter], fields: OptimizerFields) -> list[nn.Parameter]:
    """Return the parameters of the first layer's own optimizer.

    SGD takes all of them. The others are defined for matrices: biases stay with the rest of the
    network, at the general rate.
    """
    match fields.first_layer_name:
        case "same":
            return []
        case "sgd":
            return first
    return [parameter for parameter in first if parameter.ndim > 1]


def _find_stem_layers(
    model: nn.Module, names: list[str], fields: OptimizerFields
) -> list[PlainLayer]:
    """Return the layers of the first layer's own optimizer, checked; SGD needs none."""
    own = fields.first_layer_name
    if own == "sgd":
        return []
    setting = f"optimizer.first_layer_name={own!r}"
    return find_layers(model, names, setting, needs_rows=own == "foof")


def _find_stem_scale(fields: OptimizerFields) -> float:
    """Return the rate of the first layer's own optimizer, divided by the general rate."""
    if fields.first_layer_name == "sgd":
        return fields.first_layer_sgd_lr * fields.first_layer_lr / fields.lr
    return fields.first_layer_lr


def _make_stem(
    groups: list[dict[str, Any]],
    layers: list[PlainLayer],
    fields: OptimizerFields,
    tract: TractFields,
    reduce: Reduce,
) -> torch.optim.Optimizer:
    """Return the first layer's own optimizer."""
    lr, decay = fields.lr, fields.weight_decay
    match fields.first_layer_name:
        case "foof":
            rows = RowMoments(layers, find_moment_dtype(tract), reduce)
            return Foof(groups, rows, lr, tract.lam, weight_decay=decay)
        case "asgo":
            return Asgo(groups, layers, lr, weight_decay=decay)
        case "muon":
            return _make_muon(groups, fields)
    momentum, nesterov = fields.momentum, fields.nesterov
    return torch.optim.SGD(groups, lr, momentum, weight_decay=decay, nesterov=nesterov)


def _make_muon(groups: list[dict[str, Any]], fields: OptimizerFields) -> torch.optim.Optimizer:
    return make_muon(groups, fields.lr, fields.muon_momentum, fields.weight_decay)


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
    epoch = max(epoch - fields.lag_epochs, 0.0)
    if epoch < fields.warmup_epochs:
        return fields.warmup_from + (lr - fields.warmup_from) * epoch / fields.warmup_epochs
    match fields.name:
        case "constant":
            return lr
        case "steps":
            number = epoch + fields.first_epoch
            return lr * fields.decay ** sum(number >= milestone for milestone in fields.milestones)
        case "triangle":
            part, peak = epoch / fields.epochs, fields.triangle_peak
            if part < peak:
                return lr * (fields.triangle_start + (1 - fields.triangle_start) * part / peak)
            return lr * (1 - (1 - fields.triangle_end) * min((part - peak) / (1 - peak), 1.0))
        case "cosine":
            warm_up = fields.warmup_epochs
            start = {"rest": warm_up, "run": 0.0, "late-run": warm_up + 1}[fields.cosine_over]
            length = fields.epochs - (warm_up if fields.cosine_over == "rest" else 0.0)
            part = min(max(epoch - start, 0.0) / max(length, 1e-9), 1.0)
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
