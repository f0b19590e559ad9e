"""Dtypes, autocast, NaN and infinity, tracing and second derivatives."""

import contextlib
import copy

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import trainact
from cases import CASES, Case, assert_close
from trainact import TrAct, TrActError, accumulate
from trainact.reference import cut_patches, tract_gradient_of_layer

RELATIVE_ERROR = {torch.float32: 1e-5, torch.bfloat16: 4e-3, torch.float16: 5e-4}


def precondition_exactly(layer, x, plain_grad):
    """Return a plain gradient, with its rounding error, times the float64 inverse."""
    rows = cut_patches(x.double(), layer)
    groups, num_rows, num_inputs = rows.shape
    inverse = torch.linalg.inv(rows.mT @ rows / num_rows + 0.1 * torch.eye(num_inputs))
    return (plain_grad.double().reshape(groups, -1, num_inputs) @ inverse).view_as(plain_grad)


names = pytest.mark.parametrize(
    "name", ["linear-3d", "linear-few-rows", "conv2d-k3-p1", "conv2d-groups"]
)


@pytest.mark.parametrize("dtype", RELATIVE_ERROR)
@names
def test_modules_of_every_dtype_train(dtype, name):
    case = next(case for case in CASES if case.name == name)
    layer, x = case.draw(dtype)
    tract = TrAct(copy.deepcopy(layer))
    grad_z = torch.randn_like(layer(x))
    layer(x).backward(grad_z)
    tract(x).backward(grad_z)
    assert tract.weight.grad.dtype == dtype
    expected = precondition_exactly(layer, x, layer.weight.grad)
    assert_close(tract.weight.grad.double(), expected, RELATIVE_ERROR[dtype])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("backward_inside", [False, True])
@names
def test_autocast_has_the_same_effect_as_in_the_plain_layer(dtype, backward_inside, name):
    case = next(case for case in CASES if case.name == name)
    layer, x = case.draw(torch.float32)
    tract = TrAct(copy.deepcopy(layer))
    with torch.autocast("cpu", dtype):
        z, plain_z = tract(x), layer(x)
    assert torch.equal(z, plain_z)
    assert z.dtype == dtype
    grad_z = torch.randn_like(z)
    with torch.autocast("cpu", dtype, enabled=backward_inside):
        z.backward(grad_z)
        plain_z.backward(grad_z)
    assert tract.weight.grad.dtype == torch.float32
    if tract.bias is not None:
        assert torch.equal(tract.bias.grad, layer.bias.grad)
    expected = precondition_exactly(layer, x, layer.weight.grad)
    assert_close(tract.weight.grad.double(), expected, RELATIVE_ERROR[torch.float32])


def test_float16_inputs_whose_products_overflow_are_widened_first():
    layer = TrAct(nn.Linear(6, 4).half())
    x = torch.rand(512, 6).half() * 255 + 100  # squares sum to 3e7, past 65504
    grad_z = torch.randn(512, 4).half() / 512
    layer(x).backward(grad_z)
    expected = tract_gradient_of_layer(copy.deepcopy(layer).double(), x.double(), grad_z.double())
    assert layer.weight.grad.isfinite().all()
    assert_close(layer.weight.grad.double(), expected, 0.3)  # float16 rounds the plain gradient


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_loss_scaling_commutes(dtype):
    layer = TrAct(nn.Conv2d(3, 4, 3).to(dtype))
    x = torch.randn(4, 3, 8, 8, dtype=dtype)
    grad_z = torch.randn_like(layer(x)) / 64
    layer(x).backward(grad_z)
    unscaled = layer.weight.grad.clone()
    layer.zero_grad()
    layer(x).backward(grad_z * 64)
    assert_close(layer.weight.grad, unscaled * 64, 1e-6 if dtype == torch.float32 else 2e-3)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("where", ["x", "grad_z"])
@pytest.mark.parametrize("rows", [3, 30])
def test_nan_and_infinity_stay_in_the_gradient(value, where, rows):
    layer = TrAct(nn.Linear(6, 4))
    values = {"x": torch.randn(rows, 6), "grad_z": torch.randn(rows, 4)}
    values[where][1, 2] = value
    layer(values["x"]).backward(values["grad_z"])
    touched = layer.weight.grad if where == "x" else layer.weight.grad[2]
    assert not touched.isfinite().any()


