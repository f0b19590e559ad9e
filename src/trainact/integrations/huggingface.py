"""Whole-batch statistics for ``gradient_accumulation_steps`` in Hugging Face's Trainer."""

from typing import Any

from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from trainact.integrations.window import Window
from trainact.roster import check_tract

__all__ = ["TrActAccumulation"]


class TrActAccumulation(TrainerCallback):
    """Precondition once per optimizer step, with the rows of all its micro-batches.

    ``Trainer(..., callbacks=[TrActAccumulation()])`` gives the gradient of the whole batch. Trainer
    clips before it calls a callback for the last time, so during a step this one keeps
    ``max_grad_norm`` to itself and clips the finished gradient to it; the logged ``grad_norm`` is
    that of the gradient without TrAct. Training that ends inside a step leaves the gradients as
    before that step. Trainer tells its callbacks of no exception: after one, train again with the
    same callback or call :meth:`abandon`.

    Raises:
        TrActValueError: when training starts, for a model that lost a TrAct layer.
    """

    def __init__(self) -> None:
        self._window = Window()
        self._taken: tuple[TrainingArguments, float] | None = None

    def abandon(self) -> None:
        """Leave a step that will not be finished: no layer stays inside a window."""
        self._window.abandon()
        self._give_back()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Clean up after an exception in an earlier training, and check the model."""
        self.abandon()
        check_tract(kwargs["model"])

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Open the window before a step's first micro-batch."""
        self.abandon()
        self._window.open(kwargs["model"])
        self._taken = args, args.max_grad_norm
        args.max_grad_norm = 0.0

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Close it, and clip."""
        self._window.close()
        self._give_back()
        if args.max_grad_norm and args.max_grad_norm > 0:
            nn.utils.clip_grad_norm_(kwargs["model"].parameters(), args.max_grad_norm)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Abandon a step that got no optimizer step."""
        self.abandon()

    def _give_back(self) -> None:
        if self._taken is not None:
            args, max_grad_norm = self._taken
            args.max_grad_norm = max_grad_norm
            self._taken = None
