"""The optimizer that an arm gives to a loop of the user's own."""

import copy

import pytest
import torch
import torch.nn.functional as F

from loop_cases import make_sgd, read_photos, start_run
from small_models import make_deep, make_tiny
from trainact.errors import TrActValueError
from trainact.lab.recipes.recipe import OptimizerFields, TractFields
from trainact.lab.training.first_layer.muon import find_hidden_weights
from trainact.lab.training.optimizers import make_optimizers, set_rate
from trainact.lab.training.own_loop.optimizers import OptimizerSet


def take_steps(model, steps, before=lambda step: None):
    """Step an optimizer, or several, on the same batches."""
    (images, labels), _ = read_photos()
    for step in range(4):
        batch = slice(32 * step, 32 * step + 32)
        before(step)
        for optimizer in steps:
            optimizer.zero_grad()
        F.cross_entropy(model(images[batch]), labels[batch]).backward()
        for optimizer in steps:
            optimizer.step()


def pair(make_model=make_tiny):
    torch.manual_seed(0)
    model = make_model(8)
    return model, copy.deepcopy(model)


def assert_equal(one, other):
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_multiplier_holds_under_any_schedule():
    """A schedule that sets every group's rate does not undo it."""
    model, other = pair()
    run = start_run("lr-0.1")
    optimizer = run.optimizer(run.prepare(model), make_sgd)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=8)
    take_steps(model, [optimizer], lambda step: schedule.step() if step else None)
    rates = {group["lr"] for group in optimizer.param_groups}
    by_hand = torch.optim.SGD(
        [{"params": other[0].parameters()}, {"params": other[4].parameters()}], lr=1.0
    )
    reference = torch.optim.lr_scheduler.OneCycleLR(by_hand, [0.02, 0.2], total_steps=8)
    take_steps(other, [by_hand], lambda step: reference.step() if step else None)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.allclose(one, two, atol=1e-6)
    assert rates == {by_hand.param_groups[1]["lr"]}


@pytest.mark.parametrize(
    ("arm", "make_model", "fields"),
    [
        ("foof+lr-0.3", make_tiny, {"first_layer_name": "foof", "first_layer_lr": 0.3}),
        ("asgo", make_tiny, {"first_layer_name": "asgo"}),
        ("muon-stem", make_tiny, {"first_layer_name": "muon"}),
        ("muon", make_deep, {"body": "muon"}),
        ("muon+lr-3", make_deep, {"body": "muon", "first_layer_lr": 3.0}),
        ("plain", make_tiny, {}),
    ],
)
def test_an_arm_trains_as_in_the_lab(arm, make_model, fields):
    """The user's optimizer and the arm's own together are the optimizers of the lab's loop."""
    model, other = pair(make_model)
    run = start_run(arm)
    optimizer = run.optimizer(run.prepare(model), make_sgd)

    def set_all(step):
        for group in optimizer.param_groups:
            group["lr"] = 0.05 / (step + 1)

    take_steps(model, [optimizer], set_all)
    table = OptimizerFields(lr=0.05, momentum=0.9, **fields)
    members = make_optimizers(other, ["0"], table, TractFields(enabled=False, lam=0.1))
    take_steps(other, members, lambda step: set_rate(members, 0.05 / (step + 1)))
    assert_equal(model, other)
    assert isinstance(optimizer, OptimizerSet) == (len(members) > 1)


