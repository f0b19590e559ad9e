"""Calls of the operators that multiply an input by a weight, as a function mode sees them."""

from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor

from trainact.rows import Patches, describe_patches

__all__ = ["OperatorCall", "read_operator_call"]

_OPERATORS = (F.linear, F.conv1d, F.conv2d, F.conv3d)  # older torch.compile traces no set
_ARGUMENTS = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")


class OperatorCall(NamedTuple):
    """The arguments of one call of ``F.linear`` or ``F.conv1d/2d/3d``."""

    x: Tensor
    weight: Tensor
    others: dict[str, Any]
    """The arguments after the weight, by name: the bias and the geometry."""

    def describe_patches(self) -> Patches:
        """Return how the operator cuts its input into rows."""
        geometry = {name: value for name, value in self.others.items() if name != "bias"}
        return describe_patches(self.weight.shape[2:], **geometry)


def read_operator_call(func: Any, args: tuple[Any, ...], kwargs: Any) -> OperatorCall | None:
    """Return the call that a function mode intercepted; None if it is another function's."""
    if func not in _OPERATORS:
        return None
    given = dict(zip(_ARGUMENTS[: len(args)], args, strict=True)) | (kwargs or {})
    return OperatorCall(given.pop("input"), given.pop("weight"), given)
