"""Slow reference implementations in the paper's notation; every fast path is tested against them.

They are written to be read, not to be fast or to save memory. They take any layer that TrAct
supports, plain or wrapped. Call them in float64 for exact results.
"""

import itertools
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainact.options import DEFAULT_LAM
from trainact.rows import PlainLayer
from trainact.torch_internals import read_padding

__all__ = [
    "cut_patches",
    "preactivations_as_rows",
    "tract_gradient",
    "tract_gradient_of_layer",
    "tract_preactivations",
]


def tract_gradient(grad_z: Tensor, x: Tensor, lam: float = DEFAULT_LAM) -> Tensor:
    """Return the weight gradient of the paper's Figure 2 (right half), with an explicit inverse.

    Args:
        grad_z: ∇z, shape [b, m].
        x: rows, shape [b, n].
        lam: λ.
    """
    b, n = x.shape
    identity = torch.eye(n, dtype=x.dtype, device=x.device)
    return grad_z.T @ x @ torch.linalg.inv(x.T @ x / b + lam * identity)


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
    rows = cut_patches(x, layer)
    g, b, _ = rows.shape
    if b == 0:
        return torch.zeros_like(layer.weight)
    grad_z = preactivations_as_rows(grad_z, layer).reshape(b, g, -1).transpose(0, 1)
    gradients = [tract_gradient(gz, r, lam) for gz, r in zip(grad_z, rows, strict=True)]
    return torch.cat(gradients).reshape(layer.weight.shape)


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