def test_a_gradient_scaler_skips_the_step_after_an_overflow():
    layer = TrAct(nn.Linear(6, 4))
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    before = layer.weight.detach().clone()
    x = torch.randn(30, 6)
    x[0, 0] = float("inf")
    scaler.scale(layer(x).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(layer.weight, before)
    assert scaler.get_scale() == 2.0**9
    optimizer.zero_grad()
    scaler.scale(layer(torch.randn(30, 6)).sum()).backward()
    scaler.step(optimizer)
    assert not torch.equal(layer.weight, before)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("pooled", [False, True])
def test_forward_and_backward_read_no_value(case: Case, pooled):
    """Fake tensors have no values: anything that reads one raises."""
    with FakeTensorMode():
        layer, x = TrAct(case.make()), torch.randn(case.shape)
        if pooled:
            with accumulate(layer):
                layer(x).sum().backward()
        else:
            layer(x).sum().backward()
        assert layer.weight.grad.shape == layer.weight.shape


class _NoFloat64(TorchDispatchMode):
    """A device without float64: every operator that makes such a tensor raises."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(output):
            assert not (isinstance(tensor, torch.Tensor) and tensor.dtype == torch.float64), func
        return output


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"rows": 7},
        {"every": 2},
        {"center": "batchnorm", "relative": True},
        {"center": "batchnorm", "rows": 7, "moment_decay": 0.9},
    ],
    ids=str,
)
def test_a_device_without_float64_needs_no_option(case: Case, options, monkeypatch):
    monkeypatch.setattr(trainact.options, "has_float64", lambda device: False)
    layer, x = TrAct(case.make(), **options), torch.randn(case.shape)
    with _NoFloat64():
        layer(x).sum().backward()
        assert layer.weight.grad.isfinite().all()
        layer.zero_grad()
        with accumulate(layer):
            layer(x).sum().backward()
    assert layer.weight.grad.isfinite().all()


def test_differentiating_the_tract_gradient_is_an_error():
    layer = TrAct(nn.Linear(6, 4))
    loss = layer(torch.randn(9, 6)).square().mean()
    (grad,) = torch.autograd.grad(loss, layer.weight, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        grad.square().sum().backward()


def test_a_gradient_penalty_on_the_input_is_preconditioned_once():
    """∂/∂W of ‖∂L/∂x‖² is an ordinary gradient that arrives at W: TrAct's right factor applies."""
    layer = nn.Linear(6, 4).double()
    tract = TrAct(copy.deepcopy(layer))
    x = torch.randn(20, 6).double().requires_grad_()
    for model in (layer, tract):
        (grad_x,) = torch.autograd.grad(model(x).square().mean(), x, create_graph=True)
        grad_x.square().sum().backward()
    inverse = torch.linalg.inv(x.T @ x / 20 + 0.1 * torch.eye(6)).detach()
    # the penalty depends on the weight by the forward and by ∂L/∂x; both paths end here
    assert_close(tract.weight.grad, layer.weight.grad @ inverse, 1e-8)


@pytest.mark.parametrize("pooled", [False, True])
def test_a_gradient_by_the_input_alone_is_no_step(pooled):
    """An adversarial attack or a saliency map adds no rows to an average or a pool."""
    layer = TrAct(nn.Linear(5, 3).double(), moment_decay=0.9, rows=4)
    twin, x = copy.deepcopy(layer), torch.randn(20, 5).double().requires_grad_()
    before = trainact.tract_state(layer)
    (attack,) = torch.autograd.grad(layer(x).square().sum(), x)
    assert attack.any()
    for name, value in trainact.tract_state(layer).items():
        assert torch.equal(value, before[name])
    with accumulate(layer) if pooled else contextlib.nullcontext():
        torch.autograd.grad(layer(3 * x).square().sum(), x)
        layer(x).square().sum().backward()
    with accumulate(twin) if pooled else contextlib.nullcontext():
        twin(x).square().sum().backward()
    assert torch.equal(layer.weight.grad, twin.weight.grad)


def test_an_input_changed_in_place_is_an_error_as_in_the_plain_layer():
    for layer in (nn.Linear(6, 4), TrAct(nn.Linear(6, 4))):
        x = torch.randn(9, 6)
        z = layer(x)
        x.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            z.sum().backward()


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.eye(6).to_sparse(), "needs a dense input; got layout sparse_coo: call x.to_dense"),
        (torch.randn(3, 6, dtype=torch.complex64), "needs a real input; got torch.complex64"),
    ],
    ids=["sparse", "complex"],
)
def test_an_unusable_input_is_refused(x, message):
    layer = TrAct(nn.Linear(6, 4))
    with pytest.raises(TrActError, match=message) as caught:
        layer(x)
    assert isinstance(caught.value, TypeError)


def test_a_wrong_shape_raises_torchs_error():
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        TrAct(nn.Linear(6, 4))(torch.randn(3, 5))
    with pytest.raises(RuntimeError, match="to have 3 channels"):
        TrAct(nn.Conv2d(3, 4, 3))(torch.randn(2, 1, 8, 8))
