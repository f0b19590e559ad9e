"""A step of the optimizers; with fp16, one that overflows is taken back."""

from collections.abc import Sequence

from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from torch import Tensor, nn

__all__ = ["Stepper"]


class Stepper:
    """Lets all optimizers of a run step, or none.

    fp16 scales the loss, so that small gradients do not vanish, and now and then a number is too
    large. Then the scale is halved and no weight changes. The forward pass has changed buffers by
    then, such as the running statistics of batch normalisation, and these are put back.

    Args:
        accelerator: has the scaler, where there is one.
        network: whose buffers are watched.
        optimizers: all that are to step together.
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
        """Note what may have to be put back; call it before the forward pass."""
        self.before = [buffer.clone() for buffer in self.buffers]

    def finish(self, norm: Tensor) -> bool:
        """Step with gradients of this norm, all unscaled, and forget them.

        Accelerate's own step would change the scale between two optimizers, and would let one
        step where the other's gradients overflowed.

        Returns:
            Whether the weights have changed.
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
