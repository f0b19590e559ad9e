"""Every method that sums xᵀx against patches cut out one by one, and which one is chosen."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from cases import CASES, Case
from test_properties import convolutions
from trainact.options import Precision
from trainact.outer_products import choose_method, sum_by_unfolding, sum_outer_products
from trainact.overlapping_patches import can_sum_by_lines, sum_by_lines
from trainact.reference import cut_patches
from trainact.rows import RowSample, count_rows, patches_of_layer, unfold_rows

FLOAT64 = Precision(torch.float64, torch.float64)
STEMS = {
    "cifar-3x3": (nn.Conv2d(3, 64, 3, padding=1), (128, 3, 32, 32), sum_by_lines),
    "vgg-3x3": (nn.Conv2d(3, 64, 3, padding=1), (16, 3, 224, 224), sum_by_lines),
    "resnet-7x7": (nn.Conv2d(3, 64, 7, 2, 3), (32, 3, 224, 224), sum_by_lines),
    "resnet-7x7-batch-256": (nn.Conv2d(3, 64, 7, 2, 3), (256, 3, 224, 224), sum_by_lines),
    "vit-s-16": (nn.Conv2d(3, 384, 16, 16), (32, 3, 224, 224), sum_by_unfolding),
    "convnext-4x4": (nn.Conv2d(3, 96, 4, 4), (32, 3, 224, 224), sum_by_unfolding),
    "cifar-vit": (nn.Linear(48, 384), (128, 64, 48), sum_by_unfolding),
    "dilated": (nn.Conv2d(3, 64, 3, dilation=2), (32, 3, 64, 64), sum_by_unfolding),
    "tiny": (nn.Conv2d(3, 64, 3), (1, 3, 5, 5), sum_by_unfolding),
}


def error(actual: Tensor, rows: Tensor) -> float:
    """Return the largest error of an entry, relative to the two columns it belongs to."""
    exact = rows.double().mT @ rows.double()
    scale = exact.diagonal(dim1=-2, dim2=-1).sqrt()
    bound = scale.unsqueeze(-1) * scale.unsqueeze(-2) + 1e-300
    return ((actual.double() - exact).abs() / bound).max().item()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("method", [sum_by_unfolding, sum_by_lines, sum_outer_products])
def test_every_method_gives_the_sum_over_the_rows(case: Case, method):
    layer, x = case.draw()
    patches = patches_of_layer(layer)
    if method is sum_by_lines and not can_sum_by_lines(x, patches):
        pytest.skip("lines take convolutions without dilation that are wider than their kernel")
    rows = cut_patches(x, layer)
    actual = method(x, patches, FLOAT64)
    assert actual.shape == (rows.shape[0], rows.shape[2], rows.shape[2])
    if rows.shape[1]:
        assert error(actual, rows) < 1e-13
    else:
        assert not actual.any()


@pytest.mark.usefixtures("samples")
@settings(max_examples=120)
@given(case=convolutions(), dtype=st.sampled_from([torch.float64, torch.float32]))
def test_both_methods_agree_on_any_convolution(case, dtype):
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
    for method in (sum_by_lines, sum_by_unfolding):
        assert error(method(x, patches, Precision(dtype, torch.float64)), rows) < bound


@pytest.mark.parametrize(("layer", "shape", "method"), STEMS.values(), ids=STEMS)
def test_the_method_is_chosen_by_shape_alone(layer, shape, method):
    assert choose_method(torch.empty(shape, device="meta"), patches_of_layer(layer)) is method


@pytest.mark.parametrize("name", ["resnet-7x7", "vit-s-16"])
def test_real_images_lose_no_digits_to_float32_sums(cifar_images, name):
    layer, _, method = STEMS[name]
    x = nn.functional.interpolate(cifar_images, size=96, mode="bilinear").float()
    patches = patches_of_layer(layer)
    exact = sum_by_unfolding(x.double(), patches, FLOAT64)
    actual = method(x, patches, Precision(torch.float32, torch.float64))
    assert ((actual - exact).norm() / exact.norm()).item() < 1e-7


@pytest.mark.parametrize("pieces", [1, 3])
def test_a_wide_product_is_computed_by_half_and_mirrored(pieces):
    """n ≥ 256 uses strips of the upper triangle, summed in blocks and mirrored."""
    x = torch.randn(pieces, 2100, 301).double()
    patches = patches_of_layer(nn.Linear(301, 2))
    actual = sum_by_unfolding(x, patches, FLOAT64)
    assert torch.equal(actual, actual.mT)
    assert error(actual, x.reshape(1, -1, 301)) < 1e-13


def test_a_sample_is_scaled_up_to_all_rows():
    layer, x = nn.Conv2d(3, 4, 3).double(), torch.randn(2, 3, 8, 8).double()
    patches, sample = patches_of_layer(layer), RowSample(9, torch.tensor(5))
    (rows,) = unfold_rows(x, patches, sample)
    actual = sum_outer_products(x, patches, FLOAT64, sample)
    assert torch.allclose(actual[0], rows.T @ rows * (72 / 9))


@pytest.mark.parametrize(("num_inputs", "dtype"), [(255, torch.float64), (256, torch.float32)])
def test_a_wide_sum_has_the_dtype_of_its_products(num_inputs, dtype):
    x, patches = torch.randn(9, num_inputs), patches_of_layer(nn.Linear(num_inputs, 2))
    precision = Precision(torch.float32, torch.float64)
    for sample in (None, RowSample(3, torch.tensor(0))):
        assert sum_outer_products(x, patches, precision, sample).dtype == dtype
