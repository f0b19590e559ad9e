"""The options of TrAct, and their checks."""

import numbers
from typing import Any, NamedTuple

import torch

from trainact.defaults import DEFAULT_LAM
from trainact.errors import TrActTypeError, TrActValueError
from trainact.option_checks import Center, as_float, check_center, check_flag, check_lam

__all__ = [
    "DEFAULT_LAM",
    "WIDE_INPUTS",
    "Center",
    "Options",
    "Precision",
    "check_lam",
    "check_options",
    "choose_precision",
    "widest_dtype",
]

WIDE_INPUTS = 256
"""A second moment of so many columns is wide: sums and solve in float64 would double its time."""


class Options(NamedTuple):
    """Which matrix divides the gradient, and how it is computed.

    The defaults are the paper's formula, exact on one process.
    """

    moment_dtype: torch.dtype | None = None
    """Dtype of the products; None means float32, and float64 for float64 weights."""
    every: int = 1
    """Number of backward passes that share one factorization."""
    sample_size: int | None = None
    """Number of rows to estimate the second moment from (``rows=``); None takes all rows."""
    sync: bool = False
    """Whether the second moment is summed over the ranks."""
    center: Center = False
    """Whether the covariance replaces the second moment; see :mod:`trainact.preconditioner`."""
    relative: bool = False
    """Whether λ is multiplied by the matrix's mean eigenvalue."""
    moment_decay: float = 0.0
    """β of the moving average over steps; 0 uses each step's own rows."""

    @property
    def changes_bias(self) -> bool:
        """Whether the bias gets another gradient too."""
        return self.center is True

    def as_keywords(self) -> dict[str, Any]:
        """Return the options by the keywords of :func:`trainact.TrAct`."""
        values = self._asdict()
        return {("rows" if name == "sample_size" else name): values[name] for name in values}


class Precision(NamedTuple):
    """The dtypes of a second moment."""

    products: torch.dtype
    sums: torch.dtype
    """Of the sums over blocks of rows, and of the solve."""


def check_options(options: Options) -> Options:
    """Return ``options``, with ``moment_decay`` as a float.

    Raises:
        TrActTypeError: an option is of the wrong type.
        TrActValueError: an option is out of range, or two do not go together.
    """
    _check_moment_dtype(options.moment_dtype)
    _check_count("every", options.every, "1 refreshes the factorization at every backward")
    if options.sample_size is not None:
        _check_count("rows", options.sample_size, "None takes all rows")
    for name in ("sync", "relative"):
        check_flag(name, getattr(options, name))
    check_center(options.center)
    decay = _check_decay(options.moment_decay)
    if decay and options.every > 1:
        raise TrActValueError(
            f"every={options.every} and moment_decay={decay:g} exclude each other: a moving "
            "average needs the rows of every backward. Use every=1, or moment_decay=0."
        )
    return options._replace(moment_decay=decay)


def choose_precision(
    moment_dtype: torch.dtype | None,
    weight_dtype: torch.dtype,
    device: torch.device,
    num_rows: int | None = None,
    num_inputs: int = 0,
) -> Precision:
    """Return the dtypes of a second moment.

    Products have the moment's dtype, and sums float64. Products of fewer rows than columns are
    cheap, and float64 too. Sums of a wide second moment have the products' dtype.

    Args:
        moment_dtype: the option.
        weight_dtype: decides if ``moment_dtype`` is None.
        device: if it does not support float64, everything has the moment's dtype.
        num_rows: b; None if it is not known.
        num_inputs: n.
    """
    if moment_dtype is None:
        moment_dtype = torch.float64 if weight_dtype == torch.float64 else torch.float32
    exact = widest_dtype(device, moment_dtype)
    if num_rows is not None and num_rows < num_inputs:
        return Precision(exact, exact)
    return Precision(moment_dtype, moment_dtype if num_inputs >= WIDE_INPUTS else exact)


def widest_dtype(device: torch.device, dtype: torch.dtype) -> torch.dtype:
    """Return float64, or ``dtype`` on a device without float64."""
    return torch.float64 if has_float64(device) else dtype


def has_float64(device: torch.device) -> bool:
    """Return whether the device computes in float64."""
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


def _check_decay(decay: object) -> float:
    advice = "use a number from 0 (no moving average) to below 1, such as 0.9."
    if isinstance(decay, bool) or not isinstance(decay, numbers.Real):
        raise TrActTypeError(f"moment_decay={decay!r} is a {type(decay).__name__}; {advice}")
    value = as_float(decay)
    if not 0 <= value < 1:
        raise TrActValueError(f"moment_decay={decay!r} is out of range; {advice}")
    return value


def _check_count(name: str, value: object, default: str) -> None:
    advice = f"use a whole number of at least 1; {default}."
    if isinstance(value, bool) or not isinstance(value, int):
        raise TrActTypeError(f"{name}={value!r} is a {type(value).__name__}; {advice}")
    if value < 1:
        raise TrActValueError(f"{name}={value!r} is out of range; {advice}")
