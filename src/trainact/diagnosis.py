"""The paper's Figure 1 in numbers: how far the step of z is from the desired one."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from trainact.errors import TrActTypeError, TrActValueError, UnsupportedLayerError, first_line
from trainact.functional import check_input
from trainact.layers import TrActLayer
from trainact.operators import OperatorCall, read_operator_call
from trainact.options import DEFAULT_LAM, Options, check_lam
from trainact.reference import preactivations_as_rows
from trainact.rows import (
    SUPPORTED_LAYERS,
    Patches,
    PlainLayer,
    output_size,
    patches_of_layer,
    unfold_rows,
)
from trainact.second_moment import scale_damping

__all__ = ["Diagnosis", "diagnose"]

FLOAT32_LIMIT = 1e6
"""Condition number of xᵀx/b + λI above which float32 leaves few correct digits."""


@dataclass(frozen=True)
class Diagnosis:
    """Numbers about one layer and one batch; ``print`` it for a summary.

    The desired step of the pre-activations is b ∇z. A step of the weights gives x ΔWᵀ instead, with
    ΔW = G in plain training and ΔW = G (xᵀx/b + λI)⁻¹ with TrAct. A layer with ``center`` has the
    covariance C in place of xᵀx/b; with ``center=True`` both steps include that of the bias, and
    with ``center="batchnorm"`` they are those behind the batch norm, without their mean.
    """

    lam: float
    """λ, which ``relative=True`` multiplies by the mean eigenvalue."""
    num_rows: int
    """b"""
    num_inputs: int
    """n"""
    cosine_plain: float
    """Cosine between the desired step of z and the step of plain training."""
    cosine_tract: float
    distance_plain: float
    """‖actual − desired‖ / ‖desired‖ of the same two steps."""
    distance_tract: float
    smallest_eigenvalue: float
    """Of xᵀx/b or C, over all groups."""
    largest_eigenvalue: float
    condition_number: float
    """Of xᵀx/b + λI or C + λI, the largest of all groups."""
    grad_norm_ratio: float
    """‖TrAct gradient‖ / ‖plain gradient‖; it matters for gradient clipping."""
    effective_inputs: float
    """Σ e/(e+λ) over the eigenvalues e, averaged over groups: directions that λ does not damp."""
    advice: str

    def __str__(self) -> str:
        cosines = f"{self.cosine_plain:>10.3f}{self.cosine_tract:>10.3f}"
        distances = f"{self.distance_plain:>10.3g}{self.distance_tract:>10.3g}"
        eigenvalues = f"{self.smallest_eigenvalue:.3g} to {self.largest_eigenvalue:.3g}"
        lines = (
            f"{self.num_rows} rows of {self.num_inputs} inputs, lam {self.lam:g}",
            f"{'':28}{'plain':>10}{'TrAct':>10}",
            f"{'cosine to the desired step':28}{cosines}",
            f"{'relative distance to it':28}{distances}",
            f"eigenvalues of the second moment {eigenvalues}",
            f"condition number with lam {self.condition_number:.3g}",
            f"gradient norm, TrAct / plain: {self.grad_norm_ratio:.3g}",
            f"directions not damped by lam: {self.effective_inputs:.1f} of {self.num_inputs}",
            self.advice,
        )
        return "\n".join(lines)


@torch.no_grad()
def diagnose(layer: PlainLayer, x: Tensor, grad_z: Tensor, lam: float | None = None) -> Diagnosis:
    """Compare the desired step of z with the steps of plain training and of TrAct.

    >>> conv = torch.nn.Conv2d(3, 16, 3)
    >>> x, grad_z = torch.rand(8, 3, 12, 12) + 1, torch.randn(8, 16, 10, 10)
    >>> diagnosis = diagnose(conv, x, grad_z)
    >>> diagnosis.cosine_tract > diagnosis.cosine_plain
    True

    Args:
        layer: a Linear or Conv1d/2d/3d, plain or with TrAct; its ``center`` and ``relative`` count.
        x: its input; ``moment_decay`` has no effect on these numbers.
        grad_z: ∇z, the gradient of an averaged loss by its output, in the output's shape.
        lam: λ; None means the layer's, or the default for a plain layer.

    Raises:
        UnsupportedLayerError: ``layer`` has another class, or its forward calls several operators.
        TrActValueError: ``x`` does not fit the layer, ``grad_z`` has another shape than z, or there
            are no rows.
    """
    if not isinstance(layer, SUPPORTED_LAYERS):
        raise UnsupportedLayerError(
            f"diagnose takes an nn.Linear or nn.Conv1d/2d/3d; got {type(layer).__name__}."
        )
    if lam is None:
        lam = layer.lam if isinstance(layer, TrActLayer) else DEFAULT_LAM
    lam = check_lam(lam)
    for name, tensor in (("x", x), ("grad_z", grad_z)):
        if not isinstance(tensor, Tensor):
            raise TrActTypeError(f"{name} takes a tensor; got {type(tensor).__name__}.")
    used, patches = _find_operator_input(layer, x.detach().double())
    rows = unfold_rows(used, patches)
    groups, num_rows, num_inputs = rows.shape
    wanted = _find_output_shape(used, patches, layer.weight.shape[0])
    if grad_z.shape != wanted:
        raise TrActValueError(
            f"grad_z of shape {tuple(grad_z.shape)} does not match x of shape {tuple(x.shape)}; "
            f"pass the gradient of z, of shape {wanted}."
        )
    if num_rows == 0:
        raise TrActValueError(
            f"x of shape {tuple(x.shape)} has 0 rows; pass a batch that is not empty."
        )
    flat = preactivations_as_rows(grad_z.detach().double(), layer)
    options = layer.options if isinstance(layer, TrActLayer) else Options()
    desired = num_rows * flat.reshape(num_rows, groups, -1).transpose(0, 1)  # b ∇z, [g, b, m/g]
    plain = desired.mT @ rows / num_rows  # G
    mean = rows.mean(1, keepdim=True) if options.center else None  # μ
    moved = rows if mean is None else rows - mean
    eigenvalues, vectors = torch.linalg.eigh(moved.mT @ moved / num_rows)
    eigenvalues = eigenvalues.clamp(min=0)
    damping = torch.full_like(eigenvalues[:, 0], lam)
    if options.relative:
        damping = scale_damping(lam, eigenvalues.mean(1), None if mean is None else mean[:, 0])
    damped = eigenvalues + damping.unsqueeze(1)
    grad = desired.mT @ moved / num_rows if options.changes_bias else plain  # G − g_b μᵀ, or G
    tract = (grad @ vectors) / damped.unsqueeze(1) @ vectors.mT
    steps = {"plain": moved @ plain.mT, "tract": moved @ tract.mT}
    if options.changes_bias:
        by_bias = desired.mean(1, keepdim=True)  # g_b
        steps = {"plain": rows @ plain.mT + by_bias, "tract": steps["tract"] + by_bias}
    largest = eigenvalues.max().item()
    condition = (damped.amax(1) / damped.amin(1)).max().item()
    return Diagnosis(
        lam=lam,
        num_rows=num_rows,
        num_inputs=num_inputs,
        cosine_plain=_cosine(steps["plain"], desired),
        cosine_tract=_cosine(steps["tract"], desired),
        distance_plain=_relative_distance(steps["plain"], desired),
        distance_tract=_relative_distance(steps["tract"], desired),
        smallest_eigenvalue=eigenvalues.min().item(),
        largest_eigenvalue=largest,
        condition_number=condition,
        grad_norm_ratio=(tract.norm() / plain.norm()).item(),
        effective_inputs=(eigenvalues / damped).sum().item() / groups,
        advice=_advise(lam, damping.min().item(), largest, condition),
    )


def _find_operator_input(layer: PlainLayer, x: Tensor) -> tuple[Tensor, Patches]:
    """Return what the layer's operator gets, in float64, and how it cuts it into rows.

    A class of another library may pad its input itself, so its forward runs on a float64 copy.
    """
    plain_class = layer.plain_class if isinstance(layer, TrActLayer) else type(layer)
    if plain_class in SUPPORTED_LAYERS:
        check_input(layer.weight, x, getattr(layer, "groups", 1))
        return x, patches_of_layer(layer)
    observer = _OperatorObserver()
    try:
        state = {
            name: tensor.detach().to(x.device, x.dtype if tensor.is_floating_point() else None)
            for name, tensor in (*layer.named_parameters(), *layer.named_buffers())
        }
        with observer:
            functional_call(layer, state, (x,))
    except Exception as error:  # another library's forward may raise anything
        raise TrActValueError(
            f"a forward of {plain_class.__name__} failed on x of shape {tuple(x.shape)} "
            f"({first_line(error)}); pass the input of the layer."
        ) from error
    if len(observer.calls) != 1:
        raise UnsupportedLayerError(
            f"{plain_class.__name__}.forward called F.linear or F.conv1d/2d/3d "
            f"{len(observer.calls)} times; diagnose needs exactly one such call to know the rows."
        )
    (call,) = observer.calls
    return call.x, call.describe_patches()


class _OperatorObserver(TorchFunctionMode):
    """Keep the operator calls of a forward."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[OperatorCall] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        call = read_operator_call(func, args, kwargs)
        if call is not None:
            self.calls.append(call)
        return func(*args, **(kwargs or {}))


