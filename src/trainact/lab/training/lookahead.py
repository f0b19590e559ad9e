"""Lookahead: slow weights that follow the trained ones and replace them every few steps.

Zhang, Lucas, Hinton, Ba: Lookahead Optimizer: k steps forward, 1 step back, 2019. Here the decay
grows during the run, and buffers are averaged too.
"""

from typing import Any

import torch
from torch import Tensor, nn

from trainact.errors import TrActValueError
from trainact.lab.recipes.recipe import OptimizerFields
from trainact.lab.text import count

__all__ = ["Lookahead"]


class Lookahead:
    """The slow copy of all floating-point entries of a network's state dict.

    Let s be ``lookahead_steps``, d ``lookahead_decay``, p ``lookahead_power`` and T the steps of
    the run. After every s-th step t, with α = dˢ (t/T)ᵖ, slow ← α slow + (1 − α) fast and then
    fast ← slow. After the last step fast ← slow.
    """

    def __init__(self, network: nn.Module, fields: OptimizerFields, steps: int) -> None:
        """Copy the network before its first of ``steps`` steps.

        Raises:
            TrActValueError: the run has fewer steps than there are between two averages.
        """
        if steps < fields.lookahead_steps:
            raise TrActValueError(
                f"optimizer.lookahead_steps is {fields.lookahead_steps}, but the run has only "
                f"{count(steps, 'step')}: it would end with its initial weights. Train for more "
                f"epochs, or set optimizer.lookahead_steps to at most {steps}; 0 turns it off."
            )
        self.network, self.fields, self.steps = network, fields, steps
        self.slow = {name: value.clone() for name, value in self._list_fast()}

    @torch.no_grad()
    def update(self, done: int) -> None:
        """Average and replace the weights if it is time; ``done`` counts the run's steps so far."""
        every = self.fields.lookahead_steps
        is_due = done % every == 0
        if not is_due and done != self.steps:
            return
        part = (done / self.steps) ** self.fields.lookahead_power
        decay = self.fields.lookahead_decay**every * part
        for name, fast in self._list_fast():
            if is_due:
                self.slow[name].lerp_(fast, 1 - decay)
            fast.copy_(self.slow[name])

    def state(self) -> dict[str, Tensor]:
        """Return the slow entries, for a checkpoint."""
        return self.slow

    def load(self, state: dict[str, Tensor]) -> None:
        """Continue from the slow entries of a checkpoint.

        Raises:
            TrActValueError: the checkpoint is of another network.
        """
        if state.keys() != self.slow.keys():
            raise TrActValueError(
                "the checkpoint has no lookahead average of this network; choose another --out to "
                "start again."
            )
        for name, value in state.items():
            self.slow[name].copy_(value)

    def _list_fast(self) -> list[tuple[str, Any]]:
        entries = self.network.state_dict().items()
        return [(name, value) for name, value in entries if value.is_floating_point()]
