"""center= and relative=: the covariance, jointly with the bias, and a λ without units."""

import copy
import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

import trainact
from cases import CASES, Case, assert_close
from test_properties import convolutions, linear_layers
from trainact import TrAct, TrActError, UnsupportedLayerError, accumulate, apply_tract
from trainact.reference import centered_gradients, cut_patches, tract_gradients_of_layer
from trainact.rows import RowSample, patches_of_layer, unfold_rows

WITH_BIAS = [case for case in CASES if case.make().bias is not None]
OPTIONS = [
    {"center": center, "relative": relative}
    for center, relative in itertools.product([True, "batchnorm", False], [False, True])
][:-1]
options_of_each = pytest.mark.parametrize("options", OPTIONS, ids=str)


def backward(layer: nn.Module, x: Tensor, grad_z: Tensor) -> tuple[Tensor, Tensor | None]:
    layer.zero_grad()
    layer(x).backward(grad_z)
    return layer.weight.grad.clone(), None if layer.bias is None else layer.bias.grad.clone()


def assert_grads(actual, expected, rtol: float = 1e-9) -> None:
    for grad, target in zip(actual, expected, strict=True):
        if grad is not None and target.any():
            assert_close(grad, target, rtol)
        elif grad is not None:
            assert grad.norm() <= 1e-100  # of constant rows


def expected_of(layer, x, grad_z, lam=0.1, **options):
    """Return the reference's gradients; a frozen or missing bias and 'batchnorm' leave it alone."""
    return tract_gradients_of_layer(layer, x, grad_z, lam, **options)


# --- the gradients --------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("mean", [0.0, 30.0])
@options_of_each
def test_the_gradients_are_those_of_the_reference(case: Case, mean, options):
    layer, x = case.draw()
    if layer.bias is None and options["center"] is True:
        pytest.skip("needs a bias")
    x = x + mean
    grad_z = torch.randn_like(layer(x))
    expected = expected_of(layer, x, grad_z, 0.3, **options)
    num_rows = cut_patches(x, layer).shape[1]
    actual = backward(TrAct(layer, 0.3, **options), x, grad_z)
    assert_grads(actual, expected, 1e-7 if num_rows > 1 else 1e-4)


@pytest.mark.usefixtures("samples")
@settings(max_examples=300)
@given(
    case=st.one_of(linear_layers(), convolutions(), convolutions()),
    lam=st.sampled_from([0.01, 0.1, 1.0]),
    options=st.sampled_from(OPTIONS),
    form=st.sampled_from(["one backward", "accumulate", "sync", "moment_decay"]),
)
def test_any_layer_has_the_gradients_of_the_reference(case, lam, options, form):
    layer, x = case
    layer = layer.double()
    assume(layer.bias is not None or options["center"] is not True)
    try:
        z = layer(x)
    except RuntimeError:
        assume(False)  # torch itself refuses this geometry
    rows = cut_patches(x, layer)
    centred = rows - rows.mean(1, keepdim=True)
    assume(rows.shape[1] > 0)
    if options["relative"]:  # constant rows are another test
        assume((centred.square().mean((1, 2)) > 1e-6 * rows.square().mean((1, 2))).all())
    event(f"rows {'<' if rows.shape[1] < rows.shape[2] else '>='} columns, {form}")
    grad_z = torch.randn_like(z)
    plain = backward(layer, x, grad_z)
    more = {"sync": {"sync": True}, "moment_decay": {"moment_decay": 0.9}}.get(form, {})
    tract = TrAct(copy.deepcopy(layer), lam, **options, **more)
    if form == "accumulate":
        with accumulate(tract):
            z_tract = tract(x)
            z_tract.backward(grad_z)
    else:
        z_tract = tract(x)
        z_tract.backward(grad_z)
    assert torch.equal(z_tract, z)
    expected = expected_of(layer, x, grad_z, lam, **options)
    unit = rows.square().mean().item() if options["relative"] else 1.0
    scale = expected[0].norm() + 1e-3 * plain[0].norm() / (lam * unit)
    assert (tract.weight.grad - expected[0]).norm() <= 1e-7 * scale
    if options["center"] is True:
        scale = expected[1].norm() + scale * rows.square().mean().sqrt()
        assert (tract.bias.grad - expected[1]).norm() <= 1e-7 * scale
    elif layer.bias is not None:
        assert torch.equal(tract.bias.grad, plain[1])


