"""A whitened start for a first layer in JAX, from the images it will be trained on."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainact.errors import TrActTypeError, TrActValueError
from trainact.jax.filters import (
    Matrix,
    decompose,
    mean_square,
    select_basis,
    spread_basis,
    whiten_own,
)
from trainact.jax.moments import measure_second_moment
from trainact.jax.patches import DENSE, Padding, Patches, check_input, describe_patches
from trainact.whitening_settings import Settings, check_settings, count_directions, find_factor

__all__ = ["compute_whitened", "list_batches", "whiten_weight"]


def whiten_weight(
    weight: jax.Array,
    x: Any,
    strides: int | Sequence[int] = 1,
    padding: Padding = "VALID",
    dilation: int | Sequence[int] = 1,
    feature_group_count: int = 1,
    *,
    filters: str = "eigen",
    scale: str | float = "keep",
    eps: float | None = None,
    signs: bool = True,
    seed: int = 0,
) -> jax.Array:
    """Return whitened filters in the shape and dtype of a first layer's weight.

    They are those of `trainact.whiten`. Only the random rotations, which more filters than twice
    the directions need, are others. All is computed in float64, and not in compiled code.

    >>> weight = jax.random.normal(jax.random.key(0), (3, 3, 3, 16))
    >>> images = jax.random.normal(jax.random.key(1), (8, 32, 32, 3))
    >>> whiten_weight(weight, images, padding="SAME").shape
    (3, 3, 3, 16)

    Args:
        weight: W, shape [n, m] for a dense layer, [*kernel, C/g, m] for a convolution.
        x: the layer's input, as in :func:`second_moment`, or an iterable of such batches; a tuple
            of arrays is one batch with its targets.
        strides: as in the convolution.
        padding: as in the convolution.
        dilation: of the kernel.
        feature_group_count: g.
        filters: as in `trainact.whiten`, like the arguments that follow.
        scale: ``"keep"``, ``"unit"`` or a positive number.
        eps: the damping, relative to the mean eigenvalue.
        signs: whether filters come with their negatives.
        seed: of the rotations.

    Raises:
        TrActError: an argument is unusable, or the rows are constant, not finite or too few.
    """
    settings = check_settings(filters, scale, eps, signs, False, seed)
    weight = check_input(weight, "weight")
    if weight.ndim < 2:
        raise TrActTypeError(
            "whiten_weight needs the weight of a dense layer [n, m] or of a convolution "
            f"[*kernel, C/g, m]; got {weight.ndim} dimensions."
        )
    kernel = weight.shape[:-2]

    def describe(batch: jax.Array) -> tuple[jax.Array, Patches]:
        if not kernel:
            return batch, DENSE
        batch = batch[None] if batch.ndim == len(kernel) + 1 else batch
        arguments = (kernel, strides, padding, dilation, feature_group_count)
        return batch, describe_patches(batch.shape, *arguments)

    return compute_whitened(weight, map(describe, list_batches(x)), settings)


def list_batches(images: Any, most: int | None = None) -> Iterator[jax.Array]:
    """Yield the arrays of one batch, or of an iterable of batches until they hold ``most`` images.

    A tuple of arrays is one batch: images and their targets.

    Raises:
        TrActTypeError: ``images`` holds something else.
        TrActValueError: there is no batch.
    """
    accepted = "a batch is an array, or a tuple or list whose first element is one"
    if isinstance(images, tuple) and images and all(map(_is_array, images)):
        images = images[0]
    if _is_array(images):
        yield check_input(images, "images")
        return
    if not isinstance(images, Iterable) or isinstance(images, Mapping | str):
        raise TrActTypeError(
            f"images takes one batch or an iterable of batches, and {accepted}; got "
            f"{type(images).__name__}."
        )
    position, seen = -1, 0
    for position, batch in enumerate(images):
        content = batch[0] if isinstance(batch, tuple | list) and batch else batch
        if not _is_array(content):
            raise TrActTypeError(f"batch {position} is a {type(batch).__name__}; {accepted}.")
        yield check_input(content, "images")
        seen += len(content) if content.ndim else 1
        if most is not None and seen >= most:
            return
    if position < 0:
        raise TrActValueError("images holds no batch; pass an array, or an iterable of batches.")


def _is_array(value: object) -> bool:
    return isinstance(value, jax.Array | np.ndarray)


def compute_whitened(
    weight: jax.Array,
    inputs: Iterable[tuple[jax.Array, Patches]],
    settings: Settings,
    where: str = "",
) -> jax.Array:
    """Return the whitened weight of a layer.

    Args:
        weight: W, shape [*kernel, C/g, m].
        inputs: batches of the layer's input, and how it cuts them.
        settings: which filters.
        where: the layer, for messages.
    """
    statistics = _Statistics()
    for x, patches in inputs:
        statistics.add(x, patches)
    moment = statistics.check(where)
    groups, num_inputs, _ = moment.shape
    flat = np.asarray(weight, np.float64).reshape(-1, weight.shape[-1])
    if len(flat) != num_inputs or flat.shape[1] % groups:
        raise TrActValueError(
            f"{where}a weight of shape {weight.shape} does not fit an input of {num_inputs} "
            f"numbers for each output in {groups} groups."
        )
    before = flat.T.reshape(groups, -1, num_inputs)
    num_outputs = before.shape[1]
    needed = count_directions(num_outputs, num_inputs, settings.signs)
    if settings.filters == "eigen" and statistics.num_rows < needed:
        raise TrActValueError(
            f"{where}the images have {statistics.num_rows} rows, and {num_outputs} outputs need "
            f"at least {needed} for as many directions; pass more images, or filters='random'."
        )
    generator = np.random.default_rng(abs(settings.seed))
    after = np.empty_like(before)
    for group, second_moment in enumerate(moment):
        spectrum = decompose(second_moment)
        if settings.filters == "eigen":
            basis = select_basis(spectrum, settings.eps, statistics.rounding)
            after[group] = spread_basis(basis, num_outputs, settings.signs, generator)
        else:
            after[group] = whiten_own(before[group], spectrum, settings.eps)
    factor = find_factor(settings.scale, before, after, lambda w: mean_square(w, moment), where)
    scaled = after * factor
    with np.errstate(over="ignore"):
        shaped = scaled.reshape(-1, num_inputs).T.reshape(weight.shape)
        rounded = jnp.asarray(shaped.astype(weight.dtype))
    if not bool(jnp.isfinite(rounded).all()):
        raise TrActValueError(
            f"{where}the whitened weight is not finite in {weight.dtype}: its largest value is "
            f"{np.abs(scaled).max():.3g}. Standardise the images, or set a smaller scale."
        )
    return rounded


class _Statistics:
    """Σ xᵀx and Σ b of a layer's rows, and the range of each of its input channels."""

    def __init__(self) -> None:
        self.num_rows = 0
        self.rounding = 0.0
        self._groups = 1
        self._total: Matrix | float = 0.0
        self._lowest: Matrix | float = np.inf
        self._highest: Matrix | float = -np.inf

    def add(self, x: jax.Array, patches: Patches) -> None:
        """Add the rows of one batch."""
        if isinstance(x, jax.core.Tracer):
            raise TrActTypeError(
                "whitening needs values; call it outside of jit. If the model wraps the layer in "
                "nnx.jit or nnx.remat, pass the layer itself and batches of its input."
            )
        count = patches.count_rows(x)
        is_float = jnp.issubdtype(x.dtype, jnp.floating)
        self.rounding = max(self.rounding, float(jnp.finfo(x.dtype).eps) if is_float else 0.0)
        values = np.asarray(x).astype(np.float64)
        with jax.enable_x64(True):
            moment = measure_second_moment(jnp.asarray(values), patches, jnp.dtype(jnp.float64))
            self._total = self._total + np.asarray(moment) * count
        self.num_rows += count
        self._groups = patches.groups
        if count:
            channels = values.reshape(-1, values.shape[-1])
            self._lowest = np.minimum(self._lowest, channels.min(0))
            self._highest = np.maximum(self._highest, channels.max(0))

    def check(self, where: str) -> Matrix:
        """Return xᵀx/b, shape [g, n, n], of rows that can be whitened."""
        if self.num_rows == 0:
            raise TrActValueError(
                f"{where}the images have no rows; pass batches that are not empty."
            )
        moment = np.asarray(self._total) / self.num_rows
        if not np.isfinite(moment).all():
            raise TrActValueError(
                f"{where}its inputs are not finite (NaN or infinite); check the images and what is "
                "done to them before this layer."
            )
        is_constant = np.asarray(self._lowest == self._highest).reshape(self._groups, -1).all(1)
        if is_constant.any():
            listed = np.flatnonzero(is_constant).tolist()
            of_groups = f" in groups {listed}" if self._groups > 1 else ""
            raise TrActValueError(
                f"{where}its inputs are constant{of_groups}: no direction can be whitened; pass "
                "images that vary."
            )
        return moment
