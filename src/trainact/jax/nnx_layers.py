"""The layers of a Flax NNX model by name, which of them comes first, and what it receives."""

import functools
from collections.abc import Callable, Collection
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from trainact.errors import (
    FirstLayerNotFoundError,
    TrActTypeError,
    TrActValueError,
    UnsupportedLayerError,
)

__all__ = ["LayerView", "check_layer", "list_layers", "read_input", "select_layer"]

SUPPORTED_LAYERS = (nnx.Linear, nnx.Conv)
OTHER_LAYERS = (nnx.ConvTranspose, nnx.Einsum, nnx.Embed, nnx.LinearGeneral)
"""Layers that apply a weight, but not as TrAct trains it."""

EXAMPLE_IMAGES = ((1, 224, 224, 3), (1, 32, 32, 3), (1, 28, 28, 1))


class LayerView:
    """A layer with another ``promote_dtype``; the layer itself is not changed."""

    def __init__(self, layer: Any, promote_dtype: Callable[..., Any]) -> None:
        """Take the layer and the function."""
        self._layer = layer
        self.promote_dtype = promote_dtype

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)


def list_layers(model: object, function: str) -> dict[str, Any]:
    """Return the layers of a model that apply a weight, by name.

    Raises:
        TrActTypeError: it is no model.
    """
    if not isinstance(model, nnx.Module):
        raise TrActTypeError(
            f"{function} takes a flax.nnx.Module, changed in place; got {type(model).__name__}."
        )
    return {
        ".".join(map(str, path)): module
        for path, module in nnx.iter_modules(model)
        if isinstance(module, SUPPORTED_LAYERS + OTHER_LAYERS)
    }


def select_layer(
    model: Any, name: str | None, example_input: Any, function: str
) -> tuple[str, Any]:
    """Return a layer and its name: the one that ``name`` says, or else the first one.

    Args:
        model: any NNX module.
        name: of a layer; None finds the first one by a forward without values.
        example_input: an input or a tuple of arguments for this forward; None tries some images.
        function: what the user called, for messages.

    Raises:
        TrActError: no layer was found, or the model has none of this name.
    """
    layers = list_layers(model, function)
    if name is not None:
        if name not in layers:
            listed = ", ".join(map(repr, layers)) or "none"
            raise TrActValueError(f"the model has no layer {name!r}; its layers are {listed}.")
        return name, layers[name]
    if "" in layers:
        return "", layers[""]
    examples = [example_input]
    if example_input is None:
        examples = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in EXAMPLE_IMAGES]
    failure: Exception | None = None
    for example in examples:
        arguments = example if isinstance(example, tuple) else (example,)
        try:
            jax.eval_shape(functools.partial(_run_to_layer, model, layers), *arguments)
        except _Reached as reached:
            return reached.name, layers[reached.name]
        except Exception as error:  # the model's forward may raise anything
            failure = failure or error
    kind = type(model).__name__
    problem = f"a forward of {kind} ran without reaching an nnx.Linear or nnx.Conv"
    if failure is not None:
        reason = (str(failure).strip() or type(failure).__name__).splitlines()[0][:200]
        problem = f"a forward of {kind} failed before any layer was reached ({reason})"
    raise FirstLayerNotFoundError(
        f"{problem}; pass example_input= with an input of the model, or layer= with a name."
    )


def check_layer(layer: Any, where: str, function: str) -> None:
    """Raise an UnsupportedLayerError if a layer is not one that TrAct trains."""
    plain = getattr(type(layer), "plain_class", type(layer))
    if plain not in SUPPORTED_LAYERS:
        raise UnsupportedLayerError(
            f"{where}{function} takes an nnx.Linear or nnx.Conv; got {type(layer).__name__}. In a "
            "custom layer, call trainact.jax.tract_weight where the weight is applied to the input."
        )


def read_input(model: Any, name: str, batch: Any) -> jax.Array:
    """Return what a layer applies its kernel to when the model runs on a batch.

    Raises:
        TrActValueError: the forward failed, or did not reach the layer.
    """
    reason = "it did not reach the layer"
    try:
        with jax.disable_jit():  # a compiled part of the model has no values
            _run_to_layer(model, [name], batch)
    except _Reached as reached:
        return reached.x
    except Exception as error:  # the same
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
    raise TrActValueError(
        f"a forward of {type(model).__name__} on an array of shape {batch.shape} and {batch.dtype} "
        f"failed ({reason}); pass images as the model takes them, or name another layer."
    )


class _Reached(BaseException):
    """Ends a forward at a layer; no ``except Exception`` stops it."""

    def __init__(self, name: str, x: Any) -> None:
        super().__init__(name)
        self.name, self.x = name, x


def _run_to_layer(model: Any, names: Collection[str], *arguments: Any) -> None:
    """Run a copy of the model until it calls one of the layers, which raises ``_Reached``.

    A forward changes statistics and the counts of random streams: those of the copy.
    """
    copy = nnx.clone(model)
    for name, layer in list_layers(copy, "").items():
        if name in names:
            kind: Any = type(layer)
            layer.__class__ = _make_watched_class(kind, name)
    copy(*arguments)


@functools.cache
def _make_watched_class(kind: Any, name: str) -> Any:
    """Return a class whose calls raise ``_Reached``, also on the copies that ``nnx.jit`` makes."""
    plain = getattr(kind, "plain_class", kind)

    def raise_with_input(values: tuple[Any, ...], **_: Any) -> None:
        raise _Reached(name, values[0])

    def call(self: Any, *args: Any, **kwargs: Any) -> None:
        if plain in SUPPORTED_LAYERS:
            plain.__call__(LayerView(self, raise_with_input), *args, **kwargs)
        raise _Reached(name, None)

    return type(kind.__name__, (kind,), {"__call__": call, "__doc__": kind.__doc__})
