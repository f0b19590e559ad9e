"""The layers of a Flax NNX model by name, which of them comes first, and what it receives."""

import functools
from collections.abc import Callable, Collection
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from trainact.errors import (
    FirstLayerNotFoundError,
    TrActTypeError,
    TrActValueError,
    UnsupportedLayerError,
    first_line,
)

__all__ = [
    *("LayerView", "change_class", "check_has_values", "check_layer", "check_own_weight"),
    *("list_layers", "read_input", "select_layer"),
]

SUPPORTED_LAYERS = (nnx.Linear, nnx.Conv)
OTHER_LAYERS = (nnx.ConvTranspose, nnx.Einsum, nnx.Embed, nnx.LinearGeneral)
"""Layers that apply a weight, but not as TrAct trains it."""

WRAPPERS = (nnx.WeightNorm, nnx.SpectralNorm)
"""Modules that compute the weight of a layer."""

EXAMPLE_IMAGES = ((1, 224, 224, 3), (1, 32, 32, 3), (1, 28, 28, 1))


class LayerView:
    """A layer with another ``promote_dtype``; the layer itself is not changed."""

    def __init__(self, layer: Any, promote_dtype: Callable[..., Any]) -> None:
        """Take the layer and the function."""
        self._layer = layer
        self.promote_dtype = promote_dtype

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)


def change_class(layer: Any, kind: type) -> None:
    """Change a layer's class; NNX would note ``__class__`` as an attribute of the layer."""
    object.__setattr__(layer, "__class__", kind)


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

    The first layer is the first one whose input depends on the first argument, or else the first
    one that is called. Inside of ``nnx.jit`` or ``nnx.remat`` every input counts as dependent.

    Args:
        model: any NNX module.
        name: of a layer; None finds the first one by a forward without values.
        example_input: an input or a tuple of arguments for this forward; None tries some images.
            Arguments that are no arrays are passed as they are.
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
    fallback: list[str] = []
    for example in examples:
        arguments = example if isinstance(example, tuple) else (example,)
        called: list[str] = []
        try:
            _trace_to_layer(model, layers, arguments, called)
        except _Reached as reached:
            return reached.name, layers[reached.name]
        except Exception as error:  # the model's forward may raise anything
            failure = failure or error
            fallback += called
        else:
            if called:
                return called[0], layers[called[0]]
    if fallback:
        return fallback[0], layers[fallback[0]]
    kind = type(model).__name__
    problem = f"a forward of {kind} ran without reaching an nnx.Linear or nnx.Conv"
    if failure is not None:
        problem = f"a forward of {kind} failed before any layer was reached ({first_line(failure)})"
    raise FirstLayerNotFoundError(
        f"{problem}; pass example_input= with an input of the model, or layer= with a name."
    )


def check_layer(layer: Any, where: str, function: str) -> None:
    """Raise an UnsupportedLayerError if a layer is not one that TrAct trains."""
    plain = getattr(type(layer), "plain_class", type(layer))
    if plain not in SUPPORTED_LAYERS:
        raise UnsupportedLayerError(
            f"{where}{function} takes an nnx.Linear or nnx.Conv; got {type(layer).__name__}. Name "
            "another layer with layer=, or in a custom layer call trainact.jax.tract_weight where "
            "the weight is applied to the input."
        )


def check_has_values(model: Any) -> None:
    """Raise a TrActValueError if a model has shapes instead of values, which ``whiten`` needs."""
    if _is_abstract(model):
        raise TrActValueError(
            "whiten needs a model with values; this one has only shapes, as nnx.eval_shape makes "
            "it. Create the model, whiten it, and train or save it then."
        )


def check_own_weight(model: Any, layer: Any, where: str) -> None:
    """Raise an UnsupportedLayerError if a wrapper computes a layer's weight from other values."""
    for _, module in nnx.iter_modules(model):
        if isinstance(module, WRAPPERS) and module.layer_instance is layer:
            raise UnsupportedLayerError(
                f"{where}nnx.{type(module).__name__} computes the weight of this layer, so whiten "
                "cannot set it; use a layer without it."
            )


