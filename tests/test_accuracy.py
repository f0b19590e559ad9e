"""Accuracy of the default float32 on real images, whose eigenvalues go from 0 to hundreds."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainact import TrAct
from trainact.rows import patches_of_layer, unfold_rows

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
LAYERS = {"3x3": (3, 1, 1), "4x4": (4, 4, 0), "7x7": (7, 2, 3), "16x16": (16, 16, 0)}
RANGES = {
    "standardised": lambda x: (x / 255 - _channels(MEAN)) / _channels(STD),
    "unit": lambda x: x / 255,
    "raw": lambda x: x,
}


def _channels(values: tuple[float, ...]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).view(3, 1, 1)


def enlarge(images: Tensor, pixels: int) -> Tensor:
    """Return the images at another size; 8 of them if they are large."""
    return F.interpolate(images[: 8 if pixels > 32 else None], size=pixels, mode="bilinear")


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return ((actual.double() - expected).norm() / expected.norm()).item()


def measure(
    images: Tensor, kernel: tuple[int, int, int], moment_dtype
) -> tuple[float, float, float]:
    """Return the errors of TrAct's gradient: in all, without the plain gradient's own, and of that.

    PyTorch computes the plain gradient G in float32 before TrAct sees it, and the inverse amplifies
    its rounding. The second error compares with that same G times the float64 inverse; the third
    is the error that the exact inverse of G still has.
    """
    size, stride, padding = kernel
    torch.manual_seed(0)
    layer = nn.Conv2d(3, 64, size, stride, padding)
    tract = TrAct(copy.deepcopy(layer), moment_dtype=moment_dtype)
    x = images.float()
    z = layer(x)
    grad_z = torch.randn_like(z)
    z.backward(grad_z)
    tract(x).backward(grad_z)
    rows = unfold_rows(x.double(), patches_of_layer(layer))[0]
    moment = rows.T @ rows / len(rows) + 0.1 * torch.eye(rows.shape[1], dtype=torch.float64)

    def precondition(grad: Tensor) -> Tensor:
        return torch.linalg.solve(moment, grad.double().flatten(1).T).T.reshape(layer.weight.shape)

    exact_grad = grad_z.double().movedim(1, -1).flatten(0, -2).T @ rows
    exact, of_plain = precondition(exact_grad), precondition(layer.weight.grad)
    grad = tract.weight.grad
    return (
        relative_error(grad, exact),
        relative_error(grad, of_plain),
        relative_error(of_plain, exact),
    )


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("pixels", [32, 224])
@pytest.mark.parametrize("value_range", ["standardised", "unit"])
def test_scaled_images_need_no_option(cifar_images, name, pixels, value_range):
    images = enlarge(cifar_images, pixels)
    in_all, added, inherited = measure(RANGES[value_range](images), LAYERS[name], None)
    assert added <= 3e-4
    assert in_all <= max(3e-4, 1.05 * inherited)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("pixels", [32, 224])
def test_raw_pixels_are_exact_with_a_float64_moment(cifar_images, name, pixels):
    images = enlarge(cifar_images, pixels)
    in_all, added, _ = measure(images, LAYERS[name], torch.float64)
    assert in_all <= 2e-2
    assert added <= 1e-3


@pytest.mark.parametrize("name", ["3x3", "4x4"])
@pytest.mark.parametrize("pixels", [32, 224])
def test_raw_pixels_are_good_enough_by_default_for_small_kernels(cifar_images, name, pixels):
    images = enlarge(cifar_images, pixels)
    in_all, _, _ = measure(images, LAYERS[name], None)
    assert in_all <= 5e-2


def walk(rows: int, columns: int, step: float = 1.0) -> Tensor:
    """Return random walks: eigenvalues over many orders of magnitude."""
    return step * torch.randn(rows, columns).cumsum(1)


def spread(rows: int, columns: int, largest: float) -> Tensor:
    """Return rows whose second moment has eigenvalues from 0.001 to ``largest``, about."""
    scale = torch.logspace(math.log10(largest), -3, columns).sqrt()
    rotation, _ = torch.linalg.qr(torch.randn(columns, columns))
    return torch.randn(rows, columns) * scale @ rotation


FEW_ROWS = {
    "eigenvalues-to-267": lambda: spread(32, 192, 267),
    "walks": lambda: walk(700, 768),
    "large-walks": lambda: walk(100, 768, 3.0),
    "short-walks": lambda: walk(100, 128),
}


def measure_rows(rows: Tensor, **options) -> tuple[float, float]:
    """Return the error of TrAct's gradient of a Linear, and that of the exact inverse of G."""
    layer = nn.Linear(rows.shape[1], 64)
    tract = TrAct(copy.deepcopy(layer), **options)
    grad_z = torch.randn(len(rows), 64)
    layer(rows).backward(grad_z)
    tract(rows).backward(grad_z)
    x = rows.double()
    inverse = torch.linalg.inv(x.T @ x / len(x) + 0.1 * torch.eye(x.shape[1]).double())
    exact = grad_z.double().T @ x @ inverse
    return (
        relative_error(tract.weight.grad, exact),
        relative_error(layer.weight.grad.double() @ inverse, exact),
    )


