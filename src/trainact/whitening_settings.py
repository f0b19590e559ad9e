"""The settings of a whitened start, and their checks; they need no torch."""

import math
import numbers
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from trainact.errors import TrActTypeError, TrActValueError
from trainact.option_checks import as_float, check_flag

__all__ = ["Settings", "check_max_images", "check_settings", "count_directions", "find_factor"]

T = TypeVar("T")
DEFAULT_EPS = {"eigen": 5e-4, "random": 0.1}
SCALES = ("keep", "unit")


class Settings(NamedTuple):
    """The checked arguments of `trainact.whiten` that describe the filters."""

    filters: str
    scale: str | float
    eps: float
    signs: bool
    freeze: bool
    seed: int


def check_settings(
    filters: object, scale: object, eps: object, signs: object, freeze: object, seed: object
) -> Settings:
    """Return the arguments of `trainact.whiten` as settings.

    Raises:
        TrActTypeError: an argument is of the wrong type.
        TrActValueError: an argument is out of range.
    """
    if not isinstance(filters, str) or filters not in DEFAULT_EPS:
        raise TrActValueError(f"filters={filters!r} is unknown; use 'eigen' or 'random'.")
    if isinstance(scale, str):
        if scale not in SCALES:
            raise TrActValueError(
                f"scale={scale!r} is unknown; use 'keep', 'unit' or a positive number."
            )
    else:
        scale = _check_number("scale", scale, "use 'keep', 'unit' or a positive finite number.")
    if eps is None:
        eps = DEFAULT_EPS[filters]
    advice = (
        f"use a positive finite number; {DEFAULT_EPS[filters]:g} is the default for {filters!r}."
    )
    if not (filters == "eigen" and eps == 0 and not isinstance(eps, bool)):
        eps = _check_number("eps", eps, advice)
    check_flag("signs", signs)
    check_flag("freeze", freeze)
    if isinstance(seed, bool) or not isinstance(seed, int) or not -(2**63) <= seed < 2**63:
        raise TrActTypeError(f"seed={seed!r} is not accepted; use a whole number of 64 bits.")
    return Settings(filters, scale, float(eps), bool(signs), bool(freeze), seed)


def check_max_images(max_images: object) -> None:
    """Raise a TrActError if ``max_images`` is neither a positive whole number nor None."""
    advice = "use a positive whole number, or None to read all batches."
    if max_images is None:
        return
    if isinstance(max_images, bool) or not isinstance(max_images, int):
        raise TrActTypeError(f"max_images={max_images!r} is not accepted; {advice}")
    if max_images < 1:
        raise TrActValueError(f"max_images={max_images!r} is out of range; {advice}")


def _check_number(name: str, value: object, advice: str) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TrActTypeError(f"{name}={value!r} is a {type(value).__name__}; {advice}")
    number = as_float(value)
    if not (math.isfinite(number) and number > 0):
        raise TrActValueError(f"{name}={value!r} is out of range; {advice}")
    return number


def count_directions(num_outputs: int, num_inputs: int, signs: bool) -> int:
    """Return how many directions the filters take if the rows vary in all of them.

    >>> count_directions(64, 27, signs=True), count_directions(16, 27, signs=True)
    (27, 8)
    """
    return min(-(-num_outputs // 2) if signs else num_outputs, num_inputs)


def find_factor(
    scale: str | float, before: T, after: T, measure: Callable[[T], float], where: str
) -> float:
    """Return the number that whitened filters are multiplied by.

    Args:
        scale: of the settings.
        before: the layer's weight before whitening.
        after: the whitened filters.
        measure: returns the mean square of the outputs with a weight.
        where: the layer, for the message.

    Raises:
        TrActValueError: ``scale="keep"`` has nothing to keep.
    """
    if scale == "unit":
        return 1.0
    if scale != "keep":
        return float(scale)
    old, new = measure(before), measure(after)
    if not (math.isfinite(old) and old > 0):
        raise TrActValueError(
            f"{where}the mean square of its outputs is {old:g} before whitening, and scale='keep' "
            "would keep it; use scale='unit' or a positive number."
        )
    return math.sqrt(old / new)
