"""Example inputs for a model's forward, of the image size in the model's config."""

import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trainact.rows import PlainLayer
from trainact.torch_internals import tree_map

__all__ = [
    "Call",
    "list_example_inputs",
    "list_inputs_of_layer",
    "read_image_size",
    "read_timm_config",
]

DEFAULT_IMAGE = (3, 224, 224)
CLIP_FRAMES = 16
SMALL_SIDES = (64, 32, 28)

Call = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of one forward."""


def list_example_inputs(model: nn.Module, example: Any = None) -> Iterator[Call]:
    """Yield the arguments of a forward: ``example``, or else guesses, the likeliest first.

    The guesses are an image, a clip and a list of images, on the meta device. A Hugging Face model
    gets its input by keyword.
    """
    if isinstance(example, Mapping):
        yield (), {key: _alias(value) for key, value in example.items()}
        return
    if example is not None:
        yield tuple(_alias(v) for v in (example if isinstance(example, tuple) else (example,))), {}
        return
    channels, height, width = read_image_size(model)
    frames: Any = getattr(getattr(model, "config", None), "num_frames", None)
    frames = frames if _are_sizes(frames) else CLIP_FRAMES
    image = _empty(model, 1, channels, height, width)
    for keyword in _list_keywords(model):
        yield (), {keyword: image}
        yield (), {keyword: _empty(model, 1, frames, channels, height, width)}
    yield (image,), {}
    yield (_empty(model, 1, channels, frames, height, width),), {}
    yield ([_empty(model, channels, height, width)],), {}


def list_inputs_of_layer(model: nn.Module, layer: PlainLayer) -> Iterator[Call]:
    """Yield guesses like `list_example_inputs` that fit a layer, the likeliest first.

    For a Linear they are one row, and the square images with as many pixels.
    """
    shapes: list[tuple[int, ...]]
    if isinstance(layer, nn.Linear):
        shapes = [(layer.in_features,)]
        for channels in (3, 1):
            side = math.isqrt(layer.in_features // channels)
            if channels * side**2 == layer.in_features:
                shapes.append((channels, side, side))
    else:
        dims = len(layer.kernel_size)
        full: tuple[int, ...] = (CLIP_FRAMES, *read_image_size(model)[1:])
        sizes = [full[-dims:], *((side,) * dims for side in SMALL_SIDES)]
        shapes = [(layer.in_channels, *size) for size in sizes]
    for shape in shapes:
        yield (_empty(model, 1, *shape),), {}


def read_image_size(model: nn.Module) -> tuple[int, int, int]:
    """Return (C, H, W) from the model's timm or Hugging Face config; the default is 3x224x224."""
    timm_size = read_timm_config(model).get("input_size")
    if isinstance(timm_size, Sequence) and len(timm_size) == 3 and _are_sizes(*timm_size):
        return timm_size[0], timm_size[1], timm_size[2]
    config = getattr(model, "config", None)
    config = getattr(config, "vision_config", config)
    channels: Any = getattr(config, "num_channels", None)
    height, width = _read_sides(getattr(config, "image_size", None))
    return channels if _are_sizes(channels) else DEFAULT_IMAGE[0], height, width


def _read_sides(size: Any) -> tuple[int, int]:
    """Return height and width of a number, a pair or a mapping; the default for another size."""
    sides: Any
    if isinstance(size, Mapping):
        sides = (size.get("height"), size.get("width"))
    elif isinstance(size, Sequence):
        sides = tuple(size)[-2:]
    else:
        sides = (size, size)
    return sides if len(sides) == 2 and _are_sizes(*sides) else DEFAULT_IMAGE[1:]


def _are_sizes(*values: Any) -> bool:
    return all(type(value) is int and value > 0 for value in values)


def read_timm_config(model: nn.Module) -> Mapping[str, Any]:
    """Return the model's timm config; empty for a model of another library."""
    config = getattr(model, "pretrained_cfg", None) or getattr(model, "default_cfg", None)
    return config if isinstance(config, Mapping) else {}


def _list_keywords(model: nn.Module) -> list[str]:
    main = getattr(model, "main_input_name", None)
    if not isinstance(main, str) or not hasattr(model, "config"):
        return []
    images = [n for n in inspect.signature(model.forward).parameters if n == "pixel_values"]
    return images or [main]


def _empty(model: nn.Module, *size: int) -> Tensor:
    dtypes = (p.dtype for p in model.parameters() if p.dtype.is_floating_point)
    return torch.empty(size, dtype=next(dtypes, torch.float32), device="meta")


def _alias(value: Any) -> Any:
    return tree_map(lambda v: v.detach() if isinstance(v, Tensor) else v, value)
