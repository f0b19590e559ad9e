"""Slow reference implementations in the paper's notation; every fast path is tested against them.

They are written to be read, not to be fast or to save memory. They take any layer that TrAct
supports, plain or wrapped. Call them in float64 for exact results.
"""

import itertools
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainact.options import DEFAULT_LAM, Center
from trainact.rows import PlainLayer
from trainact.torch_internals import read_padding

__all__ = [
    "average_over_steps",
    "cut_patches",
    "preactivations_as_rows",
    "centered_gradients",
    "tract_gradient",
    "tract_gradient_of_layer",
    "tract_gradients_of_layer",
    "tract_preactivations",
    "whitened_filters",
    "whitened_weight_of_layer",
]


def tract_gradient(
    grad_z: Tensor, x: Tensor, lam: float = DEFAULT_LAM, *, relative: bool = False
) -> Tensor:
    """Return the weight gradient of the paper's Figure 2 (right half), with an explicit inverse.

    Args:
        grad_z: ∇z, shape [b, m].
        x: rows, shape [b, n].
        lam: λ.
        relative: multiply λ by the mean eigenvalue of xᵀx/b.
    """
    return grad_z.T @ x @ _invert(x.T @ x / len(x), lam, relative)


def centered_gradients(
    grad_z: Tensor, x: Tensor, lam: float = DEFAULT_LAM, *, relative: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the gradients of weight and bias for ``center=True``, from centred rows.

    Args:
        grad_z: ∇z, shape [b, m].
        x: rows, shape [b, n].
        lam: λ.
        relative: multiply λ by the mean eigenvalue of the covariance.
    """
    mean = x.mean(0)
    centred = x - mean
    grad_weight = grad_z.T @ centred @ _invert(centred.T @ centred / len(x), lam, relative)
    return grad_weight, grad_z.sum(0) - grad_weight @ mean


def average_over_steps(values: Sequence[Tensor], decay: float) -> Tensor:
    """Return Σ βᵏ v / Σ βᵏ, where v is the value k steps before the last one.

    Args:
        values: one tensor for each step, the latest last.
        decay: β.
    """
    weights = [decay**k for k in reversed(range(len(values)))]
    total = sum(weight * value for weight, value in zip(weights, values, strict=True))
    return torch.as_tensor(total) / sum(weights)


def _invert(matrix: Tensor, lam: float, relative: bool) -> Tensor:
    """Return (matrix + λI)⁻¹, or with λ times the mean eigenvalue; zero of a zero matrix then."""
    damping = lam * torch.linalg.eigvalsh(matrix).mean() if relative else lam
    if not damping:
        return torch.zeros_like(matrix)
    identity = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
    return torch.linalg.inv(matrix + damping * identity)


def cut_patches(x: Tensor, layer: PlainLayer) -> Tensor:
    """Return the rows of a layer, shape [g, b, n], cut out of its input one by one."""
    if isinstance(layer, nn.Linear):
        return x.reshape(-1, layer.in_features).unsqueeze(0)
    kernel, stride, dilation = layer.kernel_size, layer.stride, layer.dilation
    if x.dim() == len(kernel) + 1:
        x = x.unsqueeze(0)
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    x = F.pad(x, read_padding(layer), mode=mode)
    spans = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    starts = [
        range(0, size - span + 1, step)
        for size, span, step in zip(x.shape[2:], spans, stride, strict=True)
    ]
    groups = []
    for channels in x.chunk(layer.groups, dim=1):
        patches = [
            image[
                (
                    slice(None),
                    *(slice(a, a + s, d) for a, s, d in zip(at, spans, dilation, strict=True)),
                )
            ]
            for image in channels
            for at in itertools.product(*starts)
        ]
        n = channels.shape[1] * math.prod(kernel)
        groups.append(torch.stack(patches).reshape(-1, n) if patches else x.new_zeros(0, n))
    return torch.stack(groups)


def tract_gradient_of_layer(
    layer: PlainLayer, x: Tensor, grad_z: Tensor, lam: float = DEFAULT_LAM
) -> Tensor:
    """Return the TrAct weight gradient of a layer, in the shape of its weight.

    Args:
        layer: a Linear or Conv1d/2d/3d.
        x: its input.
        grad_z: ∇z, in the shape of its output.
        lam: λ.
    """
    grad_weight, _ = tract_gradients_of_layer(layer, x, grad_z, lam)
    return grad_weight


def tract_gradients_of_layer(
    layer: PlainLayer,
    x: Tensor,
    grad_z: Tensor,
    lam: float = DEFAULT_LAM,
    *,
    center: Center = False,
    relative: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the TrAct gradient of a layer's weight, and the gradient of its bias.

    Args:
        layer: a Linear or Conv1d/2d/3d; it may have no bias.
        x: its input.
        grad_z: ∇z, in the shape of its output.
        lam: λ.
        center: as in `trainact.TrAct`.
        relative: as in `trainact.TrAct`.
    """
    rows = cut_patches(x, layer)
    g, b, _ = rows.shape
    grad_z = preactivations_as_rows(grad_z, layer)
    if b == 0:
        return torch.zeros_like(layer.weight), grad_z.sum(0)
    weights, biases = [], []
    for gz, r in zip(grad_z.reshape(b, g, -1).transpose(0, 1), rows, strict=True):
        grad_weight, grad_bias = tract_gradient(gz, r, lam, relative=relative), gz.sum(0)
        if center == "batchnorm":
            centred = r - r.mean(0)
            grad_weight = gz.T @ r @ _invert(centred.T @ centred / b, lam, relative)
        elif center:
            grad_weight, grad_bias = centered_gradients(gz, r, lam, relative=relative)
        weights.append(grad_weight)
        biases.append(grad_bias)
    return torch.cat(weights).reshape(layer.weight.shape), torch.cat(biases)


def tract_preactivations(layer: PlainLayer, x: Tensor, lam: float = DEFAULT_LAM) -> Tensor:
    """Return z with the layer's values and TrAct's gradient: the paper's second form.

    The layer runs on ``x (xᵀx/b + λI)⁻¹``. Then its values are overwritten by those on ``x``; the
    gradient stays. Backpropagate through z to use it.
    """
    rows = cut_patches(x, layer)
    _, b, n = rows.shape
    identity = torch.eye(n, dtype=x.dtype, device=x.device)
    whitened = rows @ torch.linalg.inv(rows.mT @ rows / b + lam * identity)
    weight = layer.weight.reshape(rows.shape[0], -1, n)
    z_rows = (whitened @ weight.mT).transpose(0, 1).reshape(b, -1)
    if layer.bias is not None:
        z_rows = z_rows + layer.bias
    values = layer(x).detach()
    z = _rows_as_preactivations(z_rows, values.shape, layer)
    z.data = values
    return z


def preactivations_as_rows(z: Tensor, layer: PlainLayer) -> Tensor:
    """Return z, in the layer's output shape, as [b, m]."""
    if isinstance(layer, nn.Linear):
        return z.reshape(-1, z.shape[-1])
    dims = len(layer.kernel_size)
    batched = z if z.dim() == dims + 2 else z.unsqueeze(0)
    return batched.movedim(1, -1).reshape(-1, batched.shape[1])


def _rows_as_preactivations(rows: Tensor, shape: torch.Size, layer: PlainLayer) -> Tensor:
    if isinstance(layer, nn.Linear):
        return rows.reshape(shape)
    dims = len(layer.kernel_size)
    batched = shape if len(shape) == dims + 2 else (1, *shape)
    size = (batched[0], *batched[2:], batched[1])
    return rows.reshape(size).movedim(-1, 1).reshape(shape)


def whitened_filters(
    rows: Tensor,
    num_outputs: int,
    eps: float = 5e-4,
    signs: bool = True,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return the eigen filters of `trainact.whiten` with ``scale="unit"``, one by one.

    Args:
        rows: x of one group, shape [b, n], in float64.
        num_outputs: m, the outputs of this group.
        eps: ε, relative to the mean eigenvalue.
        signs: whether each direction is followed by its negative.
        generator: draws the rotations that m > 2r filters (or m > r without signs) need.
    """
    b, n = rows.shape
    second_moment = rows.T @ rows / b
    eigenvalues, eigenvectors = torch.linalg.eigh(second_moment)  # smallest first
    mean_eigenvalue = torch.trace(second_moment) / n
    basis = []
    for i in reversed(range(n)):
        if eigenvalues[i] > n * torch.finfo(rows.dtype).eps * eigenvalues[-1]:
            v = eigenvectors[:, i]
            v = v * torch.sign(v[v.abs().argmax()])
            basis.append(v / torch.sqrt(eigenvalues[i] + eps * mean_eigenvalue))
    r = len(basis)
    filters: list[Tensor] = []
    while len(filters) < num_outputs:
        directions = basis
        if filters:  # all directions are used: rotate them
            q, upper = torch.linalg.qr(torch.randn(r, r, generator=generator, dtype=rows.dtype))
            rotation = q @ torch.diag(torch.sign(torch.diag(upper)))
            directions = [
                torch.stack([rotation[i, j] * basis[j] for j in range(r)]).sum(0) for i in range(r)
            ]
        missing = num_outputs - len(filters)
        used = directions[: math.ceil(missing / 2) if signs else missing]
        filters += used
        if signs:
            filters += [-f for f in used][: missing - len(used)]
    return torch.stack(filters)


def whitened_weight_of_layer(
    layer: PlainLayer,
    x: Tensor,
    filters: str = "eigen",
    scale: str | float = "keep",
    eps: float | None = None,
    signs: bool = True,
    seed: int = 0,
) -> Tensor:
    """Return the weight that `trainact.whiten` gives a layer, in float64.

    The arguments are those of ``whiten``, with the layer's input ``x`` in place of the images.
    """
    rows = cut_patches(x.double(), layer)
    g, b, n = rows.shape
    before = layer.weight.detach().double().reshape(g, -1, n)
    generator = torch.Generator().manual_seed(seed)
    groups = []
    for weight, group_rows in zip(before, rows, strict=True):
        if filters == "eigen":
            damping = 5e-4 if eps is None else eps
            groups.append(whitened_filters(group_rows, len(weight), damping, signs, generator))
        else:
            second_moment = group_rows.T @ group_rows / b
            lam = (0.1 if eps is None else eps) * torch.trace(second_moment) / n
            identity = torch.eye(n, dtype=x.double().dtype)
            eigenvalues, vectors = torch.linalg.eigh(second_moment + lam * identity)
            groups.append(weight @ vectors @ torch.diag(eigenvalues**-0.5) @ vectors.T)
    after = torch.stack(groups)
    if scale == "keep":
        z_before, z_after = rows @ before.mT, rows @ after.mT
        after = after * torch.sqrt(z_before.square().mean() / z_after.square().mean())
    elif not isinstance(scale, str):
        after = after * scale
    return after.reshape(layer.weight.shape)
