"""The lookahead average, against the published formula written out for each number."""

import pytest
import torch
from torch import nn

from trainact.errors import TrActValueError
from trainact.lab.recipes.recipe import OptimizerFields
from trainact.lab.training.lookahead import Lookahead

FIELDS = OptimizerFields(lookahead_steps=5, lookahead_decay=0.95, lookahead_power=3.0)


def make_network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 2), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))


def walk(network):
    """Change every entry of the state dict as a step would."""
    with torch.no_grad():
        for value in network.state_dict().values():
            if value.is_floating_point():
                value += torch.randn_like(value)
            else:
                value += 1


@pytest.mark.parametrize("steps", [20, 23])
def test_slow_weights_follow_the_formula(steps):
    """Also after a last step at which no average is due: then the steps since are lost."""
    network = make_network()
    lookahead = Lookahead(network, FIELDS, steps)
    fast = {k: v.double().clone() for k, v in network.state_dict().items()}
    slow = {k: v.clone() for k, v in fast.items()}
    for step in range(1, steps + 1):
        before = {k: v.double().clone() for k, v in network.state_dict().items()}
        walk(network)
        moved = {k: v.double() - before[k] for k, v in network.state_dict().items()}
        lookahead.update(step)
        for name, value in fast.items():
            value += moved[name]
            if name.endswith("num_batches_tracked"):
                continue
            alpha = 0.95**5 * (step / steps) ** 3
            if step % 5 == 0:
                slow[name] = alpha * slow[name] + (1 - alpha) * value
                fast[name] = slow[name].clone()
            if step == steps:
                fast[name] = slow[name].clone()
        for name, value in network.state_dict().items():
            torch.testing.assert_close(value.double(), fast[name], rtol=1e-5, atol=1e-5)
    counted = network.state_dict()["1.num_batches_tracked"]
    assert int(counted) == steps
    assert "1.num_batches_tracked" not in lookahead.state()


def test_the_buffers_of_batch_norm_are_averaged():
    network = make_network()
    lookahead = Lookahead(network, FIELDS, 10)
    network[1].running_mean += 8
    lookahead.update(5)
    alpha = 0.95**5 / 8
    assert network[1].running_mean.tolist() == pytest.approx([8 * (1 - alpha)] * 4)


def test_between_two_averages_nothing_changes():
    network = make_network()
    lookahead = Lookahead(network, FIELDS, 100)
    walk(network)
    before = {k: v.clone() for k, v in network.state_dict().items()}
    for done in (1, 4, 6, 99):
        lookahead.update(done)
    assert all(torch.equal(v, before[k]) for k, v in network.state_dict().items())


def test_a_run_with_fewer_steps_than_an_average_needs_is_refused():
    """It would end with its initial weights."""
    message = r"lookahead_steps is 5, but the run has only 4 steps: .* at most 4; 0 turns it off"
    with pytest.raises(TrActValueError, match=message):
        Lookahead(make_network(), FIELDS, 4)
    network = make_network()
    before = network[0].weight.detach().clone()
    lookahead = Lookahead(network, FIELDS, 5)
    walk(network)
    lookahead.update(5)
    assert not torch.equal(network[0].weight, before)


def test_a_frozen_weight_stays_bit_for_bit():
    network = make_network()
    before = network[0].weight.detach().clone()
    lookahead = Lookahead(network, FIELDS, 100)
    for done in range(5, 101, 5):
        lookahead.update(done)
    assert torch.equal(network[0].weight, before)


def test_the_state_of_a_checkpoint_continues_and_another_networks_is_refused():
    one, other = make_network(), make_network()
    first, second = Lookahead(one, FIELDS, 20), Lookahead(other, FIELDS, 20)
    walk(one)
    first.update(5)
    other.load_state_dict(one.state_dict())
    second.load({name: value.clone() for name, value in first.state().items()})
    for network, lookahead in ((one, first), (other, second)):
        torch.manual_seed(7)
        walk(network)
        lookahead.update(10)
    assert all(torch.equal(v, other.state_dict()[k]) for k, v in one.state_dict().items())
    with pytest.raises(TrActValueError, match="no lookahead average of this network"):
        second.load({"weight": torch.zeros(2)})
