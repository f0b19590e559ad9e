"""The fast network for CIFAR-10: its layers, their start and its size."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import trainact
from network_cases import count_parameters, list_layers
from trainact.errors import TrActValueError
from trainact.lab.models.networks import build_network
from trainact.lab.models.networks.speed import BiasNorm, SpeedNet


@pytest.mark.parametrize(
    ("widths", "parameters"),
    [((64, 256, 256), 1_971_640), ((64, 128, 128), 569_016), ((32, 64, 64), 146_424)],
)
def test_the_parameters_are_those_of_the_widths(widths, parameters):
    network = build_network("speed", 10, widths=list(widths))
    assert count_parameters(network) == parameters
    channels = [conv.out_channels for conv in list_layers(network, nn.Conv2d)]
    assert channels == [24, *(width for width in widths for _ in range(2))]


def compute_by_hand(network, images):
    """Compute logits from the weights alone, with batch statistics and the published constants."""
    state = dict(network.named_parameters())

    def normalise(x, bias):
        mean = x.mean((0, 2, 3), keepdim=True)
        variance = ((x - mean) ** 2).mean((0, 2, 3), keepdim=True)
        return (x - mean) / (variance + 1e-12).sqrt() + bias[:, None, None]

    x = F.gelu(F.conv2d(images, state["stem.weight"], state["stem.bias"]))
    for group in range(3):
        name = f"groups.{group}"
        x = F.max_pool2d(F.conv2d(x, state[f"{name}.conv1.weight"], padding=1), 2)
        x = F.gelu(normalise(x, state[f"{name}.norm1.bias"]))
        x = F.conv2d(x, state[f"{name}.conv2.weight"], padding=1)
        x = F.gelu(normalise(x, state[f"{name}.norm2.bias"]))
    assert x.shape[2:] == (3, 3)
    return F.max_pool2d(x, 3).flatten(1) @ state["head.weight"].T / 9


def test_the_forward_is_the_published_one(cifar_images):
    torch.manual_seed(0)
    network = SpeedNet(10, widths=(24, 32, 40)).double()
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.endswith("bias"):
                parameter.normal_()
    images = (cifar_images - 120) / 64
    torch.testing.assert_close(network(images), compute_by_hand(network, images))


def test_convolutions_start_as_the_identity_on_their_first_inputs():
    torch.manual_seed(0)
    network = SpeedNet(10, widths=(32, 64, 64))
    assert network.stem.bias.eq(0).all()
    x = torch.randn(2, 24, 8, 8)
    for conv in list_layers(network.groups, nn.Conv2d):
        assert conv.bias is None
        out = conv(torch.cat([x, torch.randn(2, conv.in_channels - 24, 8, 8)], dim=1))
        torch.testing.assert_close(out[:, :24], x)
    drawn = network.groups[0].conv1.weight[24:]
    assert drawn.std().item() == pytest.approx((3 * 24 * 9) ** -0.5, rel=0.1)


def test_the_norm_has_a_bias_and_no_weight():
    norm = BiasNorm(5)
    assert [name for name, _ in norm.named_parameters()] == ["bias"]
    x = 3 + 2 * torch.randn(64, 5, 4, 4)
    out = norm(x)
    torch.testing.assert_close(out.mean((0, 2, 3)), torch.zeros(5), atol=1e-5, rtol=0)
    torch.testing.assert_close(norm.running_mean, 0.4 * x.mean((0, 2, 3)))
    norms = list_layers(SpeedNet(), nn.BatchNorm2d)
    assert [(norm.eps, norm.momentum) for norm in norms] == [(1e-12, 0.4)] * 6


def test_the_first_layer_is_found_and_has_no_norm():
    network = SpeedNet(10, widths=(32, 64, 64))
    assert trainact.find_first_layers(network, torch.zeros(1, 3, 32, 32)) == ["stem"]
    assert (network.stem.kernel_size, network.stem.padding) == ((2, 2), (0, 0))
    assert isinstance(network.gelu, nn.GELU)


@pytest.mark.parametrize("widths", [(32, 64), (32, 64, 64, 64), (32, 0, 64), (32, 64.5, 64)])
def test_widths_are_three_positive_numbers(widths):
    with pytest.raises(TrActValueError, match=r"three positive whole numbers.*; got \["):
        SpeedNet(widths=widths)
