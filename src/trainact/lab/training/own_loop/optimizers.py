"""An arm's learning rates and optimizers for the first layer, added to the user's optimizer."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainact.errors import TrActValueError
from trainact.lab.recipes.recipe import Recipe
from trainact.lab.training.first_layer.gradient_rules import GradientRule
from trainact.lab.training.optimizers import find_first_parameters, make_optimizers

__all__ = ["OptimizerSet", "adapt_optimizer", "apply_before_steps", "sum_tensor_over_ranks"]

FACTOR = "rate_factor"
"""Key of a group's factor of the learning rate. ``lr`` is the rate without it, so that any schedule
may set it; it is multiplied while the optimizer steps. timm's schedules use ``lr_scale``."""

Group = dict[str, Any]


def adapt_optimizer(
    optimizer: torch.optim.Optimizer, network: nn.Module, names: Sequence[str], recipe: Recipe
) -> torch.optim.Optimizer:
    """Return the optimizer with the recipe's changes for the named first layers.

    The parameters of the first layers have their own groups in every arm. Weights that have another
    optimizer in this arm are taken out, and both are returned as one.

    Raises:
        TrActValueError: the optimizer does not train the first layers.
        UnsupportedLayerError: the first layer's optimizer cannot be used with one of the layers.
    """
    first = find_first_parameters(network, names)
    home = _find_home(optimizer, first, names)
    fields = recipe.optimizer
    rate = float(home["lr"])
    if rate <= 0:
        raise TrActValueError(
            f"the optimizer of run.optimizer starts with the learning rate {rate:g}; make it with "
            "the rate of the run, and the schedule after it."
        )
    decay = float(home.get("weight_decay", 0.0))
    same_rate = dataclasses.replace(fields, lr=rate, weight_decay=decay)
    number = (fields.first_layer_name != "same") + (fields.body != "same")
    others = []
    if number:
        others = make_optimizers(
            network, list(names), same_rate, recipe.tract, sum_tensor_over_ranks
        )
        others = others[:number]  # the last is the lab's own for the rest
    for group in (group for other in others for group in other.param_groups):
        group |= {FACTOR: group.pop("lr_scale"), "lr": rate}
        for key, value in home.items():  # a schedule may change any of them
            group.setdefault(key, value)
    taken = {id(p) for other in others for group in other.param_groups for p in group["params"]}
    _take_out(optimizer, taken)
    factor = fields.first_layer_lr if fields.first_layer_name == "same" else 1.0
    _split_first(optimizer, {id(parameter) for parameter in first}, factor)
    for one in (optimizer, *others):
        _scale_rates(one)
    return OptimizerSet([optimizer, *others]) if others else optimizer


def apply_before_steps(optimizer: torch.optim.Optimizer, rule: GradientRule) -> None:
    """Let an optimizer apply a rule to the gradients before each step."""

    def apply(_: Any, args: Any, kwargs: Any) -> None:
        if any(callable(value) for value in (*args, *kwargs.values())):
            raise TrActValueError(
                "this arm changes the gradient before a step, but the step computes the gradient "
                "itself, in a closure; call backward first and then optimizer.step()."
            )
        rule.apply()

    members = optimizer.members if isinstance(optimizer, OptimizerSet) else [optimizer]
    members[0].register_step_pre_hook(apply)


class OptimizerSet(torch.optim.Optimizer):
    """Several optimizers of one network that step together; ``members[0]`` is the user's own.

    Its groups are those of all members, so that schedules and gradient scalers see them.
    """

    def __init__(self, members: Sequence[torch.optim.Optimizer]) -> None:
        self.members = list(members)
        groups = [group for member in members for group in member.param_groups]
        parameters = [parameter for group in groups for parameter in group["params"]]
        super().__init__(parameters, {})
        self.defaults = dict(members[0].defaults)
        self._collect_groups()

    def _collect_groups(self) -> None:
        self.param_groups = [group for member in self.members for group in member.param_groups]

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step all members; ``closure`` is called once, before them."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for member in self.members:
            member.step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of all members."""
        for member in self.members:
            member.zero_grad(set_to_none)

    def add_param_group(self, param_group: Group) -> None:
        """Add a group to the user's own optimizer."""
        if not self.param_groups:  # in torch's __init__
            super().add_param_group(param_group)
            return
        self.members[0].add_param_group(param_group)
        self._collect_groups()

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all members."""
        return {"members": [member.state_dict() for member in self.members]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the states of all members."""
        for member, state in zip(self.members, state_dict["members"], strict=True):
            member.load_state_dict(state)
        self._collect_groups()


def sum_tensor_over_ranks(tensor: Tensor) -> Tensor:
    """Return the sum of a tensor over all ranks of the user's process group, if there is one."""
    total = tensor.clone()
    if dist.is_available() and dist.is_initialized():
        dist.all_reduce(total)
    return total


def _find_home(
    optimizer: torch.optim.Optimizer, first: Sequence[nn.Parameter], names: Sequence[str]
) -> Group:
    """Return the group that holds the first layers' first parameter, or else the first group."""
    homes = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    if any(id(parameter) not in homes for parameter in first):
        raise TrActValueError(
            f"the optimizer of run.optimizer does not train the first layer ({', '.join(names)}) "
            "of the model that run.prepare got; make(parameters) must give the optimizer all "
            "parameters of that model."
        )
    return homes[id(first[0])] if first else optimizer.param_groups[0]


def _take_out(optimizer: torch.optim.Optimizer, ids: set[int]) -> None:
    """Remove parameters; a group without any stays, because a schedule may count the groups."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if id(parameter) in ids:
                optimizer.state.pop(parameter, None)
        group["params"] = [p for p in group["params"] if id(p) not in ids]


def _split_first(optimizer: torch.optim.Optimizer, ids: set[int], factor: float) -> None:
    """Move the first layers' parameters to groups of their own, with a factor of the rate."""
    groups: list[Group] = []
    for group in optimizer.param_groups:
        first = [p for p in group["params"] if id(p) in ids]
        rest = [p for p in group["params"] if id(p) not in ids]
        if first:
            groups.append({**group, "params": first, FACTOR: factor})
        if rest or not first:
            group["params"] = rest
            groups.append(group)
    optimizer.param_groups[:] = groups


def _scale_rates(optimizer: torch.optim.Optimizer) -> None:
    """Let an optimizer multiply each group's rate by its factor while it steps."""
    kept: list[Any] = []

    def scale(*_: Any) -> None:
        kept[:] = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            if group.get(FACTOR, 1.0) != 1.0:
                group["lr"] = group["lr"] * group[FACTOR]

    def restore(*_: Any) -> None:
        for group, rate in zip(optimizer.param_groups, kept, strict=True):
            group["lr"] = rate

    optimizer.register_step_pre_hook(scale)
    optimizer.register_step_post_hook(restore)
