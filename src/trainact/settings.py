"""The method's settings and their checks, at the moment they are set."""

import math
import numbers
from typing import NamedTuple

import torch

from trainact.errors import TrActTypeError, TrActValueError

__all__ = [
    "DEFAULT_LAM",
    "Options",
    "check_lam",
    "check_options",
    "choose_solve_dtype",
    "resolve_moment_dtype",
]

DEFAULT_LAM = 0.1
"""λ of the paper's experiments; it suggests 0.05 for short and 0.2 for long training."""


class Options(NamedTuple):
    """How the second moment is obtained; the defaults are exact for one process."""

    moment_dtype: torch.dtype | None = None
    """Dtype of the products; None is float32, and float64 for float64 weights."""
    every: int = 1
    """Backward passes that share one factorization."""
    rows: int | None = None
    """Rows to estimate the second moment from; None takes all."""
    sync: bool = False
    """Whether second moments are summed over the ranks."""


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


def check_options(options: Options) -> Options:
    """Return ``options`` if every one of them can be used, or say why not."""
    _check_moment_dtype(options.moment_dtype)
    _check_count("every", options.every, "1 refreshes the factorization at every backward")
    if options.rows is not None:
        _check_count("rows", options.rows, "None takes all rows")
    if not isinstance(options.sync, bool):
        raise TrActTypeError(f"sync={options.sync!r} is not accepted; use True or False.")
    return options


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


def _check_moment_dtype(moment_dtype: object) -> None:
    if moment_dtype is None or moment_dtype in (torch.float32, torch.float64):
        return
    message = (
        f"moment_dtype={moment_dtype!r} is not accepted; use torch.float32, torch.float64 (for raw "
        "pixel ranges), or None for float32 (float64 where the weight is)."
    )
    if isinstance(moment_dtype, torch.dtype):
        raise TrActValueError(message)
    raise TrActTypeError(message)


def _check_count(name: str, value: object, default: str) -> None:
    advice = f"use a whole number of at least 1; {default}."
    if isinstance(value, bool) or not isinstance(value, int):
        raise TrActTypeError(f"{name}={value!r} is a {type(value).__name__}; {advice}")
    if value < 1:
        raise TrActValueError(f"{name}={value!r} is out of range; {advice}")
