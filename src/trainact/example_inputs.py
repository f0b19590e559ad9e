"""Example inputs for a model's forward, of the image size in the model's config."""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from trainact.torch_internals import tree_map

__all__ = ["Call", "list_example_inputs", "read_image_size", "read_timm_config"]

DEFAULT_IMAGE = (3, 224, 224)
CLIP_FRAMES = 16

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
    frames = getattr(getattr(model, "config", None), "num_frames", None) or CLIP_FRAMES
    image = _empty(model, 1, channels, height, width)
    for keyword in _list_keywords(model):
        yield (), {keyword: image}
        yield (), {keyword: _empty(model, 1, frames, channels, height, width)}
    yield (image,), {}
    yield (_empty(model, 1, channels, frames, height, width),), {}
    yield ([_empty(model, channels, height, width)],), {}


def read_image_size(model: nn.Module) -> tuple[int, int, int]:
    """Return (C, H, W) from the model's timm or Hugging Face config; the default is 3x224x224."""
    timm_size = read_timm_config(model).get("input_size") or ()
    if len(timm_size) == 3:
        return tuple(timm_size)
    config = getattr(model, "config", None)
    config = getattr(config, "vision_config", config)
    size = getattr(config, "image_size", None) or DEFAULT_IMAGE[1:]
    channels = getattr(config, "num_channels", None) or DEFAULT_IMAGE[0]
    height, width = (size, size) if isinstance(size, int) else tuple(size)[-2:]
    return channels, height, width


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
