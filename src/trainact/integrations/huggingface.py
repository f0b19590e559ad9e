"""The second moment of the whole batch for ``gradient_accumulation_steps`` in Hugging Face."""

from typing import Any

from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from trainact.integrations.accumulate_block import AccumulateBlock
from trainact.wrapped_layers import check_tract

__all__ = ["TrActAccumulation"]


class TrActAccumulation(TrainerCallback):
    """Precondition once per optimizer step, with the rows of all its micro-batches.

    ``Trainer(..., callbacks=[TrActAccumulation()])`` gives the gradient of the whole batch. Trainer
    clips before the last callback of a step, so this callback sets ``max_grad_norm`` to 0 during
    the step and clips the finished gradient itself; the logged ``grad_norm`` is that of the plain
    gradient. If training ends inside a step, the gradients from before the step are restored.
    Trainer does not report exceptions to callbacks: after one, train again with the same callback
    or call `abandon`.

    Raises:
        TrActValueError: when training starts, for a model that lost a TrAct layer.
    """

    def __init__(self) -> None:
        self._block = AccumulateBlock()
        self._saved: tuple[TrainingArguments, float] | None = None

    def abandon(self) -> None:
        """Abandon an unfinished step, and restore the gradients and ``max_grad_norm``."""
        self._block.abandon()
        self._restore_max_grad_norm()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Clean up after an exception in an earlier run, and check the model."""
        self.abandon()
        check_tract(kwargs["model"])

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Open the block before the first micro-batch of a step.

        An epoch that stops inside a step leaves its gradients to the next one, and its block.
        """
        if self._block.is_open:
            return
        self._block.open(kwargs["model"])
        self._saved = args, args.max_grad_norm
        args.max_grad_norm = 0.0

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Close the block, and clip."""
        self._block.close()
        self._restore_max_grad_norm()
        if args.max_grad_norm and args.max_grad_norm > 0:
            nn.utils.clip_grad_norm_(kwargs["model"].parameters(), args.max_grad_norm)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Abandon an unfinished step."""
        self.abandon()

    def _restore_max_grad_norm(self) -> None:
        if self._saved is not None:
            args, max_grad_norm = self._saved
            args.max_grad_norm = max_grad_norm
            self._saved = None
