"""Put TrAct into a model and remove it: check everything first, then change."""

import warnings
from collections.abc import Iterable
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils import parametrize

from trainact.errors import TrActTypeError, TrActValueError, UnsupportedLayerError
from trainact.first_layer import find_first_layers
from trainact.layers import TrActLayer, find_tract_class
from trainact.options import DEFAULT_LAM, Options, check_lam, check_options
from trainact.rows import SUPPORTED_LAYERS
from trainact.torch_internals import is_wrapper_tensor
from trainact.wrapped_layers import (
    describe_lost_layers,
    find_lost_layers,
    forget_layers,
    list_tract_layers,
    remember_layers,
)

__all__ = ["TrAct", "apply_tract", "remove_tract"]

SUPPORTED_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_ACCEPTED = "TrAct takes an nn.Linear, nn.Conv1d, nn.Conv2d or nn.Conv3d"

Layer = TypeVar("Layer", bound=nn.Module)


def TrAct(  # noqa: N802  (the paper's spelling)
    layer: Layer,
    lam: float = DEFAULT_LAM,
    *,
    moment_dtype: torch.dtype | None = None,
    every: int = 1,
    rows: int | None = None,
    sync: bool = False,
) -> Layer:
    """Return ``layer`` with TrAct's weight gradient: the same object, with another class.

    >>> conv = TrAct(nn.Conv2d(3, 64, 7, stride=2, padding=3), lam=0.1)
    >>> conv
    TrActConv2d(3, 64, kernel_size=(7, 7), stride=(2, 2), padding=(3, 3), lam=0.1)
    >>> isinstance(conv, nn.Conv2d)
    True

    Args:
        layer: the first layer of an image model.
        lam: λ.
        moment_dtype: dtype of the second moment's products; use ``torch.float64`` for raw pixel
            values. None means float32, and float64 for a float64 weight.
        every: number of backward passes that share one second moment and its factorization; 1 is
            exact.
        rows: number of random rows to estimate the second moment from; None takes all and is exact.
        sync: in a distributed run, sum the second moment over all ranks; False means that each rank
            uses its own rows.

    Raises:
        UnsupportedLayerError: TrAct cannot train this layer; nothing was changed.
    """
    lam, options = check_lam(lam), check_options(Options(moment_dtype, every, rows, sync))
    _check_layer(layer)
    _change_class(layer, lam, options)
    return layer


def apply_tract(
    model: nn.Module,
    lam: float = DEFAULT_LAM,
    *,
    layers: str | Iterable[str] | None = None,
    example_input: Any = None,
    moment_dtype: torch.dtype | None = None,
    every: int = 1,
    rows: int | None = None,
    sync: bool = False,
) -> list[str]:
    """Change the model's first layer (or layers) to TrAct in place, and return the names.

    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3))
    >>> apply_tract(model)
    ['0']
    >>> remove_tract(model)
    ['0']

    Args:
        model: any module; it may be the layer itself, which has the empty name.
        lam: λ.
        layers: names of the layers, as in ``model.named_modules()``; None finds them with
            :func:`trainact.find_first_layers`.
        example_input: an input for this search, if the model does not take the default image.
        moment_dtype: as in :func:`TrAct`.
        every: as in :func:`TrAct`.
        rows: as in :func:`TrAct`.
        sync: as in :func:`TrAct`.

    Raises:
        TrActError: no layer was found, or TrAct cannot train one of them; nothing was changed.
    """
    lam, options = check_lam(lam), check_options(Options(moment_dtype, every, rows, sync))
    _check_model(model, "apply_tract")
    names = find_first_layers(model, example_input) if layers is None else _check_names(layers)
    modules = dict(model.named_modules(remove_duplicate=False))
    for name in names:
        if name not in modules:
            raise TrActValueError(_describe_unknown_name(name, modules))
        _check_layer(modules[name], name)
    lost = sorted(set(find_lost_layers(model)) - set(names))
    for name in names:
        _change_class(modules[name], lam, options)
    remember_layers(model, names)
    if lost:
        warnings.warn(describe_lost_layers(lost), stacklevel=2)
    return names


