"""An ``accumulate`` block that a trainer's hooks open and close."""

import contextlib

from torch import nn

from trainact.accumulation import accumulate

__all__ = ["AccumulateBlock"]


class AccumulateBlock:
    """At most one open :func:`trainact.accumulate` block."""

    def __init__(self) -> None:
        self._block: contextlib.AbstractContextManager[None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether a block is open."""
        return self._block is not None

    def open(self, model: nn.Module) -> None:
        """Enter a block for ``model``; no other may be open."""
        block = accumulate(model)
        block.__enter__()
        self._block = block

    def close(self) -> None:
        """Leave the block, if one is open, and precondition the gradients."""
        block, self._block = self._block, None
        if block is not None:
            block.__exit__(None, None, None)

    def abandon(self) -> None:
        """Leave the block, if one is open, and restore the gradients from before it."""
        block, self._block = self._block, None
        if block is not None:
            block.__exit__(_AbandonedError, _AbandonedError(), None)


class _AbandonedError(Exception):
    """Thrown into a block that is not finished."""