@pytest.mark.parametrize("case", WITH_BIAS, ids=lambda case: case.name)
def test_output_and_input_gradient_are_bit_identical(case: Case):
    layer, x = case.draw(torch.float32)
    tract = TrAct(copy.deepcopy(layer), center=True, relative=True)
    z = layer(x)
    assert torch.equal(tract(x), z)
    grad_z, grads = torch.randn_like(z), []
    for model in (layer, tract):
        given = x.clone().requires_grad_()
        model(given).backward(grad_z)
        grads.append(given.grad)
    assert torch.equal(*grads)


@pytest.mark.parametrize("rows", [10, 40])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("mean", [0.0, 100.0])
def test_sampled_rows_estimate_the_covariance_about_the_mean_of_all(rows, groups, mean):
    """So the estimate has no negative eigenvalue, and the mean of z moves exactly."""
    layer = nn.Conv2d(4, 6, 3, padding=1, groups=groups).double()
    x, grad_z = torch.randn(4, 4, 8, 8).double() + mean, torch.randn(4, 6, 8, 8).double()
    plain = backward(layer, x, grad_z)
    tract = TrAct(layer, rows=rows, center=True)
    weight, bias = backward(tract, x, grad_z)
    means = cut_patches(x, layer).mean(1)
    sample = unfold_rows(x, patches_of_layer(layer), RowSample(rows, torch.tensor(0)))
    sample = sample - means.unsqueeze(1)
    n = sample.shape[-1]
    inverse = torch.linalg.inv(sample.mT @ sample / rows + 0.1 * torch.eye(n).double())
    grad, column = plain[0].reshape(groups, -1, n), plain[1].reshape(groups, -1, 1)
    expected = (grad - column * means.unsqueeze(1)) @ inverse
    assert_close(weight, expected.view_as(weight), 1e-7)
    moved = weight.reshape(groups, -1, n) @ means.unsqueeze(-1)
    assert_close(bias, plain[1] - moved.flatten(), 1e-7)


def test_every_keeps_the_covariance_and_the_mean():
    layer = TrAct(nn.Linear(6, 4).double(), every=2, center=True)
    first, second = torch.randn(20, 6).double() + 1, torch.randn(30, 6).double()
    backward(layer, first, torch.randn(20, 4).double())
    grad_z = torch.randn(30, 4).double()
    weight, bias = backward(layer, second, grad_z)
    mean = first.mean(0)
    covariance = (first - mean).T @ (first - mean) / 20
    expected = grad_z.T @ (second - mean) @ (covariance + 0.1 * torch.eye(6).double()).inverse()
    assert_close(weight, expected)
    assert_close(bias, grad_z.sum(0) - expected @ mean)


# --- before a batch norm --------------------------------------------------------------------------


def test_before_a_batch_norm_the_bias_makes_no_difference():
    """There g_b = 0: 'batchnorm' without a bias is the joint step."""
    x, start = torch.randn(6, 3, 8, 8).double() + 2, torch.randn(4, 3, 3, 3).double()
    grads = []
    for bias, center in ((True, True), (False, "batchnorm")):
        stem = nn.Conv2d(3, 4, 3, bias=bias)
        model = nn.Sequential(stem, nn.BatchNorm2d(4), nn.Tanh()).double()
        stem.weight.data.copy_(start)
        TrAct(stem, center=center)
        model(x).square().mean().backward()
        grads.append(stem.weight.grad)
    assert_close(*grads, 1e-7)


