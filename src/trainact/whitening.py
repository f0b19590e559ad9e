"""A whitened start for a model's first layer."""

import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from trainact.errors import TrActValueError, UnsupportedLayerError
from trainact.example_inputs import Call
from trainact.filters import (
    decompose,
    mean_square,
    select_basis,
    spread_basis,
    whiten_weight,
)
from trainact.image_batches import list_batches, move_call, take_images
from trainact.input_statistics import InputStatistics, measure_inputs
from trainact.layer_checks import check_layer, check_model, select_layers
from trainact.random_states import kept_random_states
from trainact.rows import PlainLayer
from trainact.sharding import read_whole, reshard, write_whole
from trainact.synchronisation import get_world_size
from trainact.whitening_settings import (
    Settings,
    check_max_images,
    check_settings,
    count_directions,
    find_factor,
)

__all__ = ["whiten"]

MAX_INPUTS = 16384
"""The second moment of more inputs takes over 2 GiB, and its eigenvectors take hours."""


def whiten(
    model: nn.Module,
    images: Any,
    *,
    filters: str = "eigen",
    scale: str | float = "keep",
    eps: float | None = None,
    signs: bool = True,
    freeze: bool = False,
    seed: int = 0,
    max_images: int | None = 5000,
    layers: str | Iterable[str] | None = None,
    example_input: Any = None,
) -> list[str]:
    """Give the model's first layer (or layers) whitened filters in place, and return the names.

    The filters come from the second moment S = xᵀx/b of the layer's rows x: what it receives when
    the model runs on ``images`` in evaluation mode. Only the weight changes; buffers that the
    forward updates are restored. Call it before training, and before or after
    :func:`trainact.apply_tract`::

        whiten(model, images)
        apply_tract(model)

    >>> model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 8, 3))
    >>> whiten(model, torch.rand(8, 3, 32, 32))
    ['0']

    In a distributed run, all ranks must call it; all get the weights that rank 0 computed from its
    images.

    Args:
        model: any module; it may be the layer itself, which has the empty name.
        images: one batch or an iterable of batches, such as a DataLoader. A batch is a tensor, a
            mapping of keyword arguments, or a tuple or list whose first element holds the images.
            A tuple of tensors is one batch; a list of tensors, or ``tensor.split(256)``, several.
            Each group of the layer needs at least as many rows as it has directions to choose.
        filters: ``"eigen"`` takes the eigenvectors of S, largest eigenvalue first, each over
            √(eigenvalue + eps). ``"random"`` multiplies the layer's own weight by
            (S + eps I)^(-1/2).
        scale: ``"keep"`` multiplies all filters by one factor that leaves the mean of z² over rows
            and outputs (without the bias) as it was. ``"unit"`` leaves the formula's values: each
            output of an eigen filter then has a mean square of about 1. A positive number
            multiplies the formula's values.
        eps: the damping, relative to the mean eigenvalue of S. None means 5e-4 for ``"eigen"`` and
            0.1 for ``"random"``.
        signs: only for ``"eigen"``: of m outputs, the first ⌈m/2⌉ are the leading directions, and
            the rest are their negatives. False takes the m leading directions, for layers without
            an activation behind them. Outputs beyond all directions are random rotations of the
            same directions.
        freeze: whether to stop training the weight (``requires_grad`` becomes False). The bias is
            not frozen. Call it before the optimizer and DistributedDataParallel are created.
        seed: seed of the rotations; the global random states are neither used nor changed.
        max_images: whole batches are read until they hold so many images; None reads all batches.
        layers: names of the layers, as in :func:`trainact.apply_tract`.
        example_input: as in :func:`trainact.apply_tract`; None means the first batch.

    Raises:
        TrActError: an argument is unusable, no layer was found, its weight cannot be set, or the
            images are constant, not finite or too few; nothing was changed.
    """
    problem: Exception | None = None
    starts: dict[str, _Start] = {}
    try:
        settings = check_settings(filters, scale, eps, signs, freeze, seed)
        check_max_images(max_images)
        check_model(model, "whiten")
        with kept_random_states(model):
            calls = take_images(list_batches(images), max_images)
            starts = _compute_starts(model, calls, settings, layers, example_input)
    except Exception as error:
        if get_world_size() == 1:
            raise
        problem = error
    if get_world_size() > 1:
        _agree_over_ranks(problem, starts)
    for start in starts.values():
        write_whole(start.layer.weight, start.weight)
        if freeze:
            start.layer.weight.requires_grad_(False)
            start.layer.weight.grad = None
    return [name for start in starts.values() for name in start.names]


class _Start(NamedTuple):
    """A layer, its names in the model, and its new weight."""

    names: list[str]
    layer: PlainLayer
    weight: Tensor


def _compute_starts(
    model: nn.Module,
    calls: Iterator[Call],
    settings: Settings,
    layers: str | Iterable[str] | None,
    example_input: Any,
) -> dict[str, _Start]:
    """Return the new weights of the layers, by their first names; the model is not changed."""
    if settings.freeze and isinstance(model, DistributedDataParallel):
        raise TrActValueError(
            "freeze=True after DistributedDataParallel was created: it would wait for the frozen "
            "weight's gradient. Call whiten on the model before DistributedDataParallel."
        )
    first_call = next(calls)
    if example_input is None:
        example_input = _make_example(model, first_call)
    selected = select_layers(model, layers, example_input)
    reshard(model)  # an evaluation may have run a forward
    names: dict[int, list[str]] = {}
    chosen: dict[str, PlainLayer] = {}
    for name, layer in selected.items():
        if id(layer) not in names:
            chosen[name] = _check_layer(layer, name)
        names.setdefault(id(layer), []).append(name)
    if len({id(layer.weight) for layer in chosen.values()}) < len(chosen):
        shown = ", ".join(map(repr, chosen))
        raise TrActValueError(
            f"some of the layers {shown} share one weight; name only one of them with layers=."
        )
    before = {name: read_whole(layer.weight).cpu().double() for name, layer in chosen.items()}
    statistics = measure_inputs(model, chosen, itertools.chain([first_call], calls))
    generator = torch.Generator().manual_seed(settings.seed)
    return {
        name: _Start(
            names[id(layer)],
            layer,
            _compute_weight(layer, name, before[name], statistics[name], settings, generator),
        )
        for name, layer in chosen.items()
    }


