"""moment_decay=: a moving average of second moment and mean over backward passes."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cases import CASES, Case, assert_close
from trainact import TrAct, TrActError, accumulate, load_tract_state, remove_tract, tract_state
from trainact.reference import average_over_steps, cut_patches, preactivations_as_rows
from trainact.rows import RowSample, patches_of_layer, unfold_rows

DECAY = 0.7


def backward(layer: nn.Module, x: Tensor, grad_z: Tensor) -> tuple[Tensor, Tensor]:
    layer.zero_grad()
    layer(x).backward(grad_z)
    return layer.weight.grad.clone(), layer.bias.grad.clone()


def expected_grads(layer, inputs, grad_z, center=False, relative=False, lam=0.1):
    """Return the gradients on the last input, with averages over the steps written out."""
    rows = [cut_patches(x, layer) for x in inputs]
    moment = average_over_steps([r.mT @ r / r.shape[1] for r in rows], DECAY)
    mean = average_over_steps([r.mean(1, keepdim=True) for r in rows], DECAY)
    groups, num_rows, n = rows[-1].shape
    grads = preactivations_as_rows(grad_z, layer).reshape(num_rows, groups, -1).transpose(0, 1)
    if not center:
        mean = torch.zeros_like(mean)
    matrix = moment - mean.mT @ mean
    scale = matrix.diagonal(dim1=1, dim2=2).mean(1).view(-1, 1, 1) if relative else 1.0
    inverse = torch.linalg.inv(matrix + lam * scale * torch.eye(n).double())
    weight = (grads.mT @ rows[-1] - grads.sum(1).unsqueeze(-1) * mean) @ inverse
    bias = grads.sum(1) - (weight @ mean.mT).squeeze(-1)
    return weight.reshape(layer.weight.shape), bias.flatten()


def steps(case: Case, count: int) -> list[tuple[Tensor, Tensor]]:
    inputs = [case.draw()[1] + step for step in range(count)]
    return [(x, torch.randn_like(case.make().double()(x))) for x in inputs]


usable = [case for case in CASES if case.make().bias is not None and 0 not in case.shape]


@pytest.mark.parametrize("case", usable, ids=lambda case: case.name)
@pytest.mark.parametrize(
    "options", [{}, {"center": True}, {"center": True, "relative": True}], ids=str
)
def test_the_gradients_are_those_of_the_averages(case: Case, options):
    layer = TrAct(case.make().double(), moment_decay=DECAY, **options)
    data = steps(case, 3)
    for t, (x, grad_z) in enumerate(data):
        if t == 0 and options.get("relative") and cut_patches(x, layer).shape[1] == 1:
            backward(layer, x, grad_z)  # one row does not vary
            continue
        expected = expected_grads(layer, [x for x, _ in data[: t + 1]], grad_z, **options)
        for actual, target in zip(backward(layer, x, grad_z), expected, strict=True):
            assert_close(actual, target, 1e-7)


def test_no_decay_is_no_average():
    case = next(case for case in CASES if case.name == "conv2d-k3-p1")
    plain = case.make().double()
    layers = [TrAct(copy.deepcopy(plain)), TrAct(copy.deepcopy(plain), moment_decay=0)]
    for x, grad_z in steps(case, 2):
        assert torch.equal(*(backward(layer, x, grad_z)[0] for layer in layers))
    assert layers[1].memory.average is None


def batches(count: int, rows: int = 20) -> list[tuple[Tensor, Tensor]]:
    return [
        (torch.randn(rows, 6).double() + 1, torch.randn(rows, 4).double()) for _ in range(count)
    ]


def linear(**options) -> nn.Module:
    return TrAct(nn.Linear(6, 4).double(), moment_decay=DECAY, **options)


def test_only_a_backward_counts_as_a_step():
    layer, data = linear(), batches(2)
    backward(layer, *data[0])
    for _ in range(3):
        layer(data[1][0])
        with torch.no_grad():
            layer(data[1][0])
    expected, _ = expected_grads(layer, [x for x, _ in data], data[1][1])
    assert_close(backward(layer, *data[1])[0], expected)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_forward_repeated_by_checkpointing_does_not_count(use_reentrant):
    layer, data = linear(), batches(2)
    for x, grad_z in data:
        layer.zero_grad()
        z = checkpoint(layer, x.requires_grad_(), use_reentrant=use_reentrant)
        z.backward(grad_z)
    expected, _ = expected_grads(layer, [x.detach() for x, _ in data], data[1][1])
    assert_close(layer.weight.grad, expected.detach())
    assert layer.memory.average.num_rows == 1 + DECAY


@pytest.mark.parametrize("center", [False, True])
def test_an_accumulate_block_is_one_step(center):
    layer, data = linear(center=center), batches(3)
    backward(layer, *data[0])
    layer.zero_grad()
    with accumulate(layer):
        for x, grad_z in data[1:]:
            layer(x).backward(grad_z)
    together = torch.cat([x for x, _ in data[1:]]), torch.cat([g for _, g in data[1:]])
    weight, bias = expected_grads(layer, [data[0][0], together[0]], together[1], center)
    assert_close(layer.weight.grad, weight)
    assert_close(layer.bias.grad, bias)
    assert layer.memory.average.num_rows == 1 + DECAY


def test_a_block_without_a_backward_or_with_an_error_does_not_count():
    layer = linear()
    with accumulate(layer):
        layer(torch.randn(20, 6).double())
    assert layer.memory.average.num_rows == 0

    def fail_halfway():
        with accumulate(layer):
            layer(torch.randn(20, 6).double()).sum().backward()
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        fail_halfway()
    assert not any(tensor.any() for tensor in tract_state(layer).values())


def test_layers_that_share_a_weight_both_take_in_the_pooled_step():
    one, two = linear(), linear()
    two.weight = one.weight
    data = batches(2)
    with accumulate(nn.ModuleList([one, two])):
        torch.autograd.backward([one(data[0][0]), two(data[1][0])], [g for _, g in data])
    together = torch.cat([x for x, _ in data])
    for layer in (one, two):
        assert_close(layer.memory.average.divide_by_rows()[0], together.T @ together / 40)


def test_a_step_without_rows_does_not_count():
    layer, ((x, grad_z),) = linear(sync=True), batches(1)
    backward(layer, x, grad_z)
    weight, bias = backward(layer, x[:0], grad_z[:0])
    assert not weight.any()
    assert not bias.any()
    assert layer.memory.average.num_rows == 1


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_an_input_that_is_not_finite_spoils_one_gradient_and_not_the_average(bad):
    layer, data = linear(center=True), batches(3)
    backward(layer, *data[0])
    spoiled = data[1][0].clone()
    spoiled[3, 2] = bad
    assert not backward(layer, spoiled, data[1][1])[0].isfinite().any()
    weight, _ = expected_grads(layer, [data[0][0], data[2][0]], data[2][1], center=True)
    assert_close(backward(layer, *data[2])[0], weight)


def test_sampled_rows_enter_the_average():
    layer, data = linear(rows=8), batches(2)
    backward(layer, *data[0])
    actual, _ = backward(layer, *data[1])
    patches = patches_of_layer(layer)
    samples = [
        unfold_rows(x, patches, RowSample(8, torch.tensor(seed)))[0]
        for seed, (x, _) in enumerate(data)
    ]
    moment = average_over_steps([r.T @ r / 8 for r in samples], DECAY)
    expected = data[1][1].T @ data[1][0] @ (moment + 0.1 * torch.eye(6).double()).inverse()
    assert_close(actual, expected)


def test_lam_may_change_between_steps():
    layer, data = linear(), batches(2)
    backward(layer, *data[0])
    layer.lam = 0.5
    expected, _ = expected_grads(layer, [x for x, _ in data], data[1][1], lam=0.5)
    assert_close(backward(layer, *data[1])[0], expected)


@pytest.mark.parametrize("copy_layer", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_carries_the_average_and_goes_its_own_way(copy_layer):
    layer, data = linear(center=True), batches(3)
    backward(layer, *data[0])
    twin = copy_layer(layer)
    for x, grad_z in data[1:]:
        assert torch.equal(backward(twin, x, grad_z)[0], backward(layer, x, grad_z)[0])
    backward(twin, *data[0])
    assert not torch.equal(twin.memory.average.total, layer.memory.average.total)


def test_the_state_dict_and_the_buffers_stay_the_plain_layers():
    layer = linear()
    backward(layer, *batches(1)[0])
    assert list(layer.state_dict()) == ["weight", "bias"]
    assert not list(layer.buffers())
    remove_tract(layer)
    assert type(layer) is nn.Linear
    assert "memory" not in vars(layer)


def test_the_average_follows_the_weight_to_a_device_but_not_to_a_dtype():
    layer = linear(center=True)
    backward(layer, *batches(1)[0])
    before = tract_state(layer)
    layer.half()
    assert layer.weight.dtype == torch.float16
    assert all(torch.equal(tensor, before[name]) for name, tensor in tract_state(layer).items())
    layer.to("meta")
    assert all(tensor.is_meta for tensor in layer.memory.average.sums)
    layer.to_empty(device="cpu")
    assert not any(tensor.any() for tensor in tract_state(layer).values())


def test_the_average_follows_weights_assigned_to_a_model_on_the_meta_device():
    trained = linear(center=True)
    (first, second) = batches(2)
    backward(trained, *first)
    with torch.device("meta"):
        loaded = linear(center=True)
    loaded.load_state_dict(trained.state_dict(), assign=True)
    load_tract_state(loaded, tract_state(trained))
    for layer in (trained, loaded):
        layer.zero_grad()
        backward(layer, *second)
    assert torch.equal(loaded.weight.grad, trained.weight.grad)


def test_half_precision_averages_in_full_precision():
    layer = TrAct(nn.Linear(6, 4).bfloat16(), moment_decay=DECAY)
    inputs = [torch.randn(20, 6).bfloat16() for _ in range(3)]
    for x in inputs:
        layer(x).sum().backward()
    expected = average_over_steps([x.double().T @ x.double() / 20 for x in inputs], DECAY)
    assert_close(layer.memory.average.divide_by_rows()[0], expected, 1e-6)


def test_wide_layers_average_too():
    layer, x = TrAct(nn.Linear(300, 2), moment_decay=DECAY), torch.randn(400, 300)
    layer(x).sum().backward()
    expected = x.double().T @ x.double() / 400
    assert_close(layer.memory.average.divide_by_rows()[0], expected, 1e-5)


class OtherShape(nn.Linear):
    """Its operator has twice as many inputs as its parameter."""

    def forward(self, x):
        return F.linear(torch.cat([x, x], -1), torch.cat([self.weight, self.weight], 1))


def test_an_operator_with_other_inputs_than_the_parameter_is_refused():
    layer = TrAct(OtherShape(6, 4), moment_decay=DECAY)
    with pytest.raises(TrActError, match=r"1 groups of 6 inputs.* 1 groups of 12 inputs"):
        layer(torch.randn(9, 6))


def test_transforms_are_refused():
    layer = linear()
    parameters = {name: p.detach() for name, p in layer.named_parameters()}

    def loss(parameters):
        return torch.func.functional_call(layer, parameters, torch.randn(9, 6).double()).sum()

    with pytest.raises(TrActError, match=r"moment_decay changes its moving average .* torch\.func"):
        torch.func.grad(loss)(parameters)
