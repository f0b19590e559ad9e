"""Stems, norms, blocks and gates of the paper's networks."""

import math

import pytest
import torch
from torch import nn

from network_cases import build_without_values, count_parameters, list_layers
from trainact.errors import TrActValueError
from trainact.lab.models.networks import build_network
from trainact.lab.models.networks.layers import Concat, ConvNorm
from trainact.lab.models.networks.nasnet import Halve
from trainact.lab.models.networks.resnet import (
    BasicBlock,
    BlockOptions,
    Bottleneck,
    ResidualBlock,
    SqueezeExcite,
)
from trainact.lab.models.networks.shufflenet import shuffle_channels
from trainact.lab.models.networks.vit import CifarViT, DualPatchNorm, PatchNorm
from trainact.lab.models.networks.wide_resnet import WideBlock, WideResNet
from trainact.lab.torchvision_import import import_torchvision


@pytest.mark.parametrize("name", ["resnet18-tract", "resnet18", "resnet50"])
def test_resnets_compute_what_torchvisions_do_but_for_the_stem(name):
    models = import_torchvision().models
    torch.manual_seed(0)
    own = build_network(name, 10).eval()
    theirs = getattr(models, name.removesuffix("-tract"))(num_classes=10).eval()
    theirs.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    if name != "resnet18-tract":
        theirs.maxpool = nn.Identity()
    values = dict(zip(own.state_dict(), theirs.state_dict().values(), strict=True))
    own.load_state_dict(values)
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(own(images), theirs(images))


def test_the_cifar10_resnet_is_drawn_for_its_fan_out():
    torch.manual_seed(0)
    network = build_network("resnet18-tract", 10)
    assert count_parameters(network) == 11_173_962
    for conv in list_layers(network, nn.Conv2d):
        std = math.sqrt(2 / (conv.out_channels * math.prod(conv.kernel_size)))
        assert conv.weight.std().item() == pytest.approx(std, rel=0.1)
    assert network.pool(network.stem(torch.zeros(1, 3, 32, 32))).shape == (1, 64, 16, 16)
    narrow = build_network("resnet18-tract", 10, width=16)
    assert [stage[-1].branch[-1].conv.out_channels for stage in narrow.stages] == [16, 32, 64, 128]


def test_the_vit_keeps_its_size_unless_both_norms_are_asked_for():
    assert count_parameters(CifarViT()) == 6_268_810
    assert count_parameters(CifarViT(patch_norm="patch")) == 6_268_810
    assert count_parameters(CifarViT(patch_norm="dual")) == 6_268_810 + 2 * 48 + 2 * 384
    with pytest.raises(
        TrActValueError, match="patch_norm must be one of none, patch, dual; got 'both'"
    ):
        CifarViT(patch_norm="both")


def test_patches_are_brought_to_mean_0_and_deviation_1_before_the_embedding():
    torch.manual_seed(0)
    patches = 50 + 20 * torch.randn(3, 5, 48)
    layer = PatchNorm(nn.Linear(48, 8))
    seen = []
    layer.embed.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    assert layer(patches).shape == (3, 5, 8)
    torch.testing.assert_close(seen[0].mean(2), torch.zeros(3, 5), atol=1e-5, rtol=0)
    torch.testing.assert_close(seen[0].std(2, correction=0), torch.ones(3, 5))
    assert layer(torch.full((1, 1, 48), 7.0)).isfinite().all()


def test_dual_patch_norm_normalises_tokens_too():
    torch.manual_seed(0)
    layer = DualPatchNorm(nn.Linear(48, 64))
    tokens = layer(50 + 20 * torch.randn(3, 5, 48))
    torch.testing.assert_close(tokens.mean(2), torch.zeros(3, 5), atol=1e-5, rtol=0)
    with torch.no_grad():
        layer.after.bias.fill_(2.0)
    torch.testing.assert_close(layer(torch.randn(1, 1, 48)).mean(), torch.tensor(2.0))


@pytest.mark.parametrize("name", ["stochasticdepth18", "stochasticdepth101"])
def test_survival_falls_linearly_from_1_to_one_half(name):
    blocks = list_layers(build_without_values(name), ResidualBlock)
    chances = torch.tensor([block.survival for block in blocks])
    torch.testing.assert_close(chances, torch.linspace(1, 0.5, len(blocks)))


@pytest.mark.parametrize("relu", [True, False])
def test_a_block_is_left_out_as_often_as_it_should_and_scaled_afterwards(relu):
    torch.manual_seed(0)
    block = BasicBlock(4, 4, options=BlockOptions(survival=0.7, relu=relu))
    x = torch.randn(2, 4, 6, 6)
    kept = x.clone()
    finish = torch.relu if relu else (lambda total: total)
    present = [not torch.equal(block(x), finish(x)) for _ in range(400)]
    assert sum(present) / 400 == pytest.approx(0.7, abs=0.08)
    torch.testing.assert_close(x, kept)
    block.eval()
    torch.testing.assert_close(block(x), finish(x + 0.7 * block.branch(x)))
    assert "survival=0.7" in repr(block)


