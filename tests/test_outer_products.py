"""Every method that sums xᵀx against patches cut out one by one, and which one is chosen."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from cases import CASES, Case
from test_properties import convolutions
from trainact import outer_products
from trainact.device_costs import ACCELERATOR, CPU
from trainact.options import Precision
from trainact.outer_products import (
    choose_method,
    sum_by_large_chunks,
    sum_by_unfolding,
    sum_centered_products,
    sum_outer_products,
)
from trainact.overlapping_patches import can_sum_by_lines, sum_by_lines
from trainact.reference import cut_patches
from trainact.rows import (
    LINEAR_PATCHES,
    RowSample,
    count_rows,
    patches_of_layer,
    unfold_rows,
)
from trainact.torch_internals import TorchDispatchMode

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
@pytest.mark.parametrize(
    "method", [sum_by_unfolding, sum_by_large_chunks, sum_by_lines, sum_outer_products]
)
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
def test_all_methods_agree_on_any_convolution(case, dtype):
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
    for method in (sum_by_lines, sum_by_unfolding, sum_by_large_chunks):
        assert error(method(x, patches, Precision(dtype, torch.float64)), rows) < bound


@pytest.mark.parametrize(("layer", "shape", "method"), STEMS.values(), ids=STEMS)
def test_the_method_is_chosen_by_shape_alone(layer, shape, method):
    x, patches = torch.empty(shape, device="meta"), patches_of_layer(layer)
    assert choose_method(x, patches, CPU) is method
    assert choose_method(x, patches) is choose_method(x, patches, ACCELERATOR)


@pytest.mark.parametrize(("layer", "shape", "_"), STEMS.values(), ids=STEMS)
def test_an_accelerator_unfolds_large_chunks(layer, shape, _):
    x = torch.empty(shape, device="meta")
    assert choose_method(x, patches_of_layer(layer)) is sum_by_large_chunks


def test_costs_decide_between_the_methods():
    layer, shape, _ = STEMS["resnet-7x7"]
    x, patches = torch.empty(shape, device="meta"), patches_of_layer(layer)
    assert choose_method(x, patches, CPU._replace(line_product=100)) is not sum_by_lines
    assert choose_method(x, patches, CPU._replace(operator=1e12)) is not sum_by_lines
    assert (
        choose_method(x, patches, ACCELERATOR._replace(line_product=1, operator=1)) is sum_by_lines
    )


@pytest.mark.parametrize("name", ["resnet-7x7", "vit-s-16"])
def test_real_images_lose_no_digits_to_float32_sums(cifar_images, name):
    layer, _, method = STEMS[name]
    x = nn.functional.interpolate(cifar_images, size=96, mode="bilinear").float()
    patches = patches_of_layer(layer)
    exact = sum_by_unfolding(x.double(), patches, FLOAT64)
    actual = method(x, patches, Precision(torch.float32, torch.float64))
    assert ((actual - exact).norm() / exact.norm()).item() < 2e-7


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


def centered_error(actual: Tensor, rows: Tensor) -> float:
    return error(actual, rows.double() - rows.double().mean(1, keepdim=True))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("shift", [0.0, 1e4])
def test_centered_products_are_those_of_the_rows_minus_their_mean(case: Case, shift):
    layer, x = case.draw()
    rows = cut_patches(x + shift, layer)
    if rows.shape[1] < 2:
        pytest.skip("one row is its own mean")
    actual = sum_centered_products(x + shift, rows.mean(1), patches_of_layer(layer), FLOAT64)
    # with zero padding, the border itself has a large variance
    assert centered_error(actual, rows) < (1e-12 if shift == 0 else 1e-8)


@pytest.mark.parametrize("name", ["cifar-3x3", "resnet-7x7", "vit-s-16", "cifar-vit"])
def test_float32_products_of_rows_with_a_large_mean_keep_their_digits(name):
    """Products before the mean is subtracted would have lost 1e6 times more."""
    layer, shape, _ = STEMS[name]
    x = torch.randn(8, *shape[1:]).cumsum(-1).float() + 1000
    rows = cut_patches(x, layer).double() if name == "cifar-vit" else unfolded(x, layer)
    precision = Precision(torch.float32, torch.float64)
    patches = patches_of_layer(layer)
    actual = sum_centered_products(x, rows.mean(1), patches, precision)
    naive = sum_outer_products(x, patches, precision) - torch.einsum(
        "gi,gj->gij", rows.sum(1), rows.mean(1)
    )
    assert centered_error(actual, rows) < 1e-5
    assert centered_error(naive, rows) > 10 * centered_error(actual, rows)


def unfolded(x: Tensor, layer: nn.Module) -> Tensor:
    return unfold_rows(x.double(), patches_of_layer(layer))


@pytest.mark.parametrize("groups", [1, 2])
def test_a_centered_sample_is_centered_by_the_mean_of_all_rows(groups):
    layer, x = nn.Conv2d(4, 4, 3, padding=1, groups=groups).double(), torch.randn(2, 4, 8, 8)
    x, patches, sample = x.double() + 3, patches_of_layer(layer), RowSample(9, torch.tensor(5))
    mean = cut_patches(x, layer).mean(1)
    rows = unfold_rows(x, patches, sample) - mean.unsqueeze(1)
    actual = sum_centered_products(x, mean, patches, FLOAT64, sample)
    assert torch.allclose(actual, rows.mT @ rows * (128 / 9))


@pytest.mark.parametrize("method", [sum_by_unfolding, sum_by_large_chunks, sum_outer_products])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_layer_without_inputs_has_an_empty_sum(method, device):
    x = torch.zeros(5, 0, device=device)
    assert method(x, LINEAR_PATCHES, FLOAT64).shape == (1, 0, 0)


@pytest.mark.parametrize("chunk_bytes", [1 << 10, 1 << 16])
def test_large_chunks_need_no_more_memory_than_allowed(chunk_bytes, monkeypatch):
    """Every chunk, padded and unfolded, fits; their products need a quarter of the input."""
    monkeypatch.setattr(outer_products, "LARGE_CHUNK_BYTES", chunk_bytes)
    layer, x = nn.Conv2d(3, 8, 7, 2, 3), torch.randn(16, 3, 48, 48)
    patches = patches_of_layer(layer)
    chunks = outer_products._split_samples(x, patches)
    for chunk in chunks:
        rows = unfold_rows(chunk, patches)
        padded = chunk.numel() * 54**2 / 48**2
        assert rows.numel() + padded <= max(2 * x.numel(), chunk_bytes // 4)
    assert sum(map(len, chunks)) == len(x)
    exact = sum_by_unfolding(x.double(), patches, FLOAT64)
    actual = sum_by_large_chunks(x, patches, Precision(torch.float32, torch.float64))
    assert ((actual - exact).norm() / exact.norm()).item() < 1e-6


class _MatmulPrecisions(TorchDispatchMode):
    """Records the precision that float32 products may have while they run."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.bmm, torch.ops.aten.baddbmm):
            self.seen |= {torch.backends.cuda.matmul.fp32_precision}
            self.seen |= {torch.backends.mkldnn.matmul.fp32_precision}
        return func(*args, **(kwargs or {}))


