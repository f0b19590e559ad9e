"""Batches of images as users have them, turned into the arguments of a model's forward."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from trainact.errors import TrActTypeError, TrActValueError
from trainact.example_inputs import Call
from trainact.torch_internals import tree_map

__all__ = ["list_batches", "move_call"]

_ACCEPTED = (
    "a batch is a tensor of images, a mapping of the model's keyword arguments, or a tuple or list "
    "whose first element is one of these (labels may follow)"
)


def list_batches(images: Any) -> Iterator[Call]:
    """Yield the arguments of a forward for each batch.

    >>> images, labels = torch.zeros(2, 3, 8, 8), torch.zeros(2)
    >>> calls = list_batches([(images, labels), {"pixel_values": images}])
    >>> [(len(args), list(kwargs)) for args, kwargs in calls]
    [(1, []), (0, ['pixel_values'])]

    Args:
        images: one batch (a tensor or a mapping), or an iterable of batches. A batch is a tensor of
            images, a mapping of keyword arguments, or a tuple or list whose first element holds the
            images: a tensor, a mapping, or the list of images that a detector takes.

    Raises:
        TrActTypeError: ``images`` is neither, or holds something else.
        TrActValueError: there is no batch, or a tensor has fewer than two dimensions.
    """
    if isinstance(images, Tensor | Mapping):
        yield _read_batch(images, "the batch")
        return
    try:
        batches = iter(images)
    except TypeError:
        raise TrActTypeError(
            f"images takes one batch or an iterable of batches, and {_ACCEPTED}; got "
            f"{type(images).__name__}."
        ) from None
    position = -1
    for position, batch in enumerate(batches):
        yield _read_batch(batch, f"batch {position}")
    if position < 0:
        raise TrActValueError(
            "images holds no batch; pass a tensor of images, or an iterable that yields batches "
            "(a generator that was read before yields none)."
        )


def move_call(call: Call, device: torch.device, dtype: torch.dtype) -> Call:
    """Return the arguments on a device; floating-point tensors also in a dtype."""

    def move(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return value.to(device, dtype) if value.is_floating_point() else value.to(device)

    return tree_map(move, call)


def _read_batch(batch: Any, name: str) -> Call:
    is_pair = isinstance(batch, tuple | list) and len(batch) > 0
    content = batch[0] if is_pair else batch
    if isinstance(content, Mapping):
        return (), dict(content)
    is_list = is_pair and isinstance(content, tuple | list)
    tensors = list(content) if is_list else [content]
    if not tensors or not all(isinstance(tensor, Tensor) for tensor in tensors):
        held = f"{type(batch).__name__} of {type(content).__name__}" if is_pair else None
        raise TrActTypeError(
            f"{name} is a {held or type(batch).__name__}; {_ACCEPTED}. For a NumPy array, call "
            "torch.from_numpy first."
        )
    for tensor in tensors:
        if tensor.dim() < 2:
            raise TrActValueError(
                f"{name} is a tensor of shape {tuple(tensor.shape)}; images have at least 2 "
                "dimensions. Of a pair of images and labels, pass the images alone, or a list "
                "with the pair in it."
            )
    return (list(content) if is_list else content,), {}
