"""The options of TrAct, and their checks."""

import math
import numbers
from typing import Any, NamedTuple

import torch

from trainact.errors import TrActTypeError, TrActValueError

__all__ = [
    "DEFAULT_LAM",
    "Options",
    "Precision",
    "check_lam",
    "check_options",
    "choose_precision",
]

DEFAULT_LAM = 0.1
"""λ of the paper's experiments; the paper suggests 0.05 for short and 0.2 for long training."""


class Options(NamedTuple):
    """How the second moment is computed; the defaults are exact on one process."""

    moment_dtype: torch.dtype | None = None
    """Dtype of the products; None means float32, and float64 for float64 weights."""
    every: int = 1
    """Number of backward passes that share one factorization."""
    sample_size: int | None = None
    """Number of rows to estimate the second moment from (``rows=``); None takes all rows."""
    sync: bool = False
    """Whether the second moment is summed over the ranks."""

    def as_keywords(self) -> dict[str, Any]:
        """Return the options by the keywords of :func:`trainact.TrAct`."""
        values = self._asdict()
        return {("rows" if name == "sample_size" else name): values[name] for name in values}


class Precision(NamedTuple):
    """The dtypes of a second moment."""

    products: torch.dtype
    sums: torch.dtype
    """Of the sums over blocks of rows, and of the solve."""


def check_lam(lam: object) -> float:
    """Return ``lam`` (λ) as a float.

    >>> check_lam(1)
    1.0

    Raises:
        TrActTypeError: ``lam`` is not a real number.
        TrActValueError: ``lam`` is not positive and finite.
    """
    advice = f"use a positive finite number; {DEFAULT_LAM:g} is the paper's default."
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
    """Return ``options`` unchanged.

    Raises:
        TrActTypeError: an option is of the wrong type.
        TrActValueError: an option is out of range.
    """
    _check_moment_dtype(options.moment_dtype)
    _check_count("every", options.every, "1 refreshes the factorization at every backward")
    if options.sample_size is not None:
        _check_count("rows", options.sample_size, "None takes all rows")
    if not isinstance(options.sync, bool):
        raise TrActTypeError(f"sync={options.sync!r} is not accepted; use True or False.")
    return options


def choose_precision(
    moment_dtype: torch.dtype | None, weight_dtype: torch.dtype, device: torch.device
) -> Precision:
    """Return the dtypes of the second moment: sums are float64 if the device supports it."""
    if moment_dtype is None:
        moment_dtype = torch.float64 if weight_dtype == torch.float64 else torch.float32
    return Precision(moment_dtype, torch.float64 if _has_float64(device) else moment_dtype)


def _has_float64(device: torch.device) -> bool:
    return device.type != "mps"


def _check_moment_dtype(moment_dtype: object) -> None:
    if moment_dtype is None or moment_dtype in (torch.float32, torch.float64):
        return
    message = (
        f"moment_dtype={moment_dtype!r} is not accepted; use torch.float32, torch.float64 (for raw "
        "pixel values), or None for float32 (float64 if the weight is float64)."
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