# --- without a trained bias -----------------------------------------------------------------------


def test_a_layer_without_a_trained_bias_is_refused_and_not_changed():
    bare, frozen = nn.Conv2d(3, 4, 3, bias=False), nn.Conv2d(3, 4, 3)
    frozen.bias.requires_grad_(False)
    for layer, found in ((bare, "has no bias"), (frozen, "has a frozen bias")):
        advice = (
            f"Conv2d {found}, but center=True .* use center='batchnorm' if a batch norm follows"
        )
        with pytest.raises(UnsupportedLayerError, match=advice):
            TrAct(layer, center=True)
        with pytest.raises(UnsupportedLayerError, match=f"layer '0': {advice}"):
            apply_tract(nn.Sequential(layer, nn.ReLU()), layers="0", center=True)
        assert type(layer) is nn.Conv2d
        TrAct(layer, center="batchnorm")
    with pytest.raises(UnsupportedLayerError, match="TrActLinear has no bias, but center=True"):
        trainact.TrActLinear(4, 3, bias=False, center=True)


def test_a_bias_frozen_later_is_refused_when_it_would_matter():
    layer, x = TrAct(nn.Linear(6, 4), center=True), torch.randn(9, 6)
    layer.bias.requires_grad_(False)
    with pytest.raises(UnsupportedLayerError, match="has a frozen bias"):
        layer(x)
    with pytest.raises(UnsupportedLayerError, match="has a frozen bias"), accumulate(layer):
        pass
    with torch.no_grad():
        layer(x)
    layer.weight.requires_grad_(False)
    layer(x.requires_grad_()).sum().backward()
    with accumulate(layer):
        layer(x).sum().backward()


def test_a_frozen_weight_leaves_the_bias_its_plain_gradient():
    layer, x, grad_z = nn.Linear(6, 4), torch.randn(9, 6), torch.randn(9, 4)
    layer.weight.requires_grad_(False)
    TrAct(layer, center=True)(x).backward(grad_z)
    assert_close(layer.bias.grad, grad_z.sum(0), 1e-6)


# --- custom layers --------------------------------------------------------------------------------


class StandardisedConv2d(nn.Conv2d):
    """A custom layer that pads its input, standardises its weight and scales its bias."""

    def forward(self, x):
        flat = self.weight.flatten(1)
        weight = (flat - flat.mean(1, keepdim=True)) / flat.std(1, keepdim=True)
        bias = None if self.bias is None else 2 * self.bias
        return F.conv2d(F.pad(x, (0, 1, 0, 1)), weight.view_as(self.weight), bias=bias)


class OwnLinear(nn.Linear):
    def forward(self, x):
        return F.linear(2 * x, self.weight, self.bias)


@options_of_each
def test_a_custom_layer_is_preconditioned_at_its_operator(options):
    layer = TrAct(StandardisedConv2d(3, 4, 3).double(), **options)
    x = torch.randn(5, 3, 7, 7).double() + 1
    grad_z = torch.randn_like(layer(x))
    layer(x).backward(grad_z)
    flat = layer.weight.detach().flatten(1).requires_grad_()
    standard = (flat - flat.mean(1, keepdim=True)) / flat.std(1, keepdim=True)
    weight, bias = expected_of(nn.Conv2d(3, 4, 3), F.pad(x, (0, 1, 0, 1)), grad_z, **options)
    (expected,) = torch.autograd.grad(standard, flat, weight.flatten(1))
    assert_close(layer.weight.grad, expected.view_as(layer.weight), 1e-8)
    assert_close(layer.bias.grad, 2 * bias, 1e-8)


def test_a_custom_layer_whose_operator_has_no_bias_is_refused():
    class Late(nn.Linear):
        def forward(self, x):
            return F.linear(x, self.weight) + self.bias

    layer = TrAct(Late(6, 4), center=True)
    with pytest.raises(UnsupportedLayerError, match="operator of a TrAct layer has no bias"):
        layer(torch.randn(9, 6))


