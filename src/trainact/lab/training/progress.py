"""How far a run is: the epochs and steps that are done and what was measured in them."""

from typing import Any

import torch
from torch import Tensor

from trainact.lab.training.machine import find_exact_dtype

__all__ = ["TOTALS", "Progress"]

TOTALS = ("loss", "correct", "seen", "first_layer_grad_norm", "grad_norm", "finite_steps")
"""What is summed over the steps of an epoch. The first three are sums over images, the others over
steps with a finite gradient. With fp16, a gradient that overflows is not finite: its step is
skipped, and if the loss is not finite either, its images are not counted."""


class Progress:
    """The progress of a run. Only its methods change it.

    Steps are measured on ``device``; ``environment`` is that of this process, for the record.
    """

    _NUMBERS = ("epoch", "step", "seconds", "sessions", "order", "history")

    def __init__(self, device: torch.device, environment: dict[str, Any]) -> None:
        self.epoch = 0  # finished epochs
        self.step, self.seconds = 0, 0.0  # finished steps of the current epoch, their training time
        self.totals = torch.zeros(len(TOTALS), dtype=find_exact_dtype(device), device=device)
        self.sessions = 1  # processes that have worked on the run
        self.environments = [environment]  # of the sessions, this one last
        self.order = ""  # digest of the order of the images in all finished epochs
        self.history: list[dict[str, Any]] = []  # the metrics of each finished epoch

    def add_step(self, measured: Tensor, seconds: float) -> None:
        """Add a step with ``measured`` [6]; ``seconds`` is the epoch's training time so far."""
        self.totals += measured
        self.step += 1
        self.seconds = seconds

    def finish_epoch(self, metrics: dict[str, Any], order: str) -> None:
        """Add the metrics of an epoch, set ``order`` and start the next epoch."""
        self.history.append(metrics)
        self.order = order
        self.epoch, self.step, self.seconds = self.epoch + 1, 0, 0.0
        self.totals = torch.zeros_like(self.totals)

    def state(self) -> dict[str, Any]:
        """Return the part of a checkpoint that `load` reads."""
        numbers = {name: getattr(self, name) for name in self._NUMBERS}
        return {**numbers, "totals": self.totals, "environments": self.environments}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint, in a new session."""
        for name in self._NUMBERS:
            setattr(self, name, state[name])
        self.totals = state["totals"].to(self.totals)
        self.sessions += 1
        earlier = state.get("environments", [])  # older checkpoints have none
        self.environments = [*earlier, *self.environments]
