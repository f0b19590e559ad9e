"""An ``accumulate`` block that a trainer's hooks open and close."""

import contextlib

from torch import nn

from trainact.accumulation import accumulate

__all__ = ["Window"]


class Window:
    """At most one open :func:`trainact.accumulate` block."""

    def __init__(self) -> None:
        self._block: contextlib.AbstractContextManager[None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether a block is open."""
        return self._block is not None

    def open(self, model: nn.Module) -> None:
        """Enter a block for ``model``; none may be open."""
        block = accumulate(model)
        block.__enter__()
        self._block = block

    def close(self) -> None:
        """Leave the block, if there is one, as its end does: precondition the gradients."""
        block, self._block = self._block, None
        if block is not None:
            block.__exit__(None, None, None)

    def abandon(self) -> None:
        """Leave the block, if there is one, as an exception does: the gradients as before it."""
        block, self._block = self._block, None
        if block is not None:
            error = _AbandonedError()
            block.__exit__(_AbandonedError, error, None)


class _AbandonedError(Exception):
    """Thrown into a block that did not come to its end."""