def read_input(model: Any, name: str, batch: Any) -> jax.Array:
    """Return what a layer applies its kernel to when the model runs on a batch.

    Raises:
        TrActValueError: the forward failed, or did not reach the layer.
    """
    reason = "it did not reach the layer"
    try:
        with jax.disable_jit():  # a compiled part of the model has no values
            _watch(model, [name], _stop, batch)
    except _Reached as reached:
        return reached.x
    except Exception as error:  # the same
        reason = first_line(error)
    raise TrActValueError(
        f"a forward of {type(model).__name__} on an array of shape {batch.shape} and {batch.dtype} "
        f"failed ({reason}); pass images as the model takes them, name another layer, or call "
        "whiten with the layer itself and what it receives."
    )


def _is_abstract(model: Any) -> bool:
    """Return whether a model has shapes instead of values, as ``nnx.eval_shape`` makes it."""
    leaves = jax.tree.leaves(nnx.split(model)[1])
    return any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves)


class _Reached(BaseException):
    """Ends a forward at a layer; no ``except Exception`` stops it."""

    def __init__(self, name: str, x: Any) -> None:
        super().__init__(name)
        self.name, self.x = name, x


_look: ContextVar[Callable[[str, Any], None]] = ContextVar("_look")
"""Receives name and input of each watched layer that is called."""


def _stop(name: str, x: Any) -> None:
    raise _Reached(name, x)


def _trace_to_layer(
    model: Any, names: Collection[str], arguments: tuple[Any, ...], called: list[str]
) -> None:
    """Run a forward without values until the first layer, which raises ``_Reached``.

    Layers before it, whose input does not depend on the first argument, are added to ``called``.
    """
    graph, state = nnx.split(model)
    leaves, structure = jax.tree.flatten(arguments)
    arrays = {i: one for i, one in enumerate(leaves) if hasattr(one, "shape")}
    num_first = len(jax.tree.leaves(arguments[0]))
    first = [i for i in arrays if i < num_first and jnp.issubdtype(arrays[i].dtype, jnp.floating)]

    def run(given: dict[int, Any], state: Any) -> None:
        traced = model if state is None else nnx.merge(graph, state)
        outside = next(iter(given.values()))._trace

        def look(name: str, x: Any) -> None:
            if first and getattr(x, "_trace", outside) is outside:  # it has no tangent
                called.append(name)
            else:
                _stop(name, x)

        def forward(images: dict[int, Any]) -> None:
            values = {**dict(enumerate(leaves)), **given, **images}
            _watch(traced, names, look, *jax.tree.unflatten(structure, values.values()))

        images = {i: given[i] for i in first}
        jax.jvp(forward, (images,), (jax.tree.map(jnp.zeros_like, images),))

    jax.eval_shape(run, arrays, state if _is_abstract(model) else None)


def _watch(
    model: Any, names: Collection[str], look: Callable[[str, Any], None], *arguments: Any
) -> None:
    """Run a copy of the model, in evaluation mode, and ``look`` at the inputs of some layers.

    A forward changes statistics and the counts of random streams: those of the copy.
    """
    copy = nnx.clone(model)
    copy.eval()
    for name, layer in list_layers(copy, "").items():
        if name in names:
            kind: Any = type(layer)
            change_class(layer, _make_watched_class(kind, name))
    token = _look.set(look)
    try:
        copy(*arguments)
    finally:
        _look.reset(token)


@functools.cache
def _make_watched_class(kind: Any, name: str) -> Any:
    """Return a class whose calls are looked at, also on the copies that ``nnx.jit`` makes."""
    plain = getattr(kind, "plain_class", kind)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        def look_and_promote(values: tuple[Any, ...], **options: Any) -> Any:
            _look.get()(name, values[0])
            return self.promote_dtype(values, **options)

        if plain in SUPPORTED_LAYERS:
            return plain.__call__(LayerView(self, look_and_promote), *args, **kwargs)
        _look.get()(name, args[0] if args else None)
        return plain.__call__(self, *args, **kwargs)

    return type(kind.__name__, (kind,), {"__call__": call, "__doc__": kind.__doc__})
