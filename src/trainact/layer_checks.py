"""Which layers of a model a function changes, and whether it can: the checks before any change."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils import parametrize

from trainact.errors import TrActTypeError, TrActValueError, UnsupportedLayerError
from trainact.first_layer import find_first_layers
from trainact.rows import SUPPORTED_LAYERS
from trainact.torch_internals import is_wrapper_tensor

__all__ = ["check_layer", "check_model", "select_layers"]

SUPPORTED_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def check_model(model: object, function: str) -> None:
    """Raise a TrActTypeError if ``model`` is not a module."""
    if not isinstance(model, nn.Module):
        raise TrActTypeError(
            f"{function} takes an nn.Module, changed in place; got {type(model).__name__}."
        )


def select_layers(
    model: nn.Module, layers: str | Iterable[str] | None, example_input: Any
) -> dict[str, nn.Module]:
    """Return modules of the model by name: those that ``layers`` names, or else the first layers.

    Args:
        model: any module; it may be the layer itself, which has the empty name.
        layers: names as in ``model.named_modules()``; None finds the first layers.
        example_input: an input for this search.

    Raises:
        TrActError: no layer was found or named, or the model has none of this name.
    """
    names = find_first_layers(model, example_input) if layers is None else _check_names(layers)
    modules = dict(model.named_modules(remove_duplicate=False))
    for name in names:
        if name not in modules:
            raise TrActValueError(_describe_unknown_name(name, modules))
    return {name: modules[name] for name in names}


def check_layer(layer: object, name: str, function: str, advice: str = "") -> None:
    """Raise an UnsupportedLayerError if the layer's weight is not a plain parameter.

    Args:
        layer: what should be an nn.Linear or nn.Conv1d/2d/3d.
        name: its name in the model.
        function: what the user called, for the message.
        advice: what to do with another kind of layer.
    """
    where = f"layer {name!r}: " if name else ""
    if not isinstance(layer, SUPPORTED_LAYERS):
        came = f"the class {layer.__name__}" if isinstance(layer, type) else type(layer).__name__
        accepted = f"{function} takes an nn.Linear, nn.Conv1d, nn.Conv2d or nn.Conv3d"
        raise UnsupportedLayerError(f"{where}{accepted}; got {came}. {advice}".rstrip())
    problem = _find_problem(layer, function)
    if problem is not None:
        raise UnsupportedLayerError(f"{where}{type(layer).__name__} {problem}")


def _find_problem(layer: nn.Module, function: str) -> str | None:
    """Return the reason why the layer cannot be changed, with advice; None if it can."""
    weight = dict(layer.named_parameters(recurse=False)).get("weight")
    if isinstance(weight, UninitializedParameter):
        return (
            "is lazy and not initialised yet; run one batch through the model, then call "
            f"{function}."
        )
    if isinstance(layer, nn.modules.lazy.LazyModuleMixin):
        return f"is lazy; run one batch through the model, then call {function}."
    if parametrize.is_parametrized(layer):
        return (
            f"has a parametrised weight; call {function} first and add the parametrization after "
            "it, or call torch.nn.utils.parametrize.remove_parametrizations."
        )
    if weight is None and "weight_mask" in dict(layer.named_buffers(recurse=False)):
        return "has a pruned weight; call torch.nn.utils.prune.remove(layer, 'weight') first."
    if weight is None:
        return (
            "has no parameter named 'weight' (a hook or a re-parametrisation computes it); restore "
            "the plain weight first."
        )
    if weight.is_complex():
        return (
            f"has a complex weight ({weight.dtype}); {function} takes real weights: pass real and "
            "imaginary part as channels to a real layer."
        )
    is_wrapper = is_wrapper_tensor(weight) and type(weight).__name__ != "DTensor"
    if weight.is_quantized or weight.dtype not in SUPPORTED_DTYPES or is_wrapper:
        return (
            f"has a quantised weight ({type(weight).__name__}, {weight.dtype}); {function} takes "
            "float64, float32, bfloat16 and float16 weights: call it before quantisation, and "
            "trainact.remove_tract before a model is converted."
        )
    if "forward" in layer.__dict__:
        return (
            "has a forward set on the instance (an Accelerate hook, for example), which would "
            f"bypass {function}; call {function} before that hook."
        )
    return None


def _check_names(layers: str | Iterable[str]) -> list[str]:
    names = [layers] if isinstance(layers, str) else list(layers)
    if not names:
        raise TrActValueError(
            "layers= names no layer; pass names as in model.named_modules(), or leave it out to "
            "find the first layer."
        )
    for name in names:
        if not isinstance(name, str):
            raise TrActTypeError(f"layers= takes names; got {name!r} ({type(name).__name__}).")
    return list(dict.fromkeys(names))


def _describe_unknown_name(name: str, modules: dict[str, nn.Module]) -> str:
    usable = [key for key, module in modules.items() if isinstance(module, SUPPORTED_LAYERS)]
    shown = ", ".join(repr(key) for key in usable[:8]) + (", ..." if len(usable) > 8 else "")
    return f"the model has no layer named {name!r}; layers that TrAct supports: {shown or 'none'}."
