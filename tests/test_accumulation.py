"""Gradient accumulation gives the gradient of one backward on the whole batch."""

import contextlib
import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from cases import CASES, Case, assert_close
from trainact import TrAct, TrActError, accumulate, apply_tract, remove_tract
from trainact.reference import tract_gradient_of_layer

batched = [
    case for case in CASES if len(case.shape) > 1 and case.shape[0] > 1 and "un" not in case.name
]


ALREADY = "ignore:a TrAct layer already has a gradient"


def network(**options: bool) -> nn.Module:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 16, 5)
    ).double()
    apply_tract(model, **options)
    return model


def whole_batch_grad(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    twin = copy.deepcopy(model)
    twin.zero_grad()
    twin(x).square().mean().backward()
    return twin[0].weight.grad


@pytest.mark.parametrize("case", batched, ids=lambda case: case.name)
def test_micro_batches_give_the_gradient_of_the_whole_batch(case: Case):
    layer, x = case.draw()
    layer = TrAct(layer, lam=0.3)
    grad_z = torch.randn_like(layer(x))
    with accumulate(layer):
        for rows, grads in zip(
            x.split([1, len(x) - 1]), grad_z.split([1, len(x) - 1]), strict=True
        ):
            layer(rows).backward(grads)
    assert_close(layer.weight.grad, tract_gradient_of_layer(layer, x, grad_z, lam=0.3), 1e-8)


def test_other_gradients_are_the_ordinary_sums():
    model, x = network(), torch.randn(6, 3, 6, 6).double()
    twin = copy.deepcopy(model)
    twin(x).square().mean().backward()
    with accumulate(model):
        for part in x.chunk(3):
            (model(part).square().mean() / 3).backward()
    for actual, expected in zip(model.parameters(), twin.parameters(), strict=True):
        assert_close(actual.grad, expected.grad)


def test_one_micro_batch_equals_no_accumulation():
    model, x = network(), torch.randn(6, 3, 6, 6).double()
    expected = whole_batch_grad(model, x)
    with accumulate(model):
        model(x).square().mean().backward()
    assert_close(model[0].weight.grad, expected)


def test_calls_in_one_forward_share_one_pooled_moment():
    layer = TrAct(nn.Linear(6, 4).double())
    first, second = torch.randn(9, 6).double(), torch.randn(20, 6).double()
    grads = torch.randn(9, 4).double(), torch.randn(20, 4).double()
    with accumulate(layer):
        torch.autograd.backward([layer(first), layer(second)], grads)
    expected = tract_gradient_of_layer(layer, torch.cat([first, second]), torch.cat(grads))
    assert_close(layer.weight.grad, expected)


def test_layers_that_share_a_weight_share_the_pool():
    one, two = nn.Linear(6, 4).double(), nn.Linear(6, 4).double()
    two.weight = one.weight
    model = nn.ModuleList([TrAct(one), TrAct(two)])
    first, second = torch.randn(9, 6).double(), torch.randn(20, 6).double()
    grads = torch.randn(9, 4).double(), torch.randn(20, 4).double()
    with accumulate(model):
        torch.autograd.backward([one(first), two(second)], grads)
    expected = tract_gradient_of_layer(one, torch.cat([first, second]), torch.cat(grads))
    assert_close(one.weight.grad, expected)
    two.lam = 0.2
    with (
        pytest.raises(TrActError, match=r"share a weight but not lam \(0.1 and 0.2\)"),
        accumulate(model),
    ):
        pass


@pytest.mark.filterwarnings(ALREADY)
def test_a_gradient_present_on_entering_is_added_back():
    model, x = network(), torch.randn(6, 3, 6, 6).double()
    expected = whole_batch_grad(model, x)
    present = torch.randn_like(expected)
    model[0].weight.grad = present.clone()
    with accumulate(model):
        assert model[0].weight.grad is None
        model(x).square().mean().backward()
    assert_close(model[0].weight.grad, expected + present)


def test_a_gradient_from_before_is_reported():
    model, x = network(), torch.randn(6, 3, 6, 6).double()
    model(x).sum().backward()

    def train():
        with accumulate(model):
            model.zero_grad()
            model(x).square().mean().backward()

    with pytest.warns(UserWarning, match=r"already has a gradient .* call it before the block"):
        train()
    model.zero_grad(set_to_none=False)
    train()


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("center", [False, True])
def test_an_optimizer_does_not_step_inside_the_block(fused, center):
    model, x = network(center=center), torch.randn(6, 3, 6, 6).double()
    trained = [model[0].bias] if center else [model[0].weight]
    optimizer = torch.optim.AdamW(trained, 0.1, fused=fused)
    before = copy.deepcopy(model.state_dict())

    def step_inside():
        with accumulate(model):
            model(x).square().mean().backward()
            optimizer.step()

    with pytest.raises(TrActError, match=r"optimizer\.step\(\) was called inside accumulate"):
        step_inside()
    assert model[0].weight.grad is None
    assert model[0].memory.pool is None
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    optimizer.step()


def test_a_closure_may_end_the_block_but_not_be_inside_it():
    model, x = network(), torch.randn(6, 3, 6, 6).double()
    expected = whole_batch_grad(model, x)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def train():
        model(x).square().mean().backward()

    with (
        pytest.raises(TrActError, match=r"optimizer\.step\(\) was called inside accumulate"),
        accumulate(model),
    ):
        optimizer.step(train)
    block = contextlib.ExitStack()

    def end():
        train()
        block.close()

    block.enter_context(accumulate(model))
    expected = whole_batch_grad(model, x)
    optimizer.step(end)
    assert_close(model[0].weight.grad, expected)


def test_other_optimizers_step_and_weights_are_written_inside_the_block():
    model, x = network(), torch.randn(6, 3, 6, 6).double()
    expected = whole_batch_grad(model, x)
    other = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(other.parameters(), 0.1)
    with accumulate(model):
        (model(x[:3]).square().mean() / 2).backward()
        model.load_state_dict(copy.deepcopy(model.state_dict()))
        other(torch.rand(3, 2)).sum().backward()
        optimizer.step()
        (model(x[3:]).square().mean() / 2).backward()
    assert_close(model[0].weight.grad, expected)


@pytest.mark.filterwarnings("error:a TrAct layer already has a gradient")
@pytest.mark.parametrize("center", [False, True])
def test_a_warning_that_is_an_error_loses_no_gradient(center):
    layers = nn.ModuleList(TrAct(nn.Linear(4, 3), center=center) for _ in range(2))
    x = torch.randn(9, 4)
    sum(layer(x).sum() for layer in layers).backward()
    before = [parameter.grad.clone() for parameter in layers.parameters()]
    with pytest.raises(UserWarning, match="already has a gradient"), accumulate(layers):
        pass
    for parameter, grad in zip(layers.parameters(), before, strict=True):
        assert torch.equal(parameter.grad, grad)
    assert all(layer.memory.pool is None for layer in layers)


def test_a_block_that_raises_leaves_the_moving_average():
    layer, x = TrAct(nn.Linear(4, 3), moment_decay=0.9), torch.randn(9, 4)
    with pytest.raises(TrActError, match=r"found no \.grad"), accumulate(layer):
        torch.autograd.grad(layer(x).sum(), layer.weight)
    assert layer.memory.average.num_rows == 0


def test_two_losses_of_one_forward_count_its_rows_once():
    model, x = network(), torch.randn(6, 3, 6, 6).double()
    twin = copy.deepcopy(model)
    with accumulate(model):
        outputs = model(x[:4])
        outputs.square().mean().backward(retain_graph=True)
        outputs.sum().backward()
        model(x[4:]).square().mean().backward()
    with accumulate(twin):
        outputs = twin(x[:4])
        (outputs.square().mean() + outputs.sum()).backward()
        twin(x[4:]).square().mean().backward()
    for actual, expected in zip(model.parameters(), twin.parameters(), strict=True):
        assert_close(actual.grad, expected.grad)


@pytest.mark.filterwarnings(ALREADY)
@pytest.mark.parametrize("present", [True, False])
@pytest.mark.parametrize("run_forward", [True, False])
def test_leaving_without_a_backward_changes_nothing(present, run_forward):
    model = network()
    grad = torch.randn_like(model[0].weight) if present else None
    model[0].weight.grad = grad
    with accumulate(model):
        if run_forward:
            model(torch.randn(2, 3, 6, 6).double())
    assert model[0].weight.grad is grad


@pytest.mark.filterwarnings(ALREADY)
@pytest.mark.parametrize("present", [True, False])
def test_an_exception_leaves_gradient_and_state_as_they_were(present):
    model, x = network(), torch.randn(6, 3, 6, 6).double()
    before = torch.randn_like(model[0].weight) if present else None
    model[0].weight.grad = None if before is None else before.clone()

    def fail_halfway():
        with accumulate(model):
            model(x).square().mean().backward()
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        fail_halfway()
    if present:
        assert torch.equal(model[0].weight.grad, before)
    else:
        assert model[0].weight.grad is None
    assert model[0].memory.pool is None
    model.zero_grad()
    model(x).square().mean().backward()
    assert_close(model[0].weight.grad, whole_batch_grad(model, x))


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_activation_checkpointing_does_not_count_rows_twice(use_reentrant):
    model, x = network(), torch.randn(6, 3, 6, 6).double()
    expected = whole_batch_grad(model, x)
    with accumulate(model):
        for part in x.requires_grad_().chunk(3):
            (checkpoint(model, part, use_reentrant=use_reentrant).square().mean() / 3).backward()
    assert_close(model[0].weight.grad, expected)


def test_a_frozen_layer_is_left_alone():
    model = network()
    model[0].weight.requires_grad_(False)
    with accumulate(model):
        model(torch.randn(2, 3, 6, 6).double()).sum().backward()
    assert model[0].weight.grad is None


def test_half_precision_pools_in_full_precision():
    layer = TrAct(nn.Linear(6, 4).bfloat16())
    x, grad_z = torch.randn(64, 6).bfloat16(), torch.randn(64, 4).bfloat16()
    with accumulate(layer):
        for rows, grads in zip(x.chunk(4), grad_z.chunk(4), strict=True):
            layer(rows).backward(grads)
    expected = tract_gradient_of_layer(copy.deepcopy(layer).double(), x.double(), grad_z.double())
    assert layer.weight.grad.dtype == torch.bfloat16
    assert_close(layer.weight.grad.double(), expected, 3e-2)


class StandardisedLinear(nn.Linear):
    """Its operator's weight is not its parameter."""

    def forward(self, x):
        return F.linear(x, self.weight - self.weight.mean(1, keepdim=True), self.bias)


class DoubledInputLinear(nn.Linear):
    """A custom forward that passes the parameter itself to the operator."""

    def forward(self, x):
        return F.linear(2 * x, self.weight, self.bias)


def test_a_weight_that_is_computed_is_refused():
    standardised = TrAct(StandardisedLinear(6, 4))
    with (
        pytest.raises(TrActError, match="StandardisedLinear computes the weight of its operator"),
        accumulate(standardised),
    ):
        standardised(torch.randn(9, 6))
    normed = nn.utils.parametrizations.weight_norm(TrAct(nn.Linear(6, 4)))
    with pytest.raises(TrActError, match="computed from other parameters"), accumulate(normed):
        pass


def test_a_custom_forward_with_the_parameter_itself_accumulates():
    layer = TrAct(DoubledInputLinear(6, 4).double())
    x, grad_z = torch.randn(20, 6).double(), torch.randn(20, 4).double()
    with accumulate(layer):
        for rows, grads in zip(x.split(7), grad_z.split(7), strict=True):
            layer(rows).backward(grads)
    assert_close(layer.weight.grad, tract_gradient_of_layer(layer, 2 * x, grad_z))


@pytest.mark.filterwarnings(ALREADY)
def test_forward_and_backward_must_be_inside_the_block():
    model, x = network(), torch.randn(4, 3, 6, 6).double()
    before = torch.randn_like(model[0].weight)
    model[0].weight.grad = before.clone()
    loss = model(x).square().mean()
    with pytest.raises(TrActError, match="not called inside the block"), accumulate(model):
        loss.backward()
    assert torch.equal(model[0].weight.grad, before)
    with accumulate(model):
        loss = model(x).square().mean()
    with pytest.raises(TrActError, match="runs after the block; put forward and backward"):
        loss.backward()


def test_gradients_that_do_not_reach_grad_are_refused():
    model, x = network(), torch.randn(4, 3, 6, 6).double()
    weight = model[0].weight
    with pytest.raises(TrActError, match=r"no \.grad of a TrAct layer"), accumulate(model):
        torch.autograd.grad(model(x).square().mean(), weight)
    parameters = {name: p.detach().requires_grad_() for name, p in model.named_parameters()}
    with pytest.raises(TrActError, match=r"no \.grad of a TrAct layer"), accumulate(model):
        torch.func.functional_call(model, parameters, x).square().mean().backward()
    assert weight.grad is None


def test_lam_is_that_of_the_end_of_the_block():
    layer, x = TrAct(nn.Linear(5, 3).double()), torch.randn(20, 5).double()
    with accumulate(layer):
        layer(x).square().mean().backward()
        layer.lam = 0.7
    twin = TrAct(nn.Linear(5, 3).double(), lam=0.7)
    twin.load_state_dict(layer.state_dict())
    twin(x).square().mean().backward()
    assert_close(layer.weight.grad, twin.weight.grad)


@pytest.mark.parametrize("copy_layer", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_made_inside_the_block_is_outside_of_it(copy_layer):
    layer, x = TrAct(nn.Linear(5, 3).double()), torch.randn(20, 5).double()
    with accumulate(layer):
        twin = copy_layer(layer)
    twin(x).square().mean().backward()
    layer(x).square().mean().backward()
    assert torch.equal(twin.weight.grad, layer.weight.grad)


def test_misuse_is_refused_with_a_message():
    with pytest.raises(TrActError, match="found no TrAct layer"), accumulate(nn.Linear(3, 3)):
        pass
    model = network()
    with accumulate(model):
        with pytest.raises(TrActError, match="inside another accumulate block"), accumulate(model):
            pass
        with pytest.raises(TrActError, match=r"'0' is inside trainact\.accumulate"):
            remove_tract(model)
        parameters = {name: p.detach() for name, p in model.named_parameters()}
        with pytest.raises(TrActError, match=r"not inside torch\.func"):
            torch.func.grad(
                lambda p: torch.func.functional_call(
                    model, p, torch.randn(2, 3, 6, 6).double()
                ).sum()
            )(parameters)
    model(torch.randn(2, 3, 6, 6).double())
    flat = TrAct(nn.Linear(5, 3))
    flat.weight = nn.Parameter(flat.weight.detach().flatten())  # as FSDP1 divides it
    with pytest.raises(TrActError, match="accumulate works with FSDP2"), accumulate(flat):
        pass
    grouped, whole = (TrAct(nn.Conv2d(2 * g, 4, 3, groups=g)) for g in (2, 1))
    grouped.weight = whole.weight
    pair = nn.ModuleList([whole, grouped])
    with pytest.raises(TrActError, match=r"not the number of groups \(1 and 2\)"), accumulate(pair):
        pass