def test_accumulation_needs_the_bias_itself():
    layer = TrAct(OwnLinear(6, 4).double(), center=True)
    x, grad_z = torch.randn(20, 6).double() + 1, torch.randn(20, 4).double()
    with accumulate(layer):
        for rows, grads in zip(x.split(7), grad_z.split(7), strict=True):
            layer(rows).backward(grads)
    expected = centered_gradients(grad_z, 2 * x)
    assert_grads((layer.weight.grad, layer.bias.grad), expected)

    class DoubledBias(nn.Linear):
        def forward(self, x):
            return F.linear(x, self.weight, 2 * self.bias)

    doubled = TrAct(DoubledBias(6, 4), center=True)
    with (
        pytest.raises(TrActError, match="DoubledBias computes the bias of its operator"),
        accumulate(doubled),
    ):
        doubled(torch.randn(9, 6))


# --- accumulation ---------------------------------------------------------------------------------


@pytest.mark.parametrize("case", WITH_BIAS, ids=lambda case: case.name)
@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.filterwarnings("ignore:a TrAct layer already has a gradient")
def test_micro_batches_give_the_gradients_of_the_whole_batch(case: Case, relative):
    if len(case.shape) < 2 or case.shape[0] < 2 or "unbatched" in case.name:
        pytest.skip("cannot be split")
    layer, x = case.draw()
    x[: len(x) // 2] += 3
    layer = TrAct(layer, 0.3, center=True, relative=relative)
    grad_z, before = torch.randn_like(layer(x)), torch.randn_like(layer.bias)
    layer.bias.grad = before.clone()
    with accumulate(layer):
        assert layer.bias.grad is None
        for rows, grads in zip(x.tensor_split(2), grad_z.tensor_split(2), strict=True):
            layer(rows).backward(grads)
    expected = expected_of(layer, x, grad_z, 0.3, center=True, relative=relative)
    assert_grads((layer.weight.grad, layer.bias.grad - before), expected, 1e-7)


@pytest.mark.filterwarnings("ignore:a TrAct layer already has a gradient")
def test_an_exception_restores_the_gradient_of_the_bias_too():
    layer = TrAct(nn.Linear(6, 4), center=True)
    layer.bias.grad = torch.ones(4)

    def fail_halfway():
        with accumulate(layer):
            layer(torch.randn(9, 6)).sum().backward()
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        fail_halfway()
    assert torch.equal(layer.bias.grad, torch.ones(4))
    assert layer.weight.grad is None


def test_layers_that_share_only_one_of_weight_and_bias_do_not_accumulate():
    def pair(**options):
        return [TrAct(nn.Linear(6, 4), **options) for _ in range(2)]

    def attempt(one, two):
        with accumulate(nn.ModuleList([one, two])):
            pass

    one, two = pair(center=True)
    two.weight = one.weight
    with pytest.raises(TrActError, match="share a weight but not the bias"):
        attempt(one, two)
    two.bias = one.bias
    attempt(one, two)
    two.weight = nn.Parameter(one.weight.detach().clone())
    with pytest.raises(TrActError, match="share a bias but not the weight"):
        attempt(one, two)
    plain, relative = TrAct(nn.Linear(6, 4)), TrAct(nn.Linear(6, 4), relative=True)
    relative.weight = plain.weight
    with pytest.raises(TrActError, match=r"but not relative \(False and True\)"):
        attempt(plain, relative)


# --- constant, infinite, half-precision and other inputs ------------------------------------------


@pytest.mark.parametrize("rows", [3, 30])
@pytest.mark.parametrize("value", [0.0, 0.3, 200.0])
@options_of_each
def test_a_constant_input_gives_finite_gradients(rows, value, options):
    layer = TrAct(nn.Linear(6, 4), **options)
    x, grad_z = torch.full((rows, 6), value), torch.randn(rows, 4)
    weight, bias = backward(layer, x, grad_z)
    assert weight.isfinite().all()
    assert bias.isfinite().all()
    if options["center"] and options["relative"]:
        assert not weight.any()
        assert_close(bias, grad_z.sum(0), 1e-5)
    if value == 0:
        assert not weight.any()


def test_only_the_constant_group_has_no_gradient():
    layer = TrAct(nn.Conv2d(2, 4, 3, groups=2).double(), center=True, relative=True)
    x, grad_z = torch.randn(5, 2, 8, 8).double(), torch.randn(5, 4, 6, 6).double()
    x[:, 1] = 0.7
    weight, bias = backward(layer, x, grad_z)
    expected = centered_gradients(
        grad_z[:, :2].movedim(1, -1).reshape(-1, 2), cut_patches(x, layer)[0], relative=True
    )
    assert_close(weight[:2].flatten(1), expected[0])
    assert_close(bias[:2], expected[1])
    assert weight[2:].norm() <= 1e-100
    assert_close(bias[2:], grad_z[:, 2:].sum((0, 2, 3)))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("where", ["x", "grad_z"])
@pytest.mark.parametrize("rows", [3, 30])
@options_of_each
def test_nan_and_infinity_stay_in_the_gradients(value, where, rows, options):
    layer = TrAct(nn.Linear(6, 4), **options)
    values = {"x": torch.randn(rows, 6), "grad_z": torch.randn(rows, 4)}
    values[where][1, 2] = value
    weight, bias = backward(layer, values["x"], values["grad_z"])
    touched = slice(None) if where == "x" else 2
    assert not weight[touched].isfinite().any()
    if options["center"] is True:
        assert not bias[touched].isfinite().any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("backward_inside", [False, True])
@pytest.mark.parametrize("name", ["linear-3d", "conv2d-k3-p1", "conv2d-depthwise"])
def test_autocast_rounds_only_the_plain_gradients(dtype, backward_inside, name):
    case = next(case for case in CASES if case.name == name)
    layer, x = case.draw(torch.float32)
    tract = TrAct(copy.deepcopy(layer), center=True, relative=True)
    with torch.autocast("cpu", dtype):
        z, plain_z = tract(x), layer(x)
    assert torch.equal(z, plain_z)
    grad_z = torch.randn_like(z)
    with torch.autocast("cpu", dtype, enabled=backward_inside):
        z.backward(grad_z)
        plain_z.backward(grad_z)
    rows = cut_patches(x.double(), layer)
    groups, _, n = rows.shape
    mean = rows.mean(1, keepdim=True)
    covariance = (rows - mean).mT @ (rows - mean) / rows.shape[1]
    damping = 0.1 * covariance.diagonal(dim1=1, dim2=2).mean(1).view(-1, 1, 1)
    column = layer.bias.grad.double().reshape(groups, -1, 1)
    grad = layer.weight.grad.double().reshape(groups, -1, n) - column * mean
    expected = grad @ torch.linalg.inv(covariance + damping * torch.eye(n))
    assert tract.weight.grad.dtype == tract.bias.grad.dtype == torch.float32
    assert_close(tract.weight.grad.double(), expected.view_as(layer.weight), 1e-5)
    moved = (expected @ mean.mT).flatten()
    assert_close(tract.bias.grad.double(), layer.bias.grad.double() - moved, 1e-4)


@pytest.mark.parametrize("case", WITH_BIAS, ids=lambda case: case.name)
@pytest.mark.parametrize("pooled", [False, True])
def test_no_value_is_read(case: Case, pooled):
    """Fake tensors have no values: anything that reads one raises."""
    with FakeTensorMode():
        layer = TrAct(case.make(), center=True, relative=True, moment_decay=0.5)
        x = torch.randn(case.shape)
        if pooled:
            with accumulate(layer):
                layer(x).sum().backward()
        else:
            layer(x).sum().backward()
        assert layer.weight.grad.shape == layer.weight.shape
        assert layer.bias.grad.shape == layer.bias.shape


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_activation_checkpointing_is_exact(use_reentrant):
    layer = TrAct(nn.Conv2d(3, 4, 3), center=True)
    x = torch.randn(6, 3, 8, 8).requires_grad_()
    layer(x).square().sum().backward()
    expected = layer.weight.grad.clone(), layer.bias.grad.clone()
    layer.zero_grad()
    checkpoint(layer, x, use_reentrant=use_reentrant).square().sum().backward()
    assert torch.equal(layer.weight.grad, expected[0])
    assert torch.equal(layer.bias.grad, expected[1])


# --- units ----------------------------------------------------------------------------------------


PADDINGS = {
    "unpadded": {},
    "reflect": {"padding": 1, "padding_mode": "reflect"},
    "replicate": {"padding": (2, 1), "padding_mode": "replicate"},
    "circular": {"padding": 1, "padding_mode": "circular"},
    "zeros": {"padding": 1},
}
SCHEDULES = [{}, {"moment_decay": 0.8}, {"sync": True}, {"every": 2}]


@pytest.mark.parametrize("padding", PADDINGS)
@settings(max_examples=40)
@given(
    scale=st.floats(1e-3, 1e3),
    shift=st.floats(-100, 100),
    images=st.sampled_from([1, 2, 6]),
    groups=st.sampled_from([1, 3]),
    more=st.sampled_from(SCHEDULES),
    seed=st.integers(0, 999),
)
def test_training_does_not_depend_on_the_units_of_the_pixels(
    padding, scale, shift, images, groups, more, seed
):
    """z stays the same over steps of SGD with momentum if the inputs are s·x + t.

    ``t`` is in units of ``s``, one for each channel. Zeros beside the image would move with it, so
    zero padding takes the scale alone.
    """
    torch.manual_seed(seed)
    shifts = torch.randn(3, 1, 1).double() * shift * (padding != "zeros")
    layer = nn.Conv2d(3, 6, 3, stride=2, groups=groups, **PADDINGS[padding]).double()
    other = copy.deepcopy(layer)
    with torch.no_grad():
        other.weight.div_(scale)
        columns = shifts.reshape(groups, 1, -1, 1, 1)
        moved = (layer.weight.reshape(groups, -1, *layer.weight.shape[1:]) * columns).sum((2, 3, 4))
        other.bias.sub_(moved.flatten())
    head = torch.randn(6).double()
    layers = [TrAct(one, center=True, relative=True, **more) for one in (layer, other)]
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.05, momentum=0.9) for one in layers]
    for _ in range(4):
        x = torch.randn(images, 3, 9, 9).double().cumsum(-1)
        zs = []
        inputs = (x, scale * (x + shifts))
        for one, optimizer, pixels in zip(layers, optimizers, inputs, strict=True):
            optimizer.zero_grad()
            zs.append(one(pixels))
            (zs[-1].tanh().movedim(1, -1) @ head).square().mean().backward()
            optimizer.step()
        assert_close(zs[1], zs[0], 1e-6)


@pytest.mark.parametrize("options", [{}, {"center": True}, {"relative": True}], ids=str)
def test_each_option_alone_depends_on_the_units(options):
    torch.manual_seed(0)
    layer = nn.Linear(6, 4).double()
    other = copy.deepcopy(layer)
    with torch.no_grad():
        other.weight.div_(10)
        other.bias.sub_(layer.weight.sum(1) * 3)
    x, zs = torch.randn(30, 6).double(), []
    for one, pixels in ((layer, x), (other, 10 * (x + 3))):
        optimizer = torch.optim.SGD(TrAct(one, **options).parameters(), lr=0.1)
        one(pixels).square().mean().backward()
        optimizer.step()
        zs.append(one(pixels))
    assert (zs[1] - zs[0]).norm() > 1e-3 * zs[0].norm()