def _make_example(model: nn.Module, call: Call) -> Any:
    """Return a batch as an example input; a forward that fails would leave FSDP2 in disorder."""
    floats = (p for p in model.parameters() if p.is_floating_point())
    parameter = next(floats, None)
    if parameter is not None:
        call = move_call(call, parameter.device, parameter.dtype)
    args, kwargs = call
    return kwargs or args


def _check_layer(layer: nn.Module, name: str) -> PlainLayer:
    check_layer(layer, name, "whiten")
    weight: Any = layer.weight
    where = f"layer {name!r}: " if name else ""
    if weight.is_meta:
        raise UnsupportedLayerError(
            f"{where}{type(layer).__name__} is on the meta device and has no values; call "
            "model.to_empty(device=...) and initialise the model first."
        )
    if isinstance(layer, nn.Linear):
        shape: tuple[int, ...] = (layer.out_features, layer.in_features)
    else:
        conv: Any = layer
        shape = (conv.out_channels, conv.in_channels // conv.groups, *conv.kernel_size)
    if tuple(weight.shape) != shape:
        raise UnsupportedLayerError(
            f"{where}the weight of {type(layer).__name__} has shape {tuple(weight.shape)} in place "
            f"of {shape} (FSDP1 flattens weights); call whiten before the model is sharded."
        )
    num_inputs = math.prod(shape[1:])
    if num_inputs > MAX_INPUTS:
        raise UnsupportedLayerError(
            f"{where}{type(layer).__name__} has {num_inputs} inputs for each output; whiten takes "
            f"at most {MAX_INPUTS}, because their second moment would take "
            f"{8 * num_inputs**2 / 2**30:.0f} GiB. Use smaller images or patches."
        )
    return layer  # type: ignore[return-value]


def _compute_weight(
    layer: PlainLayer,
    name: str,
    before: Tensor,
    statistics: InputStatistics,
    settings: Settings,
    generator: torch.Generator,
) -> Tensor:
    """Return the new weight in the layer's shape and dtype, on the CPU."""
    where = f"layer {name!r}: " if name else ""
    groups = getattr(layer, "groups", 1)
    weight = before.reshape(groups, before.shape[0] // groups, -1)
    _, num_outputs, num_inputs = weight.shape
    moment = _check_statistics(statistics, groups, where)
    needed = count_directions(num_outputs, num_inputs, settings.signs)
    if settings.filters == "eigen" and statistics.num_rows < needed:
        raise TrActValueError(
            f"{where}the images have {statistics.num_rows} rows, and {num_outputs} outputs need "
            f"at least {needed} for as many directions; pass more images, or filters='random'."
        )
    new = []
    for own, second_moment in zip(weight, moment, strict=True):
        spectrum = decompose(second_moment)
        if settings.filters == "eigen":
            basis = select_basis(spectrum, settings.eps, statistics.rounding)
            new.append(spread_basis(basis, num_outputs, settings.signs, generator))
        else:
            new.append(whiten_weight(own, spectrum, settings.eps))
    filters = torch.stack(new)
    factor = find_factor(settings.scale, weight, filters, lambda w: mean_square(w, moment), where)
    scaled = filters * factor
    rounded = scaled.reshape(before.shape).to(layer.weight.dtype)
    if not rounded.isfinite().all():
        raise TrActValueError(
            f"{where}the whitened weight is not finite in {layer.weight.dtype}: its largest value "
            f"is {scaled.abs().max().item():.3g}. Standardise the images, or set a smaller scale."
        )
    return rounded


def _check_statistics(statistics: InputStatistics, groups: int, where: str) -> Tensor:
    """Return the second moment [g, n, n] of rows that can be whitened."""
    if statistics.num_rows == 0:
        raise TrActValueError(f"{where}the images have no rows; pass batches that are not empty.")
    moment = statistics.second_moment()
    if not moment.isfinite().all():
        raise TrActValueError(
            f"{where}its inputs are not finite (NaN or infinite); check the images and what is "
            "done to them before this layer."
        )
    constant = statistics.find_constant_groups(groups)
    if constant:
        of_groups = f" in groups {constant}" if groups > 1 else ""
        raise TrActValueError(
            f"{where}its inputs are constant{of_groups}: no direction can be whitened; pass images "
            "that vary."
        )
    return moment


def _agree_over_ranks(problem: Exception | None, starts: dict[str, _Start]) -> None:
    """Give all ranks the weights of rank 0; if a rank failed, raise on all of them."""
    problems: list[str | None] = [None] * get_world_size()
    dist.all_gather_object(problems, None if problem is None else str(problem))
    if problem is not None:
        raise problem
    for rank, text in enumerate(problems):
        if text is not None:
            raise TrActValueError(f"whiten failed on rank {rank}: {text} No rank was changed.")
    weights = [start.weight for start in starts.values()]
    dist.broadcast_object_list(weights, src=0)
    for name, weight in zip(starts, weights, strict=True):
        starts[name] = starts[name]._replace(weight=weight)
