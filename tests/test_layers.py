"""A TrAct layer equals the plain one except for one gradient."""

import contextlib
import copy
import io
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import trainact
from cases import CASES, Case, assert_close
from trainact import (
    TrAct,
    TrActConv1d,
    TrActConv2d,
    TrActConv3d,
    TrActLinear,
    TrActValueError,
    accumulate,
)
from trainact.reference import tract_gradient_of_layer, tract_preactivations

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


class StandardisedConv2d(nn.Conv2d):
    """A custom layer that pads its input and standardises its weight."""

    def forward(self, x):
        flat = self.weight.flatten(1)
        weight = (flat - flat.mean(1, keepdim=True)) / flat.std(1, keepdim=True)
        x = F.pad(x, (0, 1, 0, 1))
        return F.conv2d(x, weight.view_as(self.weight), self.bias, stride=self.stride)


def backward(layer, x, grad_z):
    x = x.clone().requires_grad_()
    layer.zero_grad()
    layer(x).backward(grad_z)
    bias = None if layer.bias is None else layer.bias.grad.clone()
    return layer.weight.grad.clone(), bias, x.grad


@every_case
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_all_but_the_weight_gradient_is_bit_identical(case: Case, dtype):
    layer, x = case.draw(dtype)
    tract = TrAct(copy.deepcopy(layer))
    z = layer(x)
    assert torch.equal(tract(x), z)
    grad_z = torch.randn_like(z)
    _, bias, grad_x = backward(layer, x, grad_z)
    _, tract_bias, tract_grad_x = backward(tract, x, grad_z)
    assert torch.equal(tract_grad_x, grad_x)
    assert bias is None or torch.equal(tract_bias, bias)


@every_case
def test_the_weight_gradient_is_that_of_the_explicit_inverse(case: Case):
    layer, x = case.draw()
    grad_z = torch.randn_like(layer(x))
    weight_grad, _, _ = backward(TrAct(layer, lam=0.3), x, grad_z)
    assert_close(weight_grad, tract_gradient_of_layer(layer, x, grad_z, lam=0.3))


@every_case
def test_the_weight_gradient_is_that_of_the_papers_second_form(case: Case):
    layer, x = case.draw()
    if 0 in case.shape:
        pytest.skip("the second form divides by the number of rows")
    grad_z = torch.randn_like(layer(x))
    z = tract_preactivations(layer, x, lam=0.3)
    assert torch.equal(z, layer(x))
    (expected,) = torch.autograd.grad(z, layer.weight, grad_z)
    weight_grad, _, _ = backward(TrAct(layer, lam=0.3), x, grad_z)
    assert_close(weight_grad, expected)


def test_a_patch_convolution_equals_a_linear_on_its_patches():
    conv = TrAct(nn.Conv2d(3, 8, 4, stride=4).double())
    linear = TrActLinear(48, 8).double()
    linear.load_state_dict({"weight": conv.weight.detach().flatten(1), "bias": conv.bias.detach()})
    images = torch.randn(6, 3, 16, 16).double()
    tokens = images.unflatten(2, (4, 4)).unflatten(4, (4, 4)).permute(0, 2, 4, 1, 3, 5).flatten(3)
    grad_z = torch.randn(6, 8, 4, 4).double()
    conv(images).backward(grad_z)
    linear(tokens).backward(grad_z.permute(0, 2, 3, 1))
    assert_close(conv.weight.grad.flatten(1), linear.weight.grad)


@pytest.mark.parametrize("shape", [(12, 6), (5, 3, 6), (2, 2, 3, 6)])
def test_a_linear_takes_non_contiguous_input(shape):
    layer = TrAct(nn.Linear(6, 4).double())
    x = torch.randn(*shape[:-1], 12).double()[..., ::2].transpose(0, -2)
    assert not x.is_contiguous()
    grad_z = torch.randn_like(layer(x))
    layer(x).backward(grad_z)
    assert_close(layer.weight.grad, tract_gradient_of_layer(layer, x, grad_z))


def test_channels_last_gives_the_same_gradient():
    conv = TrAct(nn.Conv2d(3, 8, 3, padding=1).double())
    x = torch.randn(4, 3, 9, 9).double()
    grad_z = torch.randn(4, 8, 9, 9).double()
    conv(x).backward(grad_z)
    expected = conv.weight.grad.clone()
    conv.to(memory_format=torch.channels_last).zero_grad()
    conv(x.contiguous(memory_format=torch.channels_last)).backward(grad_z)
    assert_close(conv.weight.grad, expected)