# torch 2.9 for CUDA warns of its older interface
OLDER_INTERFACE = pytest.mark.filterwarnings("ignore:Please use the new API settings:UserWarning")


@pytest.fixture(params=["legacy", "fp32_precision"])
def low_precision(request):
    """TF32 products, set by either of torch's interfaces."""
    if request.param == "legacy":
        torch.set_float32_matmul_precision("high")
    else:
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        torch.backends.mkldnn.matmul.fp32_precision = "tf32"
    yield
    torch.backends.cuda.matmul.fp32_precision = "none"
    torch.backends.mkldnn.matmul.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")


@OLDER_INTERFACE
@pytest.mark.usefixtures("low_precision")
@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("name", ["cifar-3x3", "cifar-vit", "vit-s-16"])
def test_products_keep_full_precision_under_tf32(name, device):
    layer, shape, _ = STEMS[name]
    x = torch.empty(2, *shape[1:], device=device)
    precision = Precision(torch.float32, torch.float32)
    with _MatmulPrecisions() as products:
        sum_outer_products(x, patches_of_layer(layer), precision)
    assert products.seen == {"ieee"}
    assert torch.backends.cuda.matmul.fp32_precision == "tf32"  # for everyone else


@OLDER_INTERFACE
@pytest.mark.usefixtures("low_precision")
def test_the_users_precision_is_put_back_after_an_error():
    with pytest.raises(RuntimeError, match="stop"), outer_products.full_precision_products():
        raise RuntimeError("stop")
    assert torch.backends.cuda.matmul.fp32_precision == "tf32"
