"""Checks of options that need no torch."""

import math
import numbers
from typing import Literal, TypeAlias

from trainact.defaults import DEFAULT_LAM
from trainact.errors import TrActTypeError, TrActValueError

__all__ = ["Center", "as_float", "check_center", "check_flag", "check_lam"]

Center: TypeAlias = bool | Literal["batchnorm"]


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
    value = as_float(lam)
    if not (math.isfinite(value) and value > 0):
        raise TrActValueError(f"lam={lam!r} is out of range; {advice}")
    return value


def check_center(center: object) -> None:
    """Raise a TrActError if ``center`` is not an accepted value."""
    if isinstance(center, bool) or (isinstance(center, str) and center == "batchnorm"):
        return
    message = (
        f"center={center!r} is not accepted; use True (changes the gradients of weight and bias "
        "together), 'batchnorm' (for a layer that a batch norm follows), or False."
    )
    raise TrActValueError(message) if isinstance(center, str) else TrActTypeError(message)


def check_flag(name: str, value: object) -> None:
    """Raise a TrActTypeError if an option is neither True nor False."""
    if not isinstance(value, bool):
        raise TrActTypeError(f"{name}={value!r} is not accepted; use True or False.")


def as_float(number: numbers.Real) -> float:
    """Return a number as a float; infinity if it is too large for one."""
    try:
        return float(number)
    except OverflowError:
        return math.inf