def test_a_layer_called_twice_adds_the_gradients_of_its_calls():
    layer = TrAct(nn.Linear(6, 4).double())
    first, second = torch.randn(9, 6).double(), torch.randn(20, 6).double()
    grads = torch.randn(9, 4).double(), torch.randn(20, 4).double()
    torch.autograd.backward([layer(first), layer(second)], grads)
    expected = tract_gradient_of_layer(layer, first, grads[0])
    expected = expected + tract_gradient_of_layer(layer, second, grads[1])
    assert_close(layer.weight.grad, expected)


@pytest.mark.parametrize(
    ("plain", "cls"),
    [
        (nn.Linear(4, 3), TrActLinear),
        (nn.Conv1d(4, 3, 2), TrActConv1d),
        (nn.Conv2d(4, 3, 2), TrActConv2d),
        (nn.Conv3d(4, 3, 2), TrActConv3d),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_wrapping_changes_the_class_and_nothing_else(plain, cls):
    plain.eval()
    plain.note = "kept"
    calls = []
    plain.register_forward_hook(lambda *_: calls.append("hook"))
    parameters, before = list(plain.parameters()), dict(plain.__dict__)
    state, random_state = list(plain.state_dict()), torch.get_rng_state()
    layer = TrAct(plain, lam=0.2)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert type(layer) is cls
    assert isinstance(layer, cls.plain_class)
    assert all(a is b for a, b in zip(layer.parameters(), parameters, strict=True))
    assert list(layer.state_dict()) == state
    assert not layer.training
    for name, value in before.items():
        assert layer.__dict__[name] is value
    layer(torch.randn(2, 4, *(3,) * (layer.weight.dim() - 2)))
    assert calls == ["hook"]
    assert "lam=0.2" in repr(layer)


def test_layers_are_constructed_with_torchs_arguments_and_ours():
    layer = TrActConv2d(3, 8, 5, 2, padding="valid", bias=False, lam=1, moment_dtype=torch.float64)
    assert layer.stride == (2, 2)
    assert layer.bias is None
    assert layer.lam == 1.0
    assert layer.options.moment_dtype is torch.float64
    assert "lam=1, moment_dtype=torch.float64" in repr(layer)
    torch.manual_seed(3)
    same_as_plain = TrActLinear(4, 3)
    torch.manual_seed(3)
    assert torch.equal(same_as_plain.weight, nn.Linear(4, 3).weight)


@pytest.mark.parametrize("frozen", [True, False])
def test_without_training_it_is_the_plain_layer(frozen):
    layer = TrAct(nn.Conv2d(3, 4, 3)).eval()
    layer.requires_grad_(not frozen)
    x = torch.randn(2, 3, 6, 6, requires_grad=frozen)
    saved = []
    with (
        torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t),
        torch.profiler.profile() as profile,
        torch.set_grad_enabled(frozen),
    ):
        z = layer(x)
    plain = nn.Conv2d(3, 4, 3).requires_grad_(False)
    kept = []
    with (
        torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t),
        torch.profiler.profile() as plain_profile,
        torch.set_grad_enabled(frozen),
    ):
        plain(x)
    names = [event.key for event in profile.key_averages()]
    assert sorted(names) == sorted(event.key for event in plain_profile.key_averages())
    assert len(saved) == len(kept)
    assert z.requires_grad is frozen


def test_eval_mode_with_gradients_still_trains():
    layer = TrAct(nn.Linear(6, 4).double()).eval()
    x, grad_z = torch.randn(20, 6).double(), torch.randn(20, 4).double()
    layer(x).backward(grad_z)
    assert_close(layer.weight.grad, tract_gradient_of_layer(layer, x, grad_z))


def test_lam_may_change_between_forward_passes():
    layer = TrAct(nn.Linear(6, 4).double())
    x, grad_z = torch.randn(20, 6).double(), torch.randn(20, 4).double()
    layer.lam = 2
    assert layer.lam == 2.0
    assert isinstance(layer.lam, float)
    layer(x).backward(grad_z)
    assert_close(layer.weight.grad, tract_gradient_of_layer(layer, x, grad_z, lam=2.0))


@pytest.mark.parametrize("make", [lambda: nn.Conv2d(3, 4, 3), lambda: StandardisedConv2d(3, 4, 3)])
@pytest.mark.parametrize(
    "copy_layer",
    [
        copy.deepcopy,
        lambda layer: pickle.loads(pickle.dumps(layer)),
        lambda layer: torch.load(_saved(layer), weights_only=False),
    ],
    ids=["deepcopy", "pickle", "torch.save"],
)
def test_copies_train_like_the_original(make, copy_layer):
    layer = TrAct(make().double(), lam=0.7)
    twin = copy_layer(layer)
    assert type(twin) is type(layer)
    x = torch.randn(3, 3, 6, 6).double()
    grad_z = torch.randn_like(layer(x))
    layer(x).backward(grad_z)
    twin(x).backward(grad_z)
    assert torch.equal(twin.weight.grad, layer.weight.grad)


