"""Every way to xᵀx against patches cut out one by one, and which way is taken when."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from cases import CASES, Case
from test_properties import convolutions
from trainact.lines import can_sum_by_lines, sum_by_lines
from trainact.moments import choose_way, sum_by_rows, sum_outer_products
from trainact.reference import cut_patches
from trainact.rows import count_rows, patches_of_layer

STEMS = {
    "cifar-3x3": (nn.Conv2d(3, 64, 3, padding=1), (128, 3, 32, 32), sum_by_lines),
    "vgg-3x3": (nn.Conv2d(3, 64, 3, padding=1), (16, 3, 224, 224), sum_by_lines),
    "resnet-7x7": (nn.Conv2d(3, 64, 7, 2, 3), (32, 3, 224, 224), sum_by_lines),
    "resnet-7x7-batch-256": (nn.Conv2d(3, 64, 7, 2, 3), (256, 3, 224, 224), sum_by_lines),
    "vit-s-16": (nn.Conv2d(3, 384, 16, 16), (32, 3, 224, 224), sum_by_rows),
    "convnext-4x4": (nn.Conv2d(3, 96, 4, 4), (32, 3, 224, 224), sum_by_rows),
    "cifar-vit": (nn.Linear(48, 384), (128, 64, 48), sum_by_rows),
    "dilated": (nn.Conv2d(3, 64, 3, dilation=2), (32, 3, 64, 64), sum_by_rows),
    "tiny": (nn.Conv2d(3, 64, 3), (1, 3, 5, 5), sum_by_rows),
}


def error(actual: Tensor, rows: Tensor) -> float:
    """Return the largest error of an entry, relative to the two columns it belongs to."""
    exact = rows.double().mT @ rows.double()
    scale = exact.diagonal(dim1=-2, dim2=-1).sqrt()
    bound = scale.unsqueeze(-1) * scale.unsqueeze(-2) + 1e-300
    return ((actual.double() - exact).abs() / bound).max().item()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("way", [sum_by_rows, sum_by_lines, sum_outer_products])
def test_every_way_gives_the_second_moment_of_the_rows(case: Case, way):
    layer, x = case.draw()
    patches = patches_of_layer(layer)
    if way is sum_by_lines and not can_sum_by_lines(x, patches):
        pytest.skip("lines take convolutions without dilation that are wider than their kernel")
    rows = cut_patches(x, layer)
    actual = way(x, patches, rows.shape[-1], torch.float64, torch.float64)
    assert actual.shape == (rows.shape[0], rows.shape[2], rows.shape[2])
    if rows.shape[1]:
        assert error(actual, rows) < 1e-13
    else:
        assert not actual.any()


@pytest.mark.usefixtures("samples")
@settings(max_examples=120)
@given(case=convolutions(), dtype=st.sampled_from([torch.float64, torch.float32]))
def test_lines_agree_with_rows_on_any_convolution(case, dtype):
    layer, x = case
    patches = patches_of_layer(layer)
    try:
        layer.double()(x)
    except RuntimeError:
        assume(False)  # torch itself refuses this geometry
    assume(can_sum_by_lines(x, patches) and count_rows(x, patches))
    x = x.to(dtype)
    rows = cut_patches(x, layer)
    bound = 1e-13 if dtype == torch.float64 else 1e-5
    for way in (sum_by_lines, sum_by_rows):
        assert error(way(x, patches, rows.shape[-1], dtype, torch.float64), rows) < bound


@pytest.mark.parametrize(("layer", "shape", "way"), STEMS.values(), ids=STEMS)
def test_the_way_is_chosen_by_shape_alone(layer, shape, way):
    x = torch.empty(shape, device="meta")
    assert choose_way(x, patches_of_layer(layer), layer.weight[0].numel()) is way


@pytest.mark.parametrize("name", ["resnet-7x7", "vit-s-16"])
def test_real_images_lose_no_digits_to_float32_sums(cifar_images, name):
    layer, _, way = STEMS[name]
    x = nn.functional.interpolate(cifar_images, size=96, mode="bilinear").float()
    patches = patches_of_layer(layer)
    num_inputs = layer.weight[0].numel()
    exact = sum_by_rows(x.double(), patches, num_inputs, torch.float64, torch.float64)
    actual = way(x, patches, num_inputs, torch.float32, torch.float64)
    assert ((actual - exact).norm() / exact.norm()).item() < 1e-7


@pytest.mark.parametrize("pieces", [1, 3])
def test_a_wide_product_is_computed_by_half_and_mirrored(pieces):
    """n ≥ 256 takes strips of the upper triangle; their blocks and the mirror must fit."""
    x = torch.randn(pieces, 2100, 301).double()
    patches = patches_of_layer(nn.Linear(301, 2))
    actual = sum_by_rows(x, patches, 301, torch.float64, torch.float64)
    assert torch.equal(actual, actual.mT)
    assert error(actual, x.reshape(1, -1, 301)) < 1e-13
