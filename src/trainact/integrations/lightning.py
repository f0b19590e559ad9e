"""The second moment of the whole batch for ``accumulate_grad_batches`` in Lightning."""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from trainact.errors import TrActValueError
from trainact.integrations.accumulate_block import AccumulateBlock
from trainact.wrapped_layers import check_tract, list_tract_layers

__all__ = ["TrActAccumulation"]


class TrActAccumulation(Callback):
    """Precondition once per optimizer step, with the rows of all its micro-batches.

    ``Trainer(accumulate_grad_batches=4, callbacks=[TrActAccumulation()])`` gives the gradient of
    the whole batch. It is ready before the module's ``on_before_optimizer_step`` and before
    gradient clipping. If training ends inside a step, the gradients from before the step are
    restored.

    Raises:
        TrActValueError: when training starts, for manual optimization (use
            `trainact.accumulate` there) and for a model that lost a TrAct layer.
    """

    def __init__(self) -> None:
        super().__init__()
        self._block = AccumulateBlock()
        self._may_drop = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check the model and the kind of optimization."""
        self._block.abandon()
        check_tract(pl_module)
        if not pl_module.automatic_optimization:
            raise TrActValueError(
                "TrActAccumulation needs automatic optimization; with manual optimization, put "
                "the micro-batches of a step into 'with trainact.accumulate(self):'."
            )

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Open the block before the first micro-batch of a step."""
        if self._block.is_open:
            return
        if batch_idx % trainer.accumulate_grad_batches == 0:
            _clear_gradients(pl_module)
        self._block.open(pl_module)

    def on_before_zero_grad(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Any
    ) -> None:
        """Remember that Lightning may drop gradients; the module can override how."""
        self._may_drop = True

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Any) -> None:
        """Forget the rows of micro-batches whose gradients were dropped."""
        for layer in list_tract_layers(pl_module).values() if self._may_drop else ():
            grad, pool = layer.weight.grad, layer.memory.pool
            if pool is not None and (grad is None or not grad.any()):
                pool.clear_()
        self._may_drop = False

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Any
    ) -> None:
        """Close the block; Lightning clips the gradients after this."""
        self._block.close()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Abandon an unfinished step."""
        self._block.abandon()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Abandon the step."""
        self._block.abandon()


def _clear_gradients(model: LightningModule) -> None:
    """Drop the gradients of the last step; Lightning itself clears them after the forward."""
    for layer in list_tract_layers(model).values():
        for parameter in layer.parameters():
            parameter.grad = None
