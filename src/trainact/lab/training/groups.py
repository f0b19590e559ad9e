"""Rates of an optimizer's groups: biases of norms, and decoupled units of rate and decay.

Each group has an ``lr_scale``, by which the scheduled learning rate is multiplied.
"""

from collections.abc import Iterable

import torch
from torch import nn

from trainact.errors import TrActValueError
from trainact.lab.recipes.recipe import OptimizerFields

__all__ = ["find_norm_biases", "scale_groups"]

IMAGES = 1024
"""Images that decoupled rates refer to."""
NORMS = (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d, nn.GroupNorm, nn.LayerNorm),
)


def scale_groups(
    optimizers: Iterable[torch.optim.Optimizer],
    network: nn.Module,
    fields: OptimizerFields,
    batch_size: int,
) -> None:
    """Apply ``norm_bias_lr`` and, with ``units="decoupled"``, convert rate and decay, in place.

    Decoupled units are those of a step without momentum, for 1,024 images. A constant gradient g of
    each image moves the weight by (1 + 1/(1 − m)) g in the steps of Nesterov SGD with momentum m.
    With k = 1024 (1 + 1/(1 − m)), torch's rate for the summed loss is lr / k. A step at the full
    rate decays a weight by weight_decay · batch_size / k, whatever the rate of its group; torch's
    weight_decay is this divided by the group's rate. Only SGD is converted, not a separate
    optimizer of the first layer or of hidden layers, which has its own rate.

    Raises:
        TrActValueError: ``norm_bias_lr`` is not 1, and no norm has a trainable bias.
    """
    if fields.norm_bias_lr != 1:
        biases = find_norm_biases(network)
        if not biases:
            raise TrActValueError(
                f"optimizer.norm_bias_lr is {fields.norm_bias_lr:g}, but no batch or layer norm of "
                "the network has a trainable bias; set it to 1."
            )
        for optimizer in optimizers:
            _split_off(optimizer, {id(bias) for bias in biases}, fields.norm_bias_lr)
    if fields.units == "decoupled":
        images = IMAGES * (1 + 1 / (1 - fields.momentum))
        decay = fields.weight_decay * batch_size / images
        for optimizer in optimizers:
            if type(optimizer) is torch.optim.SGD:
                for group in optimizer.param_groups:
                    group["lr_scale"] /= images
                    if group["weight_decay"]:
                        group["weight_decay"] = decay / (fields.lr * group["lr_scale"])


def find_norm_biases(network: nn.Module) -> list[nn.Parameter]:
    """Return the trainable biases of all normalisation layers."""
    biases = (module.bias for module in network.modules() if isinstance(module, NORMS))
    return [bias for bias in biases if bias is not None and bias.requires_grad]


def _split_off(optimizer: torch.optim.Optimizer, ids: set[int], factor: float) -> None:
    """Move the parameters with these ids to groups with ``factor`` times the rate."""
    groups = []
    for group in optimizer.param_groups:
        for is_scaled in (False, True):
            parameters = [p for p in group["params"] if (id(p) in ids) == is_scaled]
            scale = group["lr_scale"] * (factor if is_scaled else 1.0)
            if parameters:
                groups.append({**group, "params": parameters, "lr_scale": scale})
    optimizer.param_groups[:] = groups
