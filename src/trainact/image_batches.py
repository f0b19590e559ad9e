"""Batches of images as users have them, turned into the arguments of a model's forward."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from trainact.errors import TrActTypeError, TrActValueError
from trainact.example_inputs import Call
from trainact.torch_internals import tree_map

__all__ = ["list_batches", "move_call", "take_images"]

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
        images: one batch or an iterable of batches. A batch is a tensor of images, a mapping of
            keyword arguments, or a tuple or list whose first element holds the images: a tensor, a
            mapping, or the list of images that a detector takes. A tuple of tensors is one batch,
            as a loader yields it; a list of tensors, and parts of one tensor such as
            ``images.split(256)``, are several. With labels (fewer than two dimensions) behind the
            images, a list is one batch too.

    Raises:
        TrActTypeError: ``images`` is neither, or holds something else.
        TrActValueError: there is no batch, or a tensor has fewer than two dimensions.
    """
    if isinstance(images, Tensor | Mapping) or _is_pair(images):
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


def take_images(calls: Iterable[Call], most: int | None) -> Iterator[Call]:
    """Yield batches until they hold ``most`` images; None means all batches.

    >>> batches = list_batches(torch.zeros(7, 3, 8, 8).split(2))
    >>> [len(args[0]) for args, _ in take_images(batches, 3)]
    [2, 2]
    """
    seen = 0
    for call in calls:
        yield call
        seen += _count_images(call)
        if most is not None and seen >= most:
            return


def _count_images(call: Call) -> int:
    """Return the number of images in a batch; at least 1."""
    args, kwargs = call
    sized = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor | list)]
    return max(1, len(sized[0])) if sized else 1


def _is_pair(images: Any) -> bool:
    """Return whether a tuple or list of tensors is one batch: images and their targets."""
    if not isinstance(images, tuple | list) or len(images) < 2:
        return False
    if not all(isinstance(part, Tensor) and part.layout == torch.strided for part in images):
        return False
    if any(target.dim() < 2 for target in images[1:]):
        return True
    storages = {part.untyped_storage().data_ptr() for part in images}
    return isinstance(images, tuple) and len(storages) == len(images)


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
                "dimensions. Of a pair of images and labels, pass the images alone."
            )
    return (list(content) if is_list else content,), {}
