"""What one call of a layer says about its inputs: b, n, and the second moment or its factor."""

import math

import torch
from torch import Tensor

from trainact.moments import WIDE_INPUTS, sum_outer_products
from trainact.preconditioner import factorize
from trainact.rows import Patches, count_rows, sample_rows, unfold_rows
from trainact.settings import Options, choose_solve_dtype, resolve_moment_dtype
from trainact.synchronisation import sum_over_ranks

__all__ = ["RowStatistics"]


class RowStatistics:
    """The rows of one call, all of them or a sample, and their second moment."""

    def __init__(
        self,
        x: Tensor,
        patches: Patches,
        options: Options,
        grad_weight: Tensor,
        seed: Tensor | None,
    ) -> None:
        """Take the layer's input and how it is cut; ``grad_weight`` gives n and the dtype."""
        self.x, self.patches, self.options, self.seed = x.detach(), patches, options, seed
        self.count = count_rows(x, patches)
        """b"""
        self.num_inputs = math.prod(grad_weight.shape[1:])
        """n"""
        self.dtype = resolve_moment_dtype(options.moment_dtype, grad_weight.dtype)
        is_wide = self.num_inputs >= WIDE_INPUTS
        self.sum_dtype = self.dtype if is_wide else choose_solve_dtype(x.device, self.dtype)
        """Of sums and of the solve; with a wide second moment float64 would take as long again."""
        sample = options.rows
        self.sample = sample if sample is not None and sample < self.count else None

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

    def factorize(self, lam: float, channel: int | None) -> Tensor:
        """Return the Cholesky factor of xᵀx/b + λI, over all ranks where ``sync`` says so."""
        total = self.sum_outer_products()
        if not self.options.sync or channel is None:
            second_moment = total / self.count
        else:
            num_rows = torch.full((), self.count, dtype=total.dtype, device=total.device)
            total, num_rows = sum_over_ranks(total, num_rows, channel)
            second_moment = total / num_rows.clamp(min=1)
        return factorize(second_moment, lam)