def test_two_optimizers_are_one_for_schedules_states_and_closures():
    model, other = pair()
    states = []
    for network in (model, other):
        run = start_run("foof")
        optimizer = run.optimizer(run.prepare(network), make_sgd)
        if states:
            optimizer.load_state_dict(states[0])
        take_steps(network, [optimizer])
        states.append(copy.deepcopy(optimizer.state_dict()))
        grads = [p.grad for p in network.parameters()]
        assert all(grad is not None for grad in grads)
        optimizer.zero_grad()
        assert all(parameter.grad is None for parameter in network.parameters())
    assert not torch.equal(model[0].weight, other[0].weight)  # it went on from the first's state
    assert {len(group["params"]) for group in optimizer.param_groups} >= {1}
    assert sum(len(group["params"]) for group in optimizer.param_groups) == 4
    images, labels = (tensor[:32] for tensor in read_photos()[0])

    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(other(images), labels)
        loss.backward()
        return loss

    before = other[0].weight.clone()
    assert optimizer.step(closure).item() > 0
    assert not torch.equal(before, other[0].weight)
    extra = torch.nn.Parameter(torch.ones(3))
    optimizer.add_param_group({"params": [extra]})
    assert optimizer.members[0].param_groups[-1]["params"][0] is extra
    assert any(extra is p for group in optimizer.param_groups for p in group["params"])


def test_groups_of_the_users_own_keep_their_options():
    model, _ = pair()
    run = start_run("lr-0.1")
    run.prepare(model)

    def make(parameters):
        del parameters
        decayed = [p for p in model.parameters() if p.ndim > 1]
        others = [p for p in model.parameters() if p.ndim == 1]
        return torch.optim.AdamW([{"params": decayed}, {"params": others, "weight_decay": 0.0}])

    optimizer = run.optimizer(model, make)
    assert [(g["weight_decay"], g.get("rate_factor"), len(g["params"]))
            for g in optimizer.param_groups] == [
        (0.01, 0.1, 1), (0.01, None, 1), (0.0, 0.1, 1), (0.0, None, 1),
    ]  # fmt: skip


@pytest.mark.parametrize("arm", ["centralised", "mac", "tract-norm-preserving"])
def test_a_rule_changes_the_gradient_before_each_step(arm):
    model, other = pair()
    images, labels = (tensor[:32] for tensor in read_photos()[0])
    run = start_run(arm)
    optimizer = run.optimizer(run.prepare(model, [images]), make_sgd)
    F.cross_entropy(model(images), labels).backward()
    plain = model[0].weight.grad.clone()
    optimizer.step()
    changed = model[0].weight.grad
    assert not torch.allclose(changed, plain)
    assert torch.allclose(other[0].weight - 0.05 * changed, model[0].weight, atol=1e-7)
    with pytest.raises(TrActValueError, match="computes the gradient itself, in a closure"):
        optimizer.step(lambda: torch.zeros(()))


@pytest.mark.parametrize("arm", ["tract-norm-preserving", "foof"])
def test_images_without_a_backward_and_the_place_of_zero_grad_change_no_step(arm):
    model, other = pair()
    (images, labels), (unseen, _) = read_photos()
    for network, is_unusual in ((model, False), (other, True)):
        run = start_run(arm)
        optimizer = run.optimizer(run.prepare(network), make_sgd)
        for batch in range(3):
            chosen = slice(32 * batch, 32 * batch + 32)
            optimizer.zero_grad()
            loss = F.cross_entropy(network(images[chosen]), labels[chosen])
            if is_unusual:
                network(5 * unseen)  # in training mode, with gradients
                optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert_equal(model, other)


def test_an_optimizer_of_another_model_or_without_a_rate_is_refused():
    model, other = pair()
    run = start_run("plain")
    run.prepare(model)
    with pytest.raises(TrActValueError, match=r"does not train the first layer \(0\)"):
        run.optimizer(other, make_sgd)
    with pytest.raises(TrActValueError, match=r"does not train the first layer \(0\)"):
        run.optimizer(model, lambda parameters: make_sgd([parameters[0], *parameters[2:]]))
    with pytest.raises(TrActValueError, match="starts with the learning rate 0"):
        run.optimizer(model, lambda parameters: torch.optim.SGD(parameters, lr=0.0))


def test_muon_takes_its_weights_from_the_users_optimizer():
    model, _ = pair(make_deep)
    run = start_run("muon")
    optimizer = run.optimizer(run.prepare(model), make_sgd)
    hidden = {id(weight) for weight in find_hidden_weights(model, ["0"])}
    groups = optimizer.members[0].param_groups
    assert not hidden & {id(p) for group in groups for p in group["params"]}