def remove_tract(model: nn.Module) -> list[str]:
    """Change the TrAct layers back to their plain classes, and return their names."""
    _check_model(model, "remove_tract")
    layers = list_tract_layers(model)
    for name, layer in layers.items():
        if type(layer) is not find_tract_class(layer.plain_class):
            raise TrActValueError(
                f"layer {name!r} is a {type(layer).__name__}: its class was changed after TrAct; "
                "undo that first (for a parametrization: "
                "torch.nn.utils.parametrize.remove_parametrizations)."
            )
        if layer.memory.pool is not None:
            raise TrActValueError(
                f"layer {name!r} is inside trainact.accumulate; leave that block first."
            )
    lost = find_lost_layers(model)
    if lost:
        warnings.warn(describe_lost_layers(lost), stacklevel=2)
    forget_layers(model)
    for layer in layers.values():
        layer.tear_down()
        layer.__class__ = layer.plain_class  # type: ignore[assignment]
    return list(layers)


def _check_layer(layer: object, name: str = "") -> None:
    """Raise an UnsupportedLayerError if TrAct cannot train the layer."""
    where = f"layer {name!r}: " if name else ""
    if isinstance(layer, TrActLayer):
        raise UnsupportedLayerError(
            f"{where}{type(layer).__name__} already trains with TrAct (lam={layer.lam:g}); set "
            "layer.lam to change it, or call trainact.remove_tract first."
        )
    if not isinstance(layer, SUPPORTED_LAYERS):
        came = f"the class {layer.__name__}" if isinstance(layer, type) else type(layer).__name__
        raise UnsupportedLayerError(
            f"{where}{_ACCEPTED}; got {came}. In a custom layer, call "
            "trainact.precondition_grad(weight, x) where the weight is applied to the input."
        )
    problem = _find_problem(layer)
    if problem is not None:
        raise UnsupportedLayerError(f"{where}{type(layer).__name__} {problem}")


def _find_problem(layer: nn.Module) -> str | None:
    """Return the reason why TrAct cannot train the layer, with advice; None if it can."""
    weight = dict(layer.named_parameters(recurse=False)).get("weight")
    if isinstance(weight, UninitializedParameter):
        return "is lazy and not initialised yet; run one batch through the model, then apply TrAct."
    if isinstance(layer, nn.modules.lazy.LazyModuleMixin):
        return "is lazy; run one batch through the model, then apply TrAct."
    if parametrize.is_parametrized(layer):
        return (
            "has a parametrised weight; apply TrAct first and the parametrization after it, or "
            "call torch.nn.utils.parametrize.remove_parametrizations."
        )
    if weight is None and "weight_mask" in dict(layer.named_buffers(recurse=False)):
        return "has a pruned weight; call torch.nn.utils.prune.remove(layer, 'weight') first."
    if weight is None:
        return (
            "has no parameter named 'weight' (a hook or a re-parametrisation computes it); restore "
            "the plain weight first."
        )
    is_wrapper = is_wrapper_tensor(weight) and type(weight).__name__ != "DTensor"
    if weight.is_quantized or weight.dtype not in SUPPORTED_DTYPES or is_wrapper:
        return (
            f"has a quantised weight ({type(weight).__name__}, {weight.dtype}); TrAct trains "
            "float64, float32, bfloat16 and float16 weights: apply it before quantisation."
        )
    if "forward" in layer.__dict__:
        return (
            "has a forward set on the instance (an Accelerate hook, for example), which would "
            "bypass TrAct; apply TrAct before that hook."
        )
    return None


def _change_class(layer: nn.Module, lam: float, options: Options) -> None:
    layer.__class__ = find_tract_class(type(layer))
    assert isinstance(layer, TrActLayer)
    layer.set_up(lam, options)


def _check_model(model: object, function: str) -> None:
    if not isinstance(model, nn.Module):
        raise TrActTypeError(
            f"{function} takes an nn.Module, changed in place; got {type(model).__name__}."
        )


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
