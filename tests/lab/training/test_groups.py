"""Rates of groups: decoupled units and the biases of norms, against the published formulas."""

import pytest
import torch
from torch import nn

from trainact.errors import TrActValueError
from trainact.lab.models.networks.speed import SpeedNet
from trainact.lab.recipes.recipe import OptimizerFields
from trainact.lab.training.groups import find_norm_biases, scale_groups
from trainact.lab.training.optimizers import make_optimizers, set_rate

SPEED = OptimizerFields(
    name="sgd", units="decoupled", lr=11.5, momentum=0.85, nesterov=True, weight_decay=0.0153,
    reduction="sum", norm_bias_lr=64.0,
)  # fmt: skip
BATCH = 1024


def make_network():
    torch.manual_seed(0)
    return SpeedNet(10, widths=(24, 24, 24)).double()


def make_scaled(network, fields, batch_size=BATCH):
    first = ["stem"] if hasattr(network, "stem") else ["0"]
    (optimizer,) = make_optimizers(network, first, fields)
    scale_groups([optimizer], network, fields, batch_size)
    return optimizer


def find_group(optimizer, parameter):
    (group,) = [g for g in optimizer.param_groups if any(p is parameter for p in g["params"])]
    return group


def test_the_published_rate_and_decay_are_torchs():
    network = make_network()
    optimizer = make_scaled(network, SPEED)
    set_rate([optimizer], SPEED.lr)
    images = 1024 * (1 + 1 / (1 - 0.85))
    rate, decay = 11.5 / images, 0.0153 * 1024 / images
    norm_biases = {id(p) for name, p in network.named_parameters() if ".norm" in name}
    assert len(norm_biases) == 6
    for parameter in network.parameters():
        group = find_group(optimizer, parameter)
        expected = rate * (64 if id(parameter) in norm_biases else 1)
        assert group["lr"] == pytest.approx(expected, rel=1e-12)
        assert group["weight_decay"] == pytest.approx(decay / expected, rel=1e-12)
    assert sum(len(g["params"]) for g in optimizer.param_groups) == len(list(network.parameters()))


def test_steps_are_those_of_a_loop_over_the_published_formulas():
    """Nesterov SGD with the decay term in the gradient; the schedule scales both."""
    network, twin = make_network(), make_network()
    fields = SPEED
    optimizer = make_scaled(network, fields, batch_size=512)
    scale = 1024 * (1 + 1 / (1 - 0.85))
    momenta = {name: torch.zeros_like(p) for name, p in twin.named_parameters()}
    for factor in (0.2, 0.7, 1.0):
        set_rate([optimizer], fields.lr * factor)
        gradients = {name: torch.randn_like(p) for name, p in twin.named_parameters()}
        for name, parameter in network.named_parameters():
            parameter.grad = gradients[name].clone()
        optimizer.step()
        with torch.no_grad():
            for name, weight in twin.named_parameters():
                rate = 11.5 / scale * (64 if ".norm" in name else 1)
                decay_term = 0.0153 * 512 / scale
                gradient = gradients[name] + decay_term / rate * weight
                momenta[name] = 0.85 * momenta[name] + gradient
                weight -= factor * rate * (gradient + 0.85 * momenta[name])
    for ours, theirs in zip(network.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-15)


def test_a_multiplier_of_the_first_layer_does_not_change_its_decay():
    import dataclasses

    network = make_network()
    for factor in (1.0, 0.1, 10.0):
        fields = dataclasses.replace(SPEED, first_layer_lr=factor)
        group = find_group(make_scaled(network, fields), network.stem.weight)
        rate = SPEED.lr * group["lr_scale"]
        images = 1024 * (1 + 1 / (1 - 0.85))
        assert rate == pytest.approx(11.5 / images * factor)
        assert rate * group["weight_decay"] == pytest.approx(0.0153 * 1024 / images)


def test_vectors_without_decay_stay_without():
    import dataclasses

    network = make_network()
    fields = dataclasses.replace(SPEED, decay_vectors=False)
    optimizer = make_scaled(network, fields)
    for name, parameter in network.named_parameters():
        group = find_group(optimizer, parameter)
        assert (group["weight_decay"] == 0) == name.endswith("bias")
        assert group["lr_scale"] > 0


def test_the_biases_of_norms_have_their_multiplier_with_any_optimizer():
    network = nn.Sequential(nn.Conv2d(3, 4, 1), nn.GroupNorm(2, 4), nn.Conv2d(4, 4, 1),
                            nn.BatchNorm2d(4), nn.Flatten(), nn.LayerNorm(4, bias=False))  # fmt: skip
    found = find_norm_biases(network)
    assert [id(p) for p in found] == [id(network[1].bias), id(network[3].bias)]
    optimizer = make_scaled(network, OptimizerFields(name="adam", lr=1e-3, norm_bias_lr=5.0))
    for parameter in network.parameters():
        scaled = any(parameter is bias for bias in found)
        assert find_group(optimizer, parameter)["lr_scale"] == (5.0 if scaled else 1.0)
        assert find_group(optimizer, parameter)["weight_decay"] == 0


def test_the_usual_fields_change_nothing():
    network = make_network()
    fields = OptimizerFields(weight_decay=0.1)
    (optimizer,) = make_optimizers(network, ["stem"], fields)
    before = [{**group} for group in optimizer.param_groups]
    scale_groups([optimizer], network, fields, BATCH)
    assert optimizer.param_groups == before


def test_another_optimizer_keeps_its_own_rate():
    network = make_network()
    own = torch.optim.AdamW([{"params": [network.stem.weight], "lr_scale": 0.3}], lr=1.0)
    scale_groups([own], network, SPEED, BATCH)
    assert own.param_groups[0]["lr_scale"] == 0.3


def test_a_multiplier_without_norms_is_refused():
    network = nn.Sequential(nn.Conv2d(3, 4, 1))
    with pytest.raises(TrActValueError, match="norm_bias_lr is 64, but no batch or layer norm"):
        scale_groups([], network, SPEED, BATCH)
