"""The second moment xᵀx/b of a layer's rows: measured, added up, summed over ranks, factorized."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from trainact.cholesky import Factor, factorize
from trainact.options import Precision, widest_dtype
from trainact.outer_products import sum_outer_products
from trainact.rows import Patches, RowSample, count_rows
from trainact.synchronisation import SumOverRanks

__all__ = ["KeptMoment", "SecondMoment"]


class SecondMoment:
    """Σ xᵀx and Σ b of any number of rows, and the Cholesky factor of xᵀx/b + λI once needed."""

    def __init__(self, total: Tensor, num_rows: int | Tensor) -> None:
        """Take Σ xᵀx, shape [g, n, n], and Σ b, a number or a scalar of the same dtype."""
        self.total = total
        self.num_rows = num_rows
        self.lam: float | None = None
        """λ of the factor; None until there is one."""
        self._factor: Factor | None = None
        self._sum: SumOverRanks | None = None

    @classmethod
    def measure(
        cls, x: Tensor, patches: Patches, precision: Precision, sample: RowSample | None = None
    ) -> "SecondMoment":
        """Return the second moment of a layer's input; see :func:`sum_outer_products`."""
        return cls(sum_outer_products(x, patches, precision, sample), count_rows(x, patches))

    def add_(self, other: "SecondMoment") -> None:
        """Add the rows of another second moment; tensors are changed in place."""
        self.total += other.total
        self.num_rows += other.num_rows

    def begin_sum_over_ranks(self, sync_slot: int) -> None:
        """Begin to add the rows of all ranks, in one collective of one dtype on all of them."""
        total, num_rows = self.total, self.num_rows
        total = total.to(widest_dtype(total.device, total.dtype))
        if not isinstance(num_rows, Tensor):
            num_rows = total.new_full((), num_rows)
        buffer = torch.cat([total.flatten(), num_rows.reshape(1)])
        self._sum = SumOverRanks(buffer, sync_slot)

    def wait(self) -> None:
        """Wait for the sum over ranks, if one was begun."""
        if self._sum is not None:
            buffer, self._sum = self._sum.wait(), None
            self.total, self.num_rows = buffer[:-1].view(self.total.shape), buffer[-1]

    def divide_by_rows(self) -> Tensor:
        """Return xᵀx/b, shape [g, n, n]; zeros if there are no rows."""
        if isinstance(self.num_rows, Tensor):
            return self.total / self.num_rows.clamp(min=1)
        return self.total / max(1, self.num_rows)

    def factorize(self, lam: float) -> Factor:
        """Return the Cholesky factor of xᵀx/b + λI; it is computed once per λ."""
        if self._factor is None or self.lam != lam:
            self.wait()
            self._factor, self.lam = factorize(self.divide_by_rows(), lam), lam
        return self._factor


class KeptMoment:
    """A second moment used for several backward passes, for ``every=T``.

    It is not part of a checkpoint: copies and unpickled layers start without one, so a resumed run
    measures first. So does a run whose λ changes.
    """

    def __init__(self, every: int) -> None:
        """Start without a second moment."""
        self.every = every
        self._age = 0
        self._moment: SecondMoment | None = None

    def find(self, lam: float, measure: Callable[[], SecondMoment]) -> SecondMoment:
        """Return the kept second moment; if it is due or belongs to another λ, measure first."""
        if self._moment is None or self._age >= self.every or self._moment.lam != lam:
            self._moment, self._age = measure(), 0
        self._age += 1
        return self._moment

    def __reduce__(self) -> Any:
        return KeptMoment, (self.every,)
