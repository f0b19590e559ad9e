"""The second moment xᵀx/b of a layer's rows: measured, added up, summed over ranks, factorized.

It may be centred: then it is the covariance C = xᵀx/b − μμᵀ that is factorized. And it may be a
moving average over steps, in which each step counts as one row.
"""

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from trainact.cholesky import Factor, factorize
from trainact.options import Precision, widest_dtype
from trainact.outer_products import sum_centered_products, sum_outer_products
from trainact.rows import Patches, RowSample, count_rows, sum_rows
from trainact.synchronisation import SumOverRanks
from trainact.torch_internals import is_transform_tensor

__all__ = ["KeptMoment", "SecondMoment", "Sums", "measure_mean", "scale_damping"]

CONSTANT = 4096
"""Rows are constant if their variance is at most this many rounding errors of their square."""

Sums: TypeAlias = tuple[Tensor, int | Tensor, Tensor | None]


class SecondMoment:
    """Σ xᵀx, Σ b and perhaps Σ x of any number of rows, and a Cholesky factor once needed."""

    def __init__(
        self, total: Tensor, num_rows: int | Tensor, row_sum: Tensor | None = None
    ) -> None:
        """Take sums over rows.

        Args:
            total: Σ xᵀx, shape [g, n, n].
            num_rows: Σ b, a number or a tensor of one number of the same dtype.
            row_sum: Σ x, shape [g, n], of the same dtype; with it the moment is centred.
        """
        self.total = total
        self.num_rows = num_rows
        self.row_sum = row_sum
        self.lam: float | None = None
        """λ of the factor; None until there is one."""
        self.has_calls = False
        """Inside ``accumulate``: whether a layer was called that adds its rows."""
        self._factor: Factor | None = None
        self._sum: SumOverRanks | None = None

    @classmethod
    def measure(
        cls,
        x: Tensor,
        patches: Patches,
        precision: Precision,
        sample: RowSample | None = None,
        *,
        center: bool = False,
    ) -> "SecondMoment":
        """Return the second moment of a layer's input; see :func:`sum_outer_products`.

        The sums of a centred one are in float64 if the device supports it: then nothing is lost
        when μμᵀ is added here, so that sums add up, and subtracted before the factorization.
        """
        num_rows = count_rows(x, patches)
        if not center:
            return cls(sum_outer_products(x, patches, precision, sample), num_rows)
        mean = measure_mean(x, patches, precision)
        total = sum_centered_products(x, mean, patches, precision, sample)
        row_sum = mean * num_rows
        total = torch.baddbmm(total, row_sum.unsqueeze(-1), mean.unsqueeze(-2))
        return cls(total, num_rows, row_sum)

    @classmethod
    def without_rows(
        cls, shape: tuple[int, int], dtype: torch.dtype, device: torch.device, *, center: bool
    ) -> "SecondMoment":
        """Return sums of no rows, of shape (g, n), as tensors to add to in place.

        The number of rows has shape [1]: compiled code of torch 2.13 loses an addition in place to
        a scalar tensor on the CPU.
        """
        total = torch.zeros(*shape, shape[1], dtype=dtype, device=device)
        return cls(total, total.new_zeros(1), total.new_zeros(shape) if center else None)

    @property
    def sums(self) -> Sums:
        """The arguments that make this second moment."""
        return self.total, self.num_rows, self.row_sum

    def add_(self, other: "SecondMoment") -> None:
        """Add the rows of another second moment; tensors are changed in place."""
        self.total += other.total
        self.num_rows += other.num_rows
        if self.row_sum is not None and other.row_sum is not None:
            self.row_sum += other.row_sum

    def clear_(self) -> None:
        """Forget all rows; tensors are changed in place."""
        for tensor in self.sums:
            if isinstance(tensor, Tensor):
                tensor.zero_()

    def begin_sum_over_ranks(self, sync_slot: int | None) -> None:
        """Begin to add the rows of all ranks, in one collective of one dtype on all of them.

        Without a slot it is a collective of the default group, for use outside of backward.
        """
        total, num_rows = self.total, self.num_rows
        total = total.to(widest_dtype(total.device, total.dtype))
        if not isinstance(num_rows, Tensor):
            num_rows = total.new_full((), num_rows)
        row_sum = () if self.row_sum is None else (self.row_sum.flatten(),)
        buffer = torch.cat([total.flatten(), *row_sum, num_rows.reshape(1)])
        self._sum = SumOverRanks(buffer, sync_slot)

    def wait(self) -> None:
        """Wait for the sum over ranks, if one was begun."""
        if self._sum is not None:
            buffer, self._sum = self._sum.wait(), None
            size = self.total.numel()
            self.total, self.num_rows = buffer[:size].view(self.total.shape), buffer[-1]
            if self.row_sum is not None:
                self.row_sum = buffer[size:-1].view(self.row_sum.shape)

    def update_average_(self, moment: "SecondMoment", decay: float) -> "SecondMoment":
        """Let a step's second moment enter this moving average, and return the new average.

        Sums shrink by β and the step counts as one row, so that dividing by the rows gives the
        bias-corrected average Σ βᵏ S / Σ βᵏ. Rows that are not finite make the result useless, as
        they should, but the tensors of this average stay as they are; so they do without rows.

        Args:
            moment: of the step's rows, perhaps still being summed over ranks.
            decay: β.
        """
        moment.wait()
        has_rows = torch.as_tensor(moment.num_rows, device=self.total.device) > 0
        total = decay * self.total + moment.divide_by_rows()
        num_rows = decay * self.num_rows + has_rows
        row_sum, mean = self.row_sum, moment.mean()
        if row_sum is not None and mean is not None:
            row_sum = decay * row_sum + mean
        is_valid = total.isfinite().all() & has_rows
        for old, new in zip(self.sums, (total, num_rows, row_sum), strict=True):
            if isinstance(old, Tensor) and isinstance(new, Tensor):
                old.copy_(torch.where(is_valid, new, old))
        return SecondMoment(total, num_rows, row_sum)

    def divide_by_rows(self) -> Tensor:
        """Return xᵀx/b, shape [g, n, n]; zeros if there are no rows."""
        return self._divide(self.total)

    def mean(self) -> Tensor | None:
        """Return μ, shape [g, n], of a centred second moment; otherwise None."""
        return None if self.row_sum is None else self._divide(self.row_sum)

    def factorize(self, lam: float, *, relative: bool = False) -> Factor:
        """Return the Cholesky factor of xᵀx/b + λI, or of C + λI; it is computed once per λ.

        Args:
            lam: λ.
            relative: multiply λ by the mean eigenvalue of the matrix; the same in all calls.
        """
        if self._factor is None or self.lam != lam:
            self.wait()
            matrix, mean = self.divide_by_rows(), self.mean()
            if mean is not None:
                matrix = torch.baddbmm(matrix, mean.unsqueeze(-1), mean.unsqueeze(-2), alpha=-1)
            damping: float | Tensor = lam
            if relative:
                damping = scale_damping(lam, matrix.diagonal(dim1=-2, dim2=-1).mean(-1), mean)
            self._factor, self.lam = factorize(matrix, damping), lam
        return self._factor

    def has_failed(self) -> bool:
        """Return whether the factor is unusable; this synchronises the device.

        A compiled or transformed backward cannot look; it returns False.
        """
        if self._factor is None or torch.compiler.is_compiling():
            return False
        lower, failed = self._factor
        if is_transform_tensor(lower):
            return False
        is_valid = lower.isfinite().all()
        return not bool(is_valid if failed is None else is_valid & (failed == 0).all())

    def to(self, device: torch.device) -> "SecondMoment":
        """Return these sums on a device; from the meta device, sums of no rows."""
        dtype = widest_dtype(device, torch.float32)
        return SecondMoment(*(_move(value, device, dtype) for value in self.sums))

    def _divide(self, total: Tensor) -> Tensor:
        if isinstance(self.num_rows, Tensor):
            return total / self.num_rows.clamp(min=1)
        return total / max(1, self.num_rows)


