"""What one call of a layer says about its inputs: b, n, and the second moment or its factor."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from trainact.moments import WIDE_INPUTS, sum_outer_products
from trainact.preconditioner import factorize
from trainact.rows import Patches, count_rows, sample_rows, unfold_rows
from trainact.settings import Options, choose_solve_dtype, resolve_moment_dtype
from trainact.synchronisation import SumOverRanks

__all__ = ["RowStatistics", "WeightKind"]


class WeightKind(NamedTuple):
    """What of a weight decides its second moment."""

    num_inputs: int
    dtype: torch.dtype

    @classmethod
    def of(cls, weight: Tensor) -> "WeightKind":
        """Describe ``weight``, shape [m, ...]."""
        return cls(math.prod(weight.shape[1:]), weight.dtype)


class RowStatistics:
    """The rows of one call, all of them or a sample, and their second moment."""

    def __init__(
        self,
        x: Tensor,
        patches: Patches,
        options: Options,
        weight: WeightKind,
        seed: Tensor | None,
    ) -> None:
        """Take the layer's input and how it is cut."""
        self.x, self.patches, self.options, self.seed = x.detach(), patches, options, seed
        self.count = count_rows(x, patches)
        """b"""
        self.num_inputs = weight.num_inputs
        """n"""
        self.dtype = resolve_moment_dtype(options.moment_dtype, weight.dtype)
        is_wide = self.num_inputs >= WIDE_INPUTS
        self.sum_dtype = self.dtype if is_wide else choose_solve_dtype(x.device, self.dtype)
        """Of sums and of the solve; with a wide second moment float64 would take as long again."""
        sample = options.rows
        self.sample = sample if sample is not None and sample < self.count else None
        self._sum: SumOverRanks | None = None

    @property
    def are_few(self) -> bool:
        """Whether a b × b system is the smaller one, and nothing asks for the second moment."""
        count = self.count if self.sample is None else self.sample
        return count < self.num_inputs and self.options.every == 1 and not self.options.sync

    def unfold(self) -> Tensor:
        """Return the rows, or the sample of them, shape [g, b, n]."""
        if self.sample is None:
            return unfold_rows(self.x.to(self.dtype), self.patches)
        assert self.seed is not None
        return sample_rows(self.x.to(self.dtype), self.patches, self.sample, self.seed)

    def sum_outer_products(self) -> Tensor:
        """Return xᵀx over all rows, shape [g, n, n]; a sample is scaled up to their number."""
        if self.sample is None:
            return sum_outer_products(
                self.x, self.patches, self.num_inputs, self.dtype, self.sum_dtype
            )
        rows = self.unfold()
        return (rows.mT @ rows).to(self.sum_dtype) * (self.count / self.sample)

    def begin_sum(self, channel: int) -> None:
        """Begin to sum the second moment over all ranks, unless that is under way."""
        if self._sum is None:
            total = self.sum_outer_products()
            num_rows = torch.full((), self.count, dtype=total.dtype, device=total.device)
            self._sum = SumOverRanks(total, num_rows, channel)

    def factorize(self, lam: float, channel: int | None) -> Tensor:
        """Return the Cholesky factor of xᵀx/b + λI, over all ranks where ``sync`` says so."""
        if not self.options.sync or channel is None:
            return factorize(self.sum_outer_products() / self.count, lam)
        self.begin_sum(channel)
        assert self._sum is not None
        total, num_rows = self._sum.wait()
        return factorize(total / num_rows.clamp(min=1), lam)
