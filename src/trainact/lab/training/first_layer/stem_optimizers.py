"""Optimizers for the first layer's weight alone, each with momentum of its own.

Symbols are those of :mod:`trainact.preconditioner`; G is the gradient of the whole batch, M its
momentum and η the learning rate. Weight decay is separate from the gradient: W ← (1 - ηd) W.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trainact.lab.training.first_layer.row_moments import Moments, RowMoments
from trainact.options import widest_dtype
from trainact.preconditioner import precondition
from trainact.rows import PlainLayer
from trainact.second_moment import SecondMoment

__all__ = ["Asgo", "Foof", "StemOptimizer"]

Groups = Iterable[dict[str, Any]]
"""Parameter groups, as all optimizers of torch take them."""


class StemOptimizer(torch.optim.Optimizer):
    """Steps along a direction that a subclass computes from the gradient and its own state."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Take a step; ``closure`` is not called."""
        del closure
        self.prepare()
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    direction = self.find_direction(weight, group, self.state[weight])
                    weight.mul_(1 - group["lr"] * group["weight_decay"])
                    weight.add_(direction.reshape(weight.shape), alpha=-group["lr"])

    def prepare(self) -> None:
        """Do what is needed once per step."""
        return

    def find_direction(
        self, weight: nn.Parameter, group: dict[str, Any], state: dict[str, Any]
    ) -> Tensor:
        """Return the direction of the step, with the weight's numbers in order, and update state.

        Args:
            weight: W, with its gradient.
            group: its options.
            state: empty in the first step.
        """
        raise NotImplementedError

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a checkpoint.

        torch converts the state to the dtype of the weights; statistics keep their own here.
        """
        super().load_state_dict(state_dict)
        weights = [weight for group in self.param_groups for weight in group["params"]]
        for number, values in state_dict["state"].items():
            weight = weights[number]
            for key, value in values.items():
                if isinstance(value, Tensor):
                    self.state[weight][key] = value.to(weight.device, copy=True)


class Foof(StemOptimizer):
    """FOOF: a moving average of the second moment, and momentum before preconditioning.

    M ← .9 M + G,  S ← .95 S + .05 xᵀx/b,  W ← W - η M (S / (1 - .95ᵗ) + λI)⁻¹ in step t. The
    inverse is computed in the first step and then in every 50th. The rows are those of the whole
    batch: all micro-batches and all ranks.
    """

    def __init__(
        self,
        params: Groups,
        rows: RowMoments,
        lr: float,
        lam: float,
        *,
        decay: float = 0.95,
        refresh: int = 50,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
    ) -> None:
        """Take the weights whose rows are recorded.

        Args:
            params: groups of weights.
            rows: records the layers of these weights.
            lr: η.
            lam: λ.
            decay: of the average S.
            refresh: steps with one inverse.
            momentum: factor of M.
            weight_decay: d.
        """
        self.rows = rows
        self._moments: Moments = {}
        self._kept: Moments = {}
        options = {"lr": lr, "lam": lam, "decay": decay, "refresh": refresh, "momentum": momentum}
        super().__init__(params, options | {"weight_decay": weight_decay})

    def prepare(self) -> None:
        """Take the rows of the step."""
        self._moments = self.rows.take()

    def find_direction(
        self, weight: nn.Parameter, group: dict[str, Any], state: dict[str, Any]
    ) -> Tensor:
        """Return M (S / (1 - .95ᵗ) + λI)⁻¹."""
        assert weight.grad is not None
        moment = self._moments[weight].divide_by_rows()
        if not state:
            state["step"] = 0
            state["momentum"] = torch.zeros_like(weight)
            state["average"] = torch.zeros_like(moment)
        state["step"] += 1
        state["momentum"].mul_(group["momentum"]).add_(weight.grad)
        state["average"].lerp_(moment, 1 - group["decay"])
        if (state["step"] - 1) % group["refresh"] == 0:
            state["kept"] = state["average"] / (1 - group["decay"] ** state["step"])
            self._kept.pop(weight, None)
        if weight not in self._kept:
            self._kept[weight] = SecondMoment(state["kept"], num_rows=1)
        return precondition(state["momentum"], self._kept[weight], group["lam"])

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients and the rows, also those of a step that was skipped."""
        super().zero_grad(set_to_none)
        self.rows.clear()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        super().load_state_dict(state_dict)
        self._kept.clear()


class Asgo(StemOptimizer):
    """ASGO, also called one-sided Shampoo: G over the root of its own second moment.

    M ← .9 M + .1 G,  V ← .95 V + .05 GᵀG,  W ← W - η M (V + εI)^(-½). Each group of a convolution
    has its own V. Eigenvalues of V below its rounding count as that rounding. ε is far below the
    squares of usual gradients.
    """

    def __init__(
        self,
        params: Groups,
        layers: Sequence[PlainLayer],
        lr: float,
        *,
        decay: float = 0.95,
        momentum: float = 0.9,
        eps: float = 1e-12,
        weight_decay: float = 0.0,
    ) -> None:
        """Take the weights of some layers.

        Args:
            params: groups of weights.
            layers: the layers of these weights.
            lr: η.
            decay: of the average V.
            momentum: of the average M.
            eps: ε.
            weight_decay: d.
        """
        self.num_groups = {layer.weight: getattr(layer, "groups", 1) for layer in layers}
        options = {"lr": lr, "decay": decay, "momentum": momentum, "eps": eps}
        super().__init__(params, options | {"weight_decay": weight_decay})

    def find_direction(
        self, weight: nn.Parameter, group: dict[str, Any], state: dict[str, Any]
    ) -> Tensor:
        """Return M (V + εI)^(-½); NaN if the gradient is not finite."""
        assert weight.grad is not None
        groups, num_inputs = self.num_groups[weight], weight[0].numel()
        grad = weight.grad.reshape(groups, -1, num_inputs)
        grad = grad.to(widest_dtype(weight.device, weight.dtype))
        if not state:
            state["momentum"] = torch.zeros_like(grad)
            state["average"] = grad.new_zeros(groups, num_inputs, num_inputs)
        state["momentum"].lerp_(grad, 1 - group["momentum"])
        state["average"].lerp_(grad.mT @ grad, 1 - group["decay"])
        if not bool(state["average"].isfinite().all()):  # eigh would raise
            return torch.full_like(weight, torch.nan)
        values, vectors = torch.linalg.eigh(state["average"])
        rounding = num_inputs * torch.finfo(values.dtype).eps * values[:, -1:]
        roots = (values.maximum(rounding) + group["eps"]).rsqrt()
        direction = (state["momentum"] @ vectors * roots[:, None]) @ vectors.mT
        return direction.to(weight.dtype)