@pytest.mark.parametrize("name", ["stochasticdepth18", "vgg11", "wide", "googlenet"])
def test_what_is_dropped_in_training_is_there_in_evaluation(name):
    torch.manual_seed(0)
    wide = WideResNet(10, depth=10, widening=1)
    network = wide if name == "wide" else build_network(name, 10)
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        trained = torch.stack([network.train()(images) for _ in range(4)])
        first, second = (network.eval()(images) for _ in range(2))
    assert not torch.equal(trained[0], trained[-1])
    assert torch.equal(first, second)


def test_squeeze_and_excitation_gates_channels_by_averages_of_all():
    torch.manual_seed(0)
    gate, x = SqueezeExcite(8, reduction=2), torch.randn(2, 8, 5, 5)
    weights = gate(x) / x
    torch.testing.assert_close(weights, weights[:, :, :1, :1].expand_as(weights))
    assert 0 < weights.min() < weights.max() < 1
    changed = x.clone()
    changed[:, 0] += 3  # one channel's average moves the weights of others
    assert not torch.allclose((gate(changed) / changed)[:, 1:], weights[:, 1:])
    with torch.no_grad():
        gate.excite.bias.fill_(-200.0)
    assert gate(x).abs().max() == 0


def test_a_closed_gate_leaves_the_shortcut():
    torch.manual_seed(0)
    block = Bottleneck(16, 4, options=BlockOptions(bias=True, reduction=4))
    with torch.no_grad():
        block.branch[-1].excite.bias.fill_(-200.0)
    x = torch.randn(2, 16, 6, 6)
    torch.testing.assert_close(block(x), x.relu())


def test_resnext_groups_the_first_two_convolutions_of_a_block():
    for stage, blocks in enumerate(build_without_values("resnext50").stages):
        narrow, square, wide = (part.conv for part in blocks[-1].branch)
        assert (narrow.groups, square.groups, wide.groups) == (32, 32, 1)
        assert square.out_channels == 32 * 4 * 2**stage


def test_a_shuffle_is_a_permutation_that_another_shuffle_undoes():
    x = torch.randn(2, 12, 3, 3)
    shuffled = shuffle_channels(x, groups=3)
    assert not torch.equal(shuffled, x)
    assert torch.equal(shuffle_channels(shuffled, groups=4), x)
    position = torch.arange(12).reshape(1, 12, 1, 1)
    order = shuffle_channels(position, groups=3).flatten()
    assert sorted(order.tolist()) == list(range(12))
    assert (order[:3] // 4).tolist() == [0, 1, 2]  # neighbours come from different groups
    assert torch.equal(shuffled, x[:, order])


@pytest.mark.parametrize("size", [6, 7])
def test_halving_takes_every_second_pixel_and_its_diagonal_neighbour(size):
    halve = Halve(1, 2).eval()
    with torch.no_grad():
        for conv in (halve.even, halve.odd):
            conv.weight.fill_(1.0)
            conv.bias.zero_()
    x = torch.arange(1.0, 1 + size**2).reshape(1, 1, size, size)
    even, odd = halve(x)[0] * math.sqrt(1 + halve.norm.eps)
    torch.testing.assert_close(even, x[0, 0, ::2, ::2])
    rest = x[0, 0, 1::2, 1::2]
    torch.testing.assert_close(odd[: len(rest), : len(rest)], rest)
    assert odd.shape == even.shape
    assert odd[len(rest) :].abs().sum() == 0


def test_a_dense_layer_keeps_what_it_got_and_adds_its_growth():
    torch.manual_seed(0)
    dense = build_network("densenet121", 10).blocks[0][0]
    x = torch.randn(1, 64, 4, 4)
    assert isinstance(dense, Concat)
    assert dense(x).shape == (1, 96, 4, 4)
    assert torch.equal(dense(x)[:, :64], x)


@pytest.mark.parametrize("kernel", [1, 3, 5, (1, 7), (7, 1)])
def test_a_convolution_keeps_the_size_unless_padding_is_given(kernel):
    x = torch.zeros(1, 2, 9, 11, device="meta")
    with torch.device("meta"):
        assert ConvNorm(2, 4, kernel)(x).shape == (1, 4, 9, 11)
        assert ConvNorm(2, 4, 3, padding=0)(x).shape == (1, 4, 7, 9)


def test_a_wide_block_normalises_first_and_adds_the_input_itself():
    torch.manual_seed(0)
    block = WideBlock(4, 4, 1, dropout=0.0)
    with torch.no_grad():
        block.branch[-1].weight.zero_()
        block.branch[-1].bias.zero_()
    x = torch.randn(2, 4, 6, 6)
    assert torch.equal(block(x), x)


def test_a_depth_that_no_blocks_make_is_refused():
    with pytest.raises(TrActValueError, match=r"depth takes 10, 16, .* got 12"):
        WideResNet(depth=12)


def test_the_class_token_of_deit3_begins_as_upstreams():
    torch.manual_seed(0)
    token = build_network("deit3-small", 10).cls_token
    assert token.std().item() == pytest.approx(0.02, rel=0.15)


def test_an_image_that_no_patches_make_is_refused():
    with pytest.raises(TrActValueError, match="30 pixels cannot be divided into 8 x 8 patches"):
        CifarViT(image_size=30)
    with pytest.raises(TrActValueError, match="heads must divide the width; got 12 and 64"):
        CifarViT(width=64)
