"""Whole-batch statistics for ``accumulate_grad_batches`` in Lightning."""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from trainact.errors import TrActValueError
from trainact.integrations.window import Window
from trainact.layers import TrActLayer
from trainact.roster import check_tract

__all__ = ["TrActAccumulation"]


class TrActAccumulation(Callback):
    """Precondition once per optimizer step, with the rows of all its micro-batches.

    ``Trainer(accumulate_grad_batches=4, callbacks=[TrActAccumulation()])`` gives the gradient of
    the whole batch. It is in place before the module's own ``on_before_optimizer_step`` and before
    gradient clipping. Training that ends inside a step leaves the gradients as before that step.

    Raises:
        TrActValueError: when training starts, for manual optimization (use
            :func:`trainact.accumulate` there) and for a model that lost a TrAct layer.
    """

    def __init__(self) -> None:
        super().__init__()
        self._window = Window()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check what cannot be mended later."""
        self._window.abandon()
        check_tract(pl_module)
        if not pl_module.automatic_optimization:
            raise TrActValueError(
                "TrActAccumulation needs automatic optimization; in a manual one, put the "
                "micro-batches of a step into 'with trainact.accumulate(self):'."
            )

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Open the window before a step's first micro-batch."""
        if self._window.is_open:
            return
        if batch_idx % trainer.accumulate_grad_batches == 0:
            _clear_gradients(pl_module)
        self._window.open(pl_module)

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Any
    ) -> None:
        """Close it; Lightning clips the gradients after this."""
        self._window.close()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Abandon a step that got no optimizer step."""
        self._window.abandon()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Leave no layer inside a window."""
        self._window.abandon()


def _clear_gradients(model: LightningModule) -> None:
    """Drop the last step's gradients, which Lightning itself clears only after the forward."""
    for layer in model.modules():
        if isinstance(layer, TrActLayer):
            layer.weight.grad = None
