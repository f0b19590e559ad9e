"""A factorization kept over several backward passes, for ``every=T``."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

__all__ = ["KeptFactor"]


class KeptFactor:
    """The Cholesky factor of xᵀx/b + λI from an earlier backward, refreshed every T passes.

    It is no part of a checkpoint: copies and unpickled layers start without one, so a resumed run
    refreshes first. A change of λ refreshes too.
    """

    def __init__(self, every: int) -> None:
        """Start without a factor."""
        self.every = every
        self._age = 0
        self._lam: float | None = None
        self._factor: Tensor | None = None

    def find(self, lam: float, make: Callable[[], Tensor]) -> Tensor:
        """Return the kept factor, or ``make()`` where it is due."""
        if self._factor is None or self._age >= self.every or self._lam != lam:
            self._factor, self._lam, self._age = make(), lam, 0
        self._age += 1
        return self._factor

    def __reduce__(self) -> Any:
        return KeptFactor, (self.every,)
