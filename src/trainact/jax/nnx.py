"""Flax NNX's layers with TrAct's weight gradient.

>>> class Network(nnx.Module):
...     def __init__(self, rngs):
...         self.stem = nnx.Conv(3, 16, (3, 3), rngs=rngs)
...         self.head = nnx.Linear(16, 10, rngs=rngs)
...
...     def __call__(self, x):
...         return self.head(nnx.relu(self.stem(x)).mean((1, 2)))
>>> model = Network(nnx.Rngs(0))
>>> apply_tract(model)
'stem'
>>> type(model.stem).__name__
'TrActConv'
"""

import itertools
from typing import Any, ClassVar

import jax
from flax import nnx

from trainact.defaults import DEFAULT_LAM
from trainact.errors import UnsupportedLayerError
from trainact.jax.flax_layers import check_flax_layer, describe_layer, precondition_layer
from trainact.jax.gradient import Options, check_bias, check_options
from trainact.jax.moments import AxisName
from trainact.jax.nnx_layers import (
    LayerView,
    change_class,
    check_has_values,
    check_layer,
    check_own_weight,
    list_layers,
    read_input,
    select_layer,
)
from trainact.jax.whitening import compute_whitened, list_batches
from trainact.option_checks import Center, check_lam
from trainact.whitening_settings import check_max_images, check_settings

__all__ = ["TrActConv", "TrActLinear", "apply_tract", "remove_tract", "whiten"]


class _TrActLayer(nnx.Module):
    """λ and the options, and the plain class to change back to."""

    plain_class: ClassVar[Any]
    promote_dtype: Any

    def __init__(
        self,
        *args: Any,
        lam: float = DEFAULT_LAM,
        center: Center = False,
        relative: bool = False,
        axis_name: AxisName = None,
        **kwargs: Any,
    ) -> None:
        """Take the plain layer's arguments, and by keyword those of TrAct.

        Args:
            *args: of the plain layer.
            lam: λ, a Python number; it may be changed between steps, which compiles them again.
            center: as in `trainact.TrAct`.
            relative: as in `trainact.TrAct`.
            axis_name: of a vmap, pmap or shard_map whose axis holds more rows.
            **kwargs: of the plain layer.
        """
        lam, options = check_lam(lam), check_options(Options(center, relative, axis_name))
        super().__init__(*args, **kwargs)
        check_flax_layer(self)
        if options.center is True:
            check_bias(self)
        self.set_up(lam, options)

    def set_up(self, lam: float, options: Options) -> None:
        """Set checked options."""
        self.lam = lam
        self.center, self.relative, self.axis_name = options

    def __call__(self, *args: Any, **kwargs: Any) -> jax.Array:
        """Compute what the plain layer computes."""

        def precondition_and_promote(values: tuple[Any, ...], **options: Any) -> Any:
            x, kernel, bias = values
            kernel, bias = precondition_layer(self, x, kernel, bias)
            return self.promote_dtype((x, kernel, bias), **options)

        view = LayerView(self, precondition_and_promote)
        return self.plain_class.__call__(view, *args, **kwargs)


class TrActLinear(_TrActLayer, nnx.Linear):
    """``flax.nnx.Linear`` with TrAct's weight gradient."""

    plain_class = nnx.Linear


class TrActConv(_TrActLayer, nnx.Conv):
    """``flax.nnx.Conv`` with TrAct's weight gradient."""

    plain_class = nnx.Conv