@pytest.mark.parametrize("options", [{}, {"every": 2}, {"sync": True}], ids=str)
@pytest.mark.parametrize("name", FEW_ROWS)
def test_few_rows_are_as_exact_as_the_plain_gradient_allows(name, options):
    """Both forms: b × b by default, n × n with ``every`` and ``sync``."""
    error, inherited = measure_rows(FEW_ROWS[name](), **options)
    assert error <= 3 * inherited


@pytest.mark.parametrize("levels", [1, 255])
def test_few_patches_are_as_exact_as_the_plain_gradient_allows(cifar_images, levels):
    patches = unfold_rows(cifar_images, patches_of_layer(nn.Conv2d(3, 1, 16, 16)))[0]
    error, inherited = measure_rows((patches * (levels / 255)).float())
    assert error <= 3 * inherited <= 0.1


def test_pixels_so_large_that_no_digit_is_left_are_warned_of(cifar_images):
    """12 bits for each pixel, which the rounding of the plain gradient does not survive."""
    patches = unfold_rows(cifar_images, patches_of_layer(nn.Conv2d(3, 1, 16, 16)))[0]
    with pytest.warns(RuntimeWarning, match="no correct digit"):
        error, _ = measure_rows((patches * 16).float())
    assert error > 0.3


# --- centred: the same floor, wherever the mean of the pixels lies --------------------------------


def measure_centered(
    layer: nn.Module, x: Tensor, *, relative: bool, **options
) -> list[tuple[float, float, float]]:
    """Return, for weight and bias, the same three errors as :func:`measure`."""
    tract = TrAct(copy.deepcopy(layer), center=True, relative=relative, **options)
    z = layer(x)
    grad_z = torch.randn_like(z)
    z.backward(grad_z)
    tract(x).backward(grad_z)
    (rows,) = unfold_rows(x.double(), patches_of_layer(layer))
    mean = rows.mean(0)
    rows -= mean
    covariance = rows.T @ rows / len(rows)
    damping = 0.1 * covariance.diagonal().mean() if relative else 0.1
    matrix = covariance + damping * torch.eye(len(covariance)).double()
    flat = grad_z.double().flatten(0, -2) if isinstance(layer, nn.Linear) else by_rows(grad_z)

    def precondition(grad: Tensor, grad_bias: Tensor) -> tuple[Tensor, Tensor]:
        weight = torch.linalg.solve(matrix, grad.T).T
        return weight, grad_bias - weight @ mean

    plain = layer.weight.grad.double().flatten(1), layer.bias.grad.double()
    of_plain = precondition(plain[0] - plain[1].outer(mean), plain[1])
    exact = precondition(flat.T @ rows, flat.sum(0))
    actual = tract.weight.grad.flatten(1), tract.bias.grad
    return [
        (relative_error(a, e), relative_error(a, p), relative_error(p, e))
        for a, p, e in zip(actual, of_plain, exact, strict=True)
    ]


def by_rows(z: Tensor) -> Tensor:
    return z.double().movedim(1, -1).flatten(0, -2)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize(("value_range", "relative"), [("unit", False), ("raw", True)])
def test_centered_images_need_no_option(cifar_images, name, value_range, relative):
    """With a relative λ, that also holds for raw pixels."""
    images = RANGES[value_range](F.interpolate(cifar_images, size=96, mode="bilinear"))
    size, stride, padding = LAYERS[name]
    layer = nn.Conv2d(3, 64, size, stride, padding)
    for in_all, added, inherited in measure_centered(layer, images.float(), relative=relative):
        assert added <= 3e-4
        assert in_all <= max(3e-4, 1.1 * inherited)


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"every": 2}, {"sync": True}, {"moment_decay": 0.9}], ids=str
)
@pytest.mark.parametrize("name", FEW_ROWS)
def test_few_centered_rows_are_as_exact_as_the_plain_gradients_allow(name, options, relative):
    """Also far away from zero, where products of rows that are not centred would lose digits."""
    rows = FEW_ROWS[name]()
    for x in (rows, rows + 100):
        layer = nn.Linear(rows.shape[1], 64)
        for error, _, inherited in measure_centered(layer, x, relative=relative, **options):
            assert error <= 3 * inherited


@pytest.mark.parametrize("shift", [0, 1000])
def test_many_centered_rows_far_from_zero_keep_their_digits(shift):
    """Random walks of float32 around 1000: only what the plain gradients lost is lost."""
    x = walk(3000, 48, 0.3) + shift
    for in_all, added, inherited in measure_centered(nn.Linear(48, 64), x, relative=True):
        assert added <= 3e-4
        assert in_all <= max(3e-4, 1.1 * inherited)


def test_few_constant_rows_are_not_warned_of():
    """Their gradient is small because nothing varies, not because digits were lost."""
    layer = TrAct(nn.Linear(192, 8), center=True)
    layer(torch.ones(5, 192)).backward(torch.randn(5, 8))
    assert layer.weight.grad.norm() < 1e-3


def test_few_centered_rows_so_large_that_no_digit_is_left_are_warned_of():
    layer = TrAct(nn.Linear(768, 8), center=True)
    with pytest.warns(RuntimeWarning, match="no correct digit"):
        layer(torch.rand(100, 768) + 1e5).backward(torch.rand(100, 8))
