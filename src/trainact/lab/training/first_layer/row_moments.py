"""The rows that first layers receive: their second moments in training, and their inputs."""

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from trainact.errors import UnsupportedLayerError
from trainact.lab.recipes.recipe import TractFields
from trainact.layer_checks import check_layer
from trainact.options import choose_precision
from trainact.rows import (
    SUPPORTED_LAYERS,
    PlainLayer,
    count_inputs,
    count_rows,
    patches_of_layer,
)
from trainact.second_moment import SecondMoment

__all__ = [
    "Moments",
    "Reduce",
    "RowMoments",
    "find_layers",
    "find_moment_dtype",
    "make_empty",
    "measure_rows",
    "sum_moment_over_ranks",
    "visit_inputs",
]

Reduce: TypeAlias = Callable[[Tensor], Tensor]
"""Returns the sum of a tensor over all ranks."""

Moments: TypeAlias = dict[Tensor, SecondMoment]
"""Second moments by the weight of their layer; layers that share a weight share one."""


def find_layers(
    network: nn.Module, names: Iterable[str], setting: str, *, needs_rows: bool = False
) -> list[PlainLayer]:
    """Return the named layers.

    Args:
        network: the network.
        names: names in ``network.named_modules()``.
        setting: the recipe's field that needs the layers, for messages.
        needs_rows: whether the layers must have the forward of torch's own classes, with or
            without TrAct. Another one, such as that of a layer that standardises its weight, may
            multiply other rows or another weight.

    Raises:
        UnsupportedLayerError: a layer is not a Linear or a convolution with its own weight.
    """
    layers = []
    for name in names:
        layer: Any = network.get_submodule(name)
        check_layer(layer, name, setting, "Use another model, or the field's default.")
        kind = getattr(layer, "plain_class", type(layer))
        if needs_rows and kind.forward not in {known.forward for known in SUPPORTED_LAYERS}:
            raise UnsupportedLayerError(
                f"layer {name!r}: {kind.__name__} has a forward of its own, so that its "
                f"rows are not known; {setting} takes torch's nn.Linear and nn.Conv1d/2d/3d. Use "
                "another model, or the field's default."
            )
        layers.append(layer)
    return layers


def find_moment_dtype(fields: TractFields) -> torch.dtype | None:
    """Return the recipe's ``moment_dtype``, as :func:`trainact.TrAct` takes it."""
    return torch.float64 if fields.moment == "float64" else None


class RowMoments:
    """Σ xᵀx and Σ b of each layer's rows, added up over backward passes until they are taken.

    A forward pass counts if the layer is in training mode, and only once a backward pass reaches
    its output. So the sums are those of all micro-batches of a step, evaluation does not change
    them, and gradients may be cleared before or after the forward pass.
    """

    def __init__(
        self, layers: Sequence[PlainLayer], moment_dtype: torch.dtype | None, reduce: Reduce
    ) -> None:
        """Watch the layers, which are on their device already.

        Args:
            layers: from `find_layers`.
            moment_dtype: the dtype of the products, as in :func:`trainact.TrAct`.
            reduce: sums over the ranks.
        """
        self.layers, self.moment_dtype, self.reduce = layers, moment_dtype, reduce
        self._moments: Moments = {}
        self.clear()
        hook = torch.compiler.disable(self._record)  # a graph could not add to the sums
        for layer in layers:
            layer.register_forward_hook(hook, with_kwargs=True)

    def clear(self) -> None:
        """Start again from no rows."""
        self._moments = {layer.weight: make_empty(layer) for layer in self.layers}

    def take(self) -> Moments:
        """Return the sums over all ranks and start again; every rank must call this."""
        taken = {
            w: sum_moment_over_ranks(moment, self.reduce) for w, moment in self._moments.items()
        }
        self.clear()
        return taken

    def _record(self, layer: Any, args: Any, kwargs: Any, output: Any) -> None:
        if layer.training and output.requires_grad:
            x, weight = _find_input(args, kwargs).detach(), layer.weight
            measured = measure_rows(layer, x, self.moment_dtype)

            def add(grad: Tensor) -> None:
                del grad
                self._moments[weight].add_(measured)

            output.register_hook(add)


def make_empty(layer: PlainLayer, ones: int = 0) -> SecondMoment:
    """Return the second moment of no rows, in the widest dtype of the layer's device.

    Args:
        layer: its weight decides the size.
        ones: 1 if rows have a column of ones.
    """
    weight = layer.weight
    groups, size = getattr(layer, "groups", 1), weight[0].numel() + ones
    dtype = choose_precision(None, weight.dtype, weight.device).sums
    return SecondMoment(weight.new_zeros(groups, size, size, dtype=dtype), 0)


def measure_rows(layer: PlainLayer, x: Tensor, moment_dtype: torch.dtype | None) -> SecondMoment:
    """Return the second moment of the rows in ``x``, an input of the layer.

    Autocast has no effect: the second moment needs full precision.
    """
    patches = patches_of_layer(layer)
    num_rows, num_inputs = count_rows(x, patches), count_inputs(x, patches)
    dtype = layer.weight.dtype
    precision = choose_precision(moment_dtype, dtype, x.device, num_rows, num_inputs)
    with torch.autocast(x.device.type, enabled=False):
        return SecondMoment.measure(x, patches, precision)


def sum_moment_over_ranks(moment: SecondMoment, reduce: Reduce) -> SecondMoment:
    """Return the second moment of the rows of all ranks."""
    total = moment.total
    num_rows = torch.as_tensor(moment.num_rows, dtype=total.dtype, device=total.device)
    summed = reduce(torch.cat([total.flatten(), num_rows.reshape(1)]))
    return SecondMoment(summed[:-1].view_as(total), summed[-1])


class _LayersReachedError(Exception):
    """Ends a forward pass; it does not leave `visit_inputs`."""


@torch.no_grad()
def visit_inputs(
    network: nn.Module,
    layers: Sequence[PlainLayer],
    batches: Iterable[Tensor],
    visit: Callable[[PlainLayer, Tensor], None],
) -> None:
    """Call ``visit`` with each layer and its input, for each batch of images, in eval mode.

    A forward pass ends when the last of the layers is reached: the rest of the network is not run.
    """
    waiting: set[nn.Module] = set()

    def stop_at(layer: Any, args: Any, kwargs: Any) -> None:
        visit(layer, _find_input(args, kwargs))
        waiting.discard(layer)
        if not waiting:
            raise _LayersReachedError

    was_training = network.training
    handles = [layer.register_forward_pre_hook(stop_at, with_kwargs=True) for layer in layers]
    network.eval()
    try:
        with torch.compiler.set_stance("force_eager"):  # hooks came after compilation
            for images in batches:
                waiting.update(layers)
                with contextlib.suppress(_LayersReachedError):
                    network(images)
    finally:
        for handle in handles:
            handle.remove()
        network.train(was_training)


def _find_input(args: Any, kwargs: Any) -> Tensor:
    return args[0] if args else kwargs["input"]