def measure_mean(x: Tensor, patches: Patches, precision: Precision) -> Tensor:
    """Return the mean row μ of a layer's input, shape [g, n], in float64 if the device has it."""
    dtype = widest_dtype(x.device, precision.sums)
    return sum_rows(x, patches, dtype) / max(1, count_rows(x, patches))


def scale_damping(lam: float, mean_eigenvalue: Tensor, mean: Tensor | None) -> Tensor:
    """Return λ times the mean eigenvalue of each group, shape [g].

    Rows that are constant up to rounding have no scale, and determine no step of the weight: their
    group gets a damping so large that its ΔW is zero.

    Args:
        lam: λ.
        mean_eigenvalue: the trace over n of the matrix that is damped, shape [g].
        mean: μ if the matrix is a covariance, shape [g, n].
    """
    square = mean_eigenvalue if mean is None else mean_eigenvalue + mean.square().mean(-1)
    number = torch.finfo(square.dtype)
    is_constant = mean_eigenvalue <= CONSTANT * number.eps * square
    return torch.where(is_constant, number.max**0.5, lam * mean_eigenvalue)


def _move(value: Any, device: torch.device, dtype: torch.dtype) -> Any:
    if not isinstance(value, Tensor):
        return value
    if value.is_meta:
        return torch.zeros_like(value, device=device, dtype=dtype)
    return value.to(device, dtype)


class KeptMoment:
    """A second moment used for several backward passes, for ``every=T``.

    It is not part of a checkpoint: copies and unpickled layers start without one, so a resumed run
    measures first. So does a run whose λ, device or weight's shape changes, or whose last
    factorization failed.
    """

    def __init__(self, every: int) -> None:
        """Start without a second moment."""
        self.every = every
        self._age = 0
        self._moment: SecondMoment | None = None

    def find(
        self, lam: float, grad_weight: Tensor, measure: Callable[[], SecondMoment]
    ) -> SecondMoment:
        """Return the kept second moment; if it is due or does not fit, measure first."""
        if self._age >= self.every or not self._fits(lam, grad_weight):
            self._moment, self._age = measure(), 0
        assert self._moment is not None
        self._age += 1
        return self._moment

    def _fits(self, lam: float, grad_weight: Tensor) -> bool:
        """Return whether there is one that this gradient can be divided by.

        Its first reuse looks whether the factorization failed.
        """
        moment = self._moment
        if moment is None or moment.lam != lam or moment.total.device != grad_weight.device:
            return False
        if moment.total.shape[-1] != math.prod(grad_weight.shape[1:]):
            return False
        return self._age != 1 or not moment.has_failed()

    def __reduce__(self) -> Any:
        return KeptMoment, (self.every,)
