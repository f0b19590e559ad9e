"""Any layer on any input: bit-identical but for one gradient, which is the explicit inverse's."""

import copy
import math

import pytest
import torch
from hypothesis import assume, event, given
from hypothesis import strategies as st
from torch import Tensor, nn

from cases import assert_close
from conftest import find_samples, read_cifar_images
from trainact import TrAct, accumulate
from trainact.reference import cut_patches, tract_gradient_of_layer

CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


@st.composite
def linear_layers(draw) -> tuple[nn.Module, Tensor]:
    inputs, outputs = draw(st.integers(1, 12)), draw(st.integers(1, 6))
    lead = draw(st.lists(st.integers(0, 5), max_size=4))
    layer = nn.Linear(inputs, outputs, bias=draw(st.booleans()))
    x = draw_values(draw, (*lead, inputs))
    if draw(st.booleans()) and len(lead) > 1:
        x = x.transpose(0, 1).contiguous().transpose(0, 1)
    return layer, x


@st.composite
def convolutions(draw) -> tuple[nn.Module, Tensor]:
    dims = draw(st.sampled_from([1, 2, 2, 2, 3]))
    biggest = {1: 7, 2: 5, 3: 3}[dims]
    groups = draw(st.integers(1, 3))
    channels = groups * draw(st.integers(1, 2 if groups > 1 else 3))
    kernel = draw_tuple(draw, dims, 1, biggest)
    dilation = draw_tuple(draw, dims, 1, 2)
    mode = draw(st.sampled_from(["zeros", "reflect", "replicate", "circular"]))
    padding = draw(st.sampled_from(["numbers", "numbers", "same", "valid"]))
    stride = (1,) * dims if padding == "same" else draw_tuple(draw, dims, 1, 4)
    if padding == "numbers":
        padding = draw_tuple(draw, dims, 0, 3)
    size = draw_tuple(draw, dims, 1, {1: 20, 2: 10, 3: 6}[dims])
    layer = CONVOLUTIONS[dims](
        channels, groups * draw(st.integers(1, 3)), kernel, stride, padding, dilation, groups,
        bias=draw(st.booleans()), padding_mode=mode,
    )  # fmt: skip
    batch = draw(st.sampled_from([None, 0, 1, 2, 4]))
    x = draw_values(draw, ((batch,) if batch is not None else ()) + (channels, *size))
    if dims == 2 and batch and draw(st.booleans()):
        x = x.contiguous(memory_format=torch.channels_last)
    return layer, x


def draw_tuple(draw, dims: int, low: int, high: int) -> tuple[int, ...]:
    return tuple(draw(st.integers(low, high)) for _ in range(dims))


_IMAGES: list[Tensor] = []


def draw_values(draw, shape: tuple[int, ...]) -> Tensor:
    """Draw noise, or a crop of real images in [0, 1] or standardised."""
    if not draw(st.booleans()):
        return torch.randn(shape, dtype=torch.float64)
    if not _IMAGES:
        _IMAGES.append(read_cifar_images(find_samples(), 64) / 255)
    start = draw(st.integers(0, 150_000))
    crop = _IMAGES[0].flatten()[start : start + math.prod(shape)].reshape(shape)
    event("crop of a real image")
    return (crop - 0.47) / 0.25 if draw(st.booleans()) else crop


@pytest.mark.usefixtures("samples")
@given(
    case=st.one_of(linear_layers(), convolutions(), convolutions()),
    lam=st.sampled_from([0.01, 0.1, 1.0]),
    micro_batches=st.booleans(),
)
def test_only_the_weight_gradient_changes_and_it_is_the_explicit_inverse(case, lam, micro_batches):
    layer, x = case
    layer = layer.double()
    try:
        z = layer(x)
    except RuntimeError:
        assume(False)  # torch itself refuses this geometry
    grad_z = torch.randn_like(z)
    tract = TrAct(copy.deepcopy(layer), lam)
    plain_x, tract_x = x.clone().requires_grad_(), x.clone().requires_grad_()  # aligned alike
    z = layer(plain_x)
    z.backward(grad_z)
    if micro_batches:
        with accumulate(tract):
            z_tract = tract(tract_x)
            z_tract.backward(grad_z)
    else:
        z_tract = tract(tract_x)
        z_tract.backward(grad_z)
    assert torch.equal(z_tract, z)
    assert torch.equal(tract_x.grad, plain_x.grad)
    if layer.bias is not None:
        assert torch.equal(tract.bias.grad, layer.bias.grad)
    _, num_rows, num_inputs = cut_patches(x, layer).shape
    event(f"rows {'<' if num_rows < num_inputs else '>='} columns")
    expected = tract_gradient_of_layer(layer, x, grad_z, lam)
    scale = (
        expected.norm() + 1e-3 * layer.weight.grad.norm() / lam
    )  # exact cancellation leaves dust
    assert (tract.weight.grad - expected).norm() <= 1e-8 * scale
    if num_rows == 0:
        assert_close(tract.weight.grad, torch.zeros_like(layer.weight))