def _saved(layer):
    buffer = io.BytesIO()
    torch.save(layer, buffer)
    buffer.seek(0)
    return buffer


def replicate(layer: nn.Module) -> nn.Module:
    """Do what nn.DataParallel does for each GPU in each forward."""
    replica = layer._replicate_for_data_parallel()
    replica.weight, replica.bias = layer.weight.clone(), layer.bias.clone()
    return replica


def test_the_replicas_of_data_parallel_precondition_their_own_rows():
    layer, parts = TrAct(nn.Linear(4, 3)), torch.randn(2, 20, 4)
    for part in parts:
        layer(part).square().sum().backward()
    expected = layer.weight.grad.clone()
    layer.zero_grad()
    z = torch.cat([replicate(layer)(part) for part in parts])
    z.square().sum().backward()
    assert_close(layer.weight.grad, expected, 1e-6)


@pytest.mark.parametrize("options", [{"every": 2}, {"rows": 8}, {"moment_decay": 0.9}, None])
def test_data_parallel_is_refused_if_replicas_would_share_a_state(options):
    layer = TrAct(nn.Linear(4, 3), **(options or {}))
    block = contextlib.nullcontext() if options else accumulate(layer)
    with block:
        with pytest.raises(TrActValueError, match="use DistributedDataParallel, or leave"):
            replicate(layer)
        with torch.no_grad():
            replicate(layer)


def test_a_subclass_of_a_tract_layer_can_be_pickled():
    twin = pickle.loads(pickle.dumps(OwnStem(3, 4, 3, lam=0.4)))
    assert type(twin) is OwnStem
    assert twin.lam == 0.4


class OwnStem(TrActConv2d):
    pass


def test_a_custom_layer_keeps_its_own_forward_bit_for_bit():
    plain = StandardisedConv2d(3, 4, 3).double()
    layer = TrAct(copy.deepcopy(plain))
    assert isinstance(layer, StandardisedConv2d)
    assert repr(layer).startswith("TrActStandardisedConv2d(3, 4")
    x = torch.randn(5, 3, 7, 7).double()
    assert torch.equal(layer(x), plain(x))


def test_a_custom_layer_is_preconditioned_at_its_operator():
    layer = TrAct(StandardisedConv2d(3, 4, 3).double())
    x = torch.randn(5, 3, 7, 7).double()
    grad_z = torch.randn_like(layer(x))
    layer(x).backward(grad_z)
    flat = layer.weight.detach().flatten(1).requires_grad_()
    standard = (flat - flat.mean(1, keepdim=True)) / flat.std(1, keepdim=True)
    stand_in = nn.Conv2d(3, 4, 3).double()
    effective_grad = tract_gradient_of_layer(stand_in, F.pad(x, (0, 1, 0, 1)), grad_z)
    (expected,) = torch.autograd.grad(standard, flat, effective_grad.flatten(1))
    assert_close(layer.weight.grad, expected.view_as(layer.weight))


def test_a_frozen_custom_layer_is_the_plain_layer():
    class Twice(nn.Linear):
        def forward(self, x):
            return F.linear(F.linear(x, self.weight), self.weight)

    layer = TrAct(Twice(4, 4)).requires_grad_(False)
    x = torch.randn(3, 4)
    assert torch.equal(layer(x), x @ layer.weight.T @ layer.weight.T)


@pytest.mark.parametrize("calls", [0, 2])
def test_a_custom_forward_without_exactly_one_operator_call_is_refused(calls):
    class Strange(nn.Linear):
        def forward(self, x):
            for _ in range(calls):
                x = F.linear(x, self.weight)
            return x @ self.weight.T

    layer = TrAct(Strange(4, 4))
    with pytest.raises(trainact.UnsupportedLayerError, match=f"F.conv1d/2d/3d {calls} times"):
        layer(torch.randn(3, 4))


def test_a_parametrization_may_follow():
    layer = TrAct(nn.Linear(6, 4).double())
    torch.nn.utils.parametrizations.weight_norm(layer)
    x, grad_z = torch.randn(20, 6).double(), torch.randn(20, 4).double()
    layer(x).backward(grad_z)
    effective = tract_gradient_of_layer(layer, x, grad_z)
    scale, direction = (
        p.detach().requires_grad_() for p in layer.parametrizations.weight.parameters()
    )
    weight = scale * direction / direction.norm(dim=1, keepdim=True)
    expected = torch.autograd.grad(weight, [scale, direction], effective)
    for parameter, grad in zip(layer.parametrizations.weight.parameters(), expected, strict=True):
        assert_close(parameter.grad, grad, rtol=1e-8)
