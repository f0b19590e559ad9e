"""The method's settings and their checks, at the moment they are set."""

import math
import numbers

import torch

from trainact.errors import TrActTypeError, TrActValueError

__all__ = [
    "DEFAULT_LAM",
    "check_lam",
    "check_moment_dtype",
    "choose_solve_dtype",
    "resolve_moment_dtype",
]

DEFAULT_LAM = 0.1
"""λ of the paper's experiments; it suggests 0.05 for short and 0.2 for long training."""


def check_lam(lam: object) -> float:
    """Return ``lam`` (λ) as a float, or say why it cannot be used.

    >>> check_lam(1)
    1.0
    """
    advice = "use a positive finite number; 0.1 is the paper's default."
    if isinstance(lam, bool) or not isinstance(lam, numbers.Real):
        raise TrActTypeError(f"lam={lam!r} is a {type(lam).__name__}; {advice}")
    try:
        value = float(lam)
    except OverflowError:
        value = math.inf
    if not (math.isfinite(value) and value > 0):
        raise TrActValueError(f"lam={lam!r} is out of range; {advice}")
    return value


def check_moment_dtype(moment_dtype: object) -> torch.dtype | None:
    """Return ``moment_dtype`` if it is None, float32 or float64, or say why it cannot be used."""
    if moment_dtype is None or moment_dtype in (torch.float32, torch.float64):
        return moment_dtype
    message = (
        f"moment_dtype={moment_dtype!r} is not accepted; use torch.float32, torch.float64 (for raw "
        "pixel ranges), or None for float32 (float64 where the weight is)."
    )
    if isinstance(moment_dtype, torch.dtype):
        raise TrActValueError(message)
    raise TrActTypeError(message)


def resolve_moment_dtype(
    moment_dtype: torch.dtype | None, weight_dtype: torch.dtype
) -> torch.dtype:
    """Return the dtype that the products of the second moment run in."""
    if moment_dtype is not None:
        return moment_dtype
    return torch.float64 if weight_dtype == torch.float64 else torch.float32


def choose_solve_dtype(device: torch.device, moment_dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of sums and of the solve: float64 wherever the device has it."""
    return moment_dtype if device.type == "mps" else torch.float64