def _find_output_shape(x: Tensor, patches: Patches, num_outputs: int) -> tuple[int, ...]:
    """Return the shape of the operator's output."""
    dims = len(patches.kernel_size)
    if not dims:
        return (*x.shape[:-1], num_outputs)
    return (*x.shape[: -dims - 1], num_outputs, *output_size(x.shape[-dims:], patches))


def _advise(lam: float, damping: float, largest: float, condition: float) -> str:
    """Return what the eigenvalues say about λ; ``damping`` is what is added to them."""
    shown = f"lam {lam:g}" if damping == lam else f"lam {lam:g} (relative: {damping:.3g})"
    if largest <= damping:
        return (
            f"{shown} exceeds every eigenvalue: TrAct is close to plain training with a step "
            f"{1 / damping:.3g} times as large. Lower lam below {lam * largest / damping:.3g} or "
            "standardise the input."
        )
    if condition > FLOAT32_LIMIT:
        return (
            f"condition number {condition:.3g} is too large for float32: standardise the input, or "
            "use moment_dtype=torch.float64."
        )
    return f"{shown} lies below the largest eigenvalue {largest:.3g} and float32 suffices."


def _cosine(a: Tensor, b: Tensor) -> float:
    return ((a * b).sum() / (a.norm() * b.norm())).item()


def _relative_distance(actual: Tensor, desired: Tensor) -> float:
    return ((actual - desired).norm() / desired.norm()).item()
