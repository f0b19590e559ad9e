"""Put TrAct into a model and remove it: check everything first, then change."""

import warnings
from collections.abc import Iterable
from typing import Any, TypeVar

import torch
from torch import nn

from trainact.errors import TrActValueError, UnsupportedLayerError
from trainact.layer_checks import check_layer, check_model, select_layers
from trainact.layers import ADDED_NAMES, TrActLayer, check_bias, find_tract_class
from trainact.options import DEFAULT_LAM, Center, Options, check_lam, check_options
from trainact.wrapped_layers import (
    describe_lost_layers,
    find_lost_layers,
    forget_layers,
    list_tract_layers,
    remember_layers,
)

__all__ = ["TrAct", "apply_tract", "remove_tract"]

_ADVICE = (
    "In a custom layer, call trainact.precondition_grad(weight, x) where the weight is applied to "
    "the input."
)

Layer = TypeVar("Layer", bound=nn.Module)


def TrAct(  # noqa: N802  (the paper's spelling)
    layer: Layer,
    lam: float = DEFAULT_LAM,
    *,
    moment_dtype: torch.dtype | None = None,
    every: int = 1,
    rows: int | None = None,
    sync: bool = False,
    center: Center = False,
    relative: bool = False,
    moment_decay: float = 0.0,
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
        center: use the covariance of the rows instead of their second moment. True trains weight
            and bias together, so the gradient of the bias changes too and the layer needs a trained
            bias. ``"batchnorm"`` leaves the bias alone; it is right only if a batch norm, in
            training mode, follows the layer directly.
        relative: multiply ``lam`` by the mean eigenvalue of the matrix that it damps. With
            ``center=True``, training then does not depend on the scale and the mean of the pixels.
        moment_decay: β, from 0 to below 1, of a moving average of the second moment over the
            backward passes, for small batches of large patches; 0 uses each step's own rows.
            `trainact.tract_state` returns the average for a checkpoint.

    Raises:
        UnsupportedLayerError: TrAct cannot train this layer; nothing was changed.
    """
    options = Options(moment_dtype, every, rows, sync, center, relative, moment_decay)
    lam, options = check_lam(lam), check_options(options)
    _check_layer(layer, options)
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
    center: Center = False,
    relative: bool = False,
    moment_decay: float = 0.0,
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
            `trainact.find_first_layers`.
        example_input: an input for this search, if the model does not take the default image.
        moment_dtype: as in `TrAct`.
        every: as in `TrAct`.
        rows: as in `TrAct`.
        sync: as in `TrAct`.
        center: as in `TrAct`.
        relative: as in `TrAct`.
        moment_decay: as in `TrAct`.

    Raises:
        TrActError: no layer was found, or TrAct cannot train one of them; nothing was changed.
    """
    options = Options(moment_dtype, every, rows, sync, center, relative, moment_decay)
    lam, options = check_lam(lam), check_options(options)
    check_model(model, "apply_tract")
    selected = select_layers(model, layers, example_input)
    for name, layer in selected.items():
        _check_layer(layer, options, name)
    lost = sorted(set(find_lost_layers(model)) - set(selected))
    for layer in {id(layer): layer for layer in selected.values()}.values():
        _change_class(layer, lam, options)
    remember_layers(model, selected)
    if lost:
        warnings.warn(describe_lost_layers(lost), stacklevel=2)
    frozen = [name for name, layer in selected.items() if not layer.weight.requires_grad]
    if frozen:
        warnings.warn(
            f"the weight of {', '.join(map(repr, frozen))} is frozen (requires_grad=False): TrAct "
            "has no effect until it is trained.",
            stacklevel=2,
        )
    return list(selected)


def remove_tract(model: nn.Module) -> list[str]:
    """Change the TrAct layers back to their plain classes, and return their names."""
    check_model(model, "remove_tract")
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


def _check_layer(layer: object, options: Options, name: str = "") -> None:
    """Raise an UnsupportedLayerError if TrAct cannot train the layer with these options."""
    where = f"layer {name!r}: " if name else ""
    if isinstance(layer, TrActLayer):
        raise UnsupportedLayerError(
            f"{where}{type(layer).__name__} already trains with TrAct (lam={layer.lam:g}); set "
            "layer.lam to change it, or call trainact.remove_tract first."
        )
    check_layer(layer, name, "TrAct", _ADVICE)
    taken = sorted(one for one in ADDED_NAMES if hasattr(layer, one))
    if taken:
        raise UnsupportedLayerError(
            f"{where}{type(layer).__name__} has an attribute {taken[0]!r}, a name that TrAct uses "
            f"for its own. Rename it. {_ADVICE}"
        )
    check_bias(layer, options, where)


def _change_class(layer: nn.Module, lam: float, options: Options) -> None:
    layer.__class__ = find_tract_class(type(layer))
    assert isinstance(layer, TrActLayer)
    layer.set_up(lam, options)