def apply_tract(
    model: nnx.Module,
    lam: float = DEFAULT_LAM,
    *,
    layer: str | None = None,
    example_input: Any = None,
    center: Center = False,
    relative: bool = False,
    axis_name: AxisName = None,
) -> str:
    """Change the model's first layer to TrAct in place, and return its name.

    The first layer is the first one that the first argument of the model reaches; layers that see
    other arguments or constants do not count. The layer stays the same object with the same
    parameters, and only its class changes.

    Args:
        model: any NNX module; it may be the layer itself, which has the empty name.
        lam: λ.
        layer: the name of the layer, such as ``"stem.conv"``; None finds it by a forward without
            values.
        example_input: an input of the model, or a tuple of its arguments, for this forward; flags
            and other values that are no arrays are passed as they are. None tries images of 224,
            32 and 28 pixels.
        center: as in `trainact.TrAct`.
        relative: as in `trainact.TrAct`.
        axis_name: of a vmap, pmap or shard_map whose axis holds more rows.

    Raises:
        TrActError: no layer was found, or TrAct cannot train it; nothing was changed.
    """
    options = check_options(Options(center, relative, axis_name))
    lam = check_lam(lam)
    name, found = select_layer(model, layer, example_input, "apply_tract")
    where = f"layer {name!r}: " if name else ""
    if isinstance(found, _TrActLayer):
        raise UnsupportedLayerError(
            f"{where}{type(found).__name__} already trains with TrAct (lam={found.lam:g}); set "
            "layer.lam to change it, or call remove_tract first."
        )
    check_layer(found, where, "apply_tract")
    check_flax_layer(found, where)
    if options.center is True:
        check_bias(found, where)
    change_class(found, TrActLinear if type(found) is nnx.Linear else TrActConv)
    found.set_up(lam, options)
    return name


def remove_tract(model: nnx.Module) -> list[str]:
    """Change the TrAct layers back to their plain classes, and return their names.

    Raises:
        UnsupportedLayerError: a layer is of a subclass of your own; nothing was changed.
    """
    layers = {
        name: one
        for name, one in list_layers(model, "remove_tract").items()
        if isinstance(one, _TrActLayer)
    }
    for name, one in layers.items():
        if type(one) not in (TrActLinear, TrActConv):
            raise UnsupportedLayerError(
                f"layer {name!r}: remove_tract cannot change {type(one).__name__}, a class of your "
                f"own; derive it from nnx.{one.plain_class.__name__} instead."
            )
    for one in layers.values():
        change_class(one, one.plain_class)
        for attribute in ("lam", *Options._fields):
            delattr(one, attribute)
    return list(layers)


def whiten(
    model: nnx.Module,
    images: Any,
    *,
    filters: str = "eigen",
    scale: str | float = "keep",
    eps: float | None = None,
    signs: bool = True,
    seed: int = 0,
    max_images: int | None = 5000,
    layer: str | None = None,
) -> str:
    """Give the model's first layer whitened filters in place, and return its name.

    Call it before training, and before or after :func:`apply_tract`. Only the kernel changes.

    Args:
        model: any NNX module; it may be the layer itself, which has the empty name.
        images: one batch or an iterable of batches. A batch is an array, or a tuple or list whose
            first element is one; a list of arrays is several batches, a tuple of arrays one.
        filters: as in `trainact.whiten`, like the other arguments.
        scale: ``"keep"``, ``"unit"`` or a positive number.
        eps: the damping, relative to the mean eigenvalue.
        signs: whether filters come with their negatives.
        seed: of the rotations.
        max_images: batches are read until they hold so many images; None reads all.
        layer: as in :func:`apply_tract`.

    Raises:
        TrActError: an argument is unusable, no layer was found, or the images are constant, not
            finite or too few; nothing was changed.
    """
    settings = check_settings(filters, scale, eps, signs, False, seed)
    check_max_images(max_images)
    batches = list_batches(images, max_images)
    first = next(batches)
    list_layers(model, "whiten")  # refuses what is no model
    check_has_values(model)
    name, found = select_layer(model, layer, first, "whiten")
    where = f"layer {name!r}: " if name else ""
    check_layer(found, where, "whiten")
    check_flax_layer(found, where)
    check_own_weight(model, found, where)
    inputs = (read_input(model, name, batch) for batch in itertools.chain([first], batches))
    described = ((x, describe_layer(found, x)) for x in inputs)
    found.kernel[...] = compute_whitened(found.kernel[...], described, settings, where)
    return name
