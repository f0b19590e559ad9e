"""The paper's networks: their size, their layers and their first layer."""

import functools
import re
import subprocess
import sys
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import trainact
from network_cases import build_without_values, count_parameters, list_layers
from slow_cases import mark_slow
from trainact.errors import TrActValueError
from trainact.lab.models import networks
from trainact.lab.models.networks import NETWORKS, build_network
from trainact.lab.torchvision_import import import_torchvision


class Sheet(NamedTuple):
    """What was counted in the network that the paper's experiments used."""

    parameters: int
    mega_macs: float
    first: str
    """Kernel, padding, channels and bias of the first convolution."""
    convs: int
    biased: int
    norms: int
    features: int
    """Inputs of the last layer."""


SHEET = {
    "squeezenet": Sheet(781_156, 53.3, "3x3 p1 96 bias", 26, 26, 25, 512),
    "mobilenet": Sheet(3_315_428, 46.4, "3x3 p1 32", 27, 13, 27, 1024),
    "mobilenetv2": Sheet(2_369_380, 64.9, "1x1 p1 32 bias", 54, 54, 53, 1280),
    "shufflenet": Sheet(1_012_108, 41.7, "3x3 p1 24 bias", 49, 49, 49, 960),
    "shufflenetv2": Sheet(1_360_896, 43.7, "3x3 p1 24 bias", 56, 56, 56, 1024),
    "vgg11": Sheet(28_518_244, 172.0, "3x3 p1 64 bias", 8, 8, 8, 4096),
    "vgg13": Sheet(28_703_140, 247.5, "3x3 p1 64 bias", 10, 10, 10, 4096),
    "vgg16": Sheet(34_015_396, 332.5, "3x3 p1 64 bias", 13, 13, 13, 4096),
    "vgg19": Sheet(39_327_652, 417.4, "3x3 p1 64 bias", 16, 16, 16, 4096),
    "densenet121": Sheet(7_048_548, 888.4, "3x3 p1 64", 120, 0, 120, 1024),
    "densenet161": Sheet(26_681_188, 2467.7, "3x3 p1 96", 160, 0, 160, 2208),
    "densenet201": Sheet(18_277_220, 1364.1, "3x3 p1 64", 200, 0, 200, 1920),
    "googlenet": Sheet(6_402_564, 532.0, "3x3 p1 64", 66, 63, 66, 1024),
    "inceptionv3": Sheet(22_318_148, 3390.7, "3x3 p1 32", 94, 0, 94, 2048),
    "inceptionv4": Sheet(41_296_516, 7503.1, "3x3 p0 32", 149, 0, 149, 1536),
    "inceptionresnetv2": Sheet(65_442_072, 9293.6, "3x3 p0 32", 152, 40, 132, 2048),
    "xception": Sheet(21_013_988, 1129.9, "3x3 p1 32", 74, 4, 40, 2048),
    "resnet18": Sheet(11_220_132, 555.5, "3x3 p1 64", 20, 0, 20, 512),
    "resnet34": Sheet(21_328_292, 1159.4, "3x3 p1 64", 36, 0, 36, 512),
    "resnet50": Sheet(23_705_252, 1298.0, "3x3 p1 64", 53, 0, 53, 2048),
    "resnet101": Sheet(42_697_380, 2510.2, "3x3 p1 64", 104, 0, 104, 2048),
    "resnet152": Sheet(58_341_028, 3722.3, "3x3 p1 64", 155, 0, 155, 2048),
    "resnext50": Sheet(14_788_772, 750.9, "3x3 p1 64", 53, 0, 53, 2048),
    "resnext101": Sheet(25_303_204, 1419.4, "3x3 p1 64", 104, 0, 104, 2048),
    "resnext152": Sheet(33_343_652, 1930.6, "3x3 p1 64", 143, 0, 143, 2048),
    "seresnet18": Sheet(11_314_012, 555.6, "3x3 p1 64 bias", 20, 20, 20, 512),
    "seresnet34": Sheet(21_498_000, 1159.6, "3x3 p1 64 bias", 36, 36, 36, 512),
    "seresnet50": Sheet(26_262_804, 1300.5, "3x3 p1 64 bias", 53, 53, 53, 2048),
    "seresnet101": Sheet(47_527_764, 2514.9, "3x3 p1 64 bias", 104, 104, 104, 2048),
    "seresnet152": Sheet(65_045_780, 3728.9, "3x3 p1 64 bias", 155, 155, 155, 2048),
    "nasnet": Sheet(5_221_624, 657.2, "3x3 p1 44", 337, 264, 183, 1056),
    "wideresnet-40-10": Sheet(55_914_020, 8074.5, "3x3 p1 16 bias", 40, 40, 37, 640),
    "stochasticdepth18": Sheet(11_224_932, 555.5, "3x3 p1 64 bias", 20, 20, 20, 512),
    "stochasticdepth34": Sheet(21_336_804, 1159.4, "3x3 p1 64 bias", 36, 36, 36, 512),
    "stochasticdepth50": Sheet(23_705_316, 1298.0, "3x3 p1 64 bias", 53, 1, 53, 2048),
    "stochasticdepth101": Sheet(42_697_444, 2510.2, "3x3 p1 64 bias", 104, 1, 104, 2048),
}
NEVER_TRAINED = {"nasnet": (887_568, 28, 28, 16)}
"""Parameters, convolutions, biases and norms that the original has but never uses; ours has none."""
ONE_OF_EACH = [
    *("squeezenet", "mobilenet", "mobilenetv2", "shufflenet", "shufflenetv2", "vgg11"),
    *("densenet121", "googlenet", "inceptionv3", "inceptionv4", "inceptionresnetv2", "xception"),
    *("resnet18", "resnet50", "resnext50", "seresnet18", "nasnet", "wideresnet-40-10"),
    *("stochasticdepth18", "stochasticdepth50", "resnet18-tract", "vit-cifar"),
    "speed",
]


def test_the_registry_holds_the_table_and_three_networks_for_cifar10():
    imagenet = {"resnet18-imagenet", "deit3-small", "deit3-base"}
    assert set(NETWORKS) == {*SHEET, *imagenet, "resnet18-tract", "vit-cifar", "speed"}
    assert len(SHEET) == 36


def test_resnet18_imagenet_is_torchvisions():
    ours = build_network("resnet18-imagenet", 1000)
    theirs = import_torchvision().models.resnet18()
    assert [p.shape for p in ours.parameters()] == [p.shape for p in theirs.parameters()]
    ours.load_state_dict(
        dict(zip(ours.state_dict(), theirs.state_dict().values(), strict=True))
    )  # fmt: skip
    images = torch.randn(2, 3, 64, 64)
    assert torch.allclose(ours.eval()(images), theirs.eval()(images), atol=1e-5)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_has_the_parameters_of_the_registry_and_its_module_cites_the_paper(name):
    network = build_without_values(name)
    assert count_parameters(network) == NETWORKS[name].parameters
    module = "deit3" if name.startswith("deit3") else type(network).__module__.rpartition(".")[2]
    cited = getattr(networks, module).__doc__
    assert re.search(r"\n\w.*: .*,\s20(1[4-9]|2[0-4])\.\n", cited, re.DOTALL)


@pytest.mark.parametrize("name", SHEET)
def test_a_network_has_the_layers_of_the_sheet(name):
    sheet, network = SHEET[name], build_without_values(name)
    convs = list_layers(network, nn.Conv2d)
    counted = (
        count_parameters(network),
        len(convs),
        sum(conv.bias is not None for conv in convs),
        len(list_layers(network, nn.BatchNorm2d)),
    )
    unused = NEVER_TRAINED.get(name, (0, 0, 0, 0))
    expected = (sheet.parameters, sheet.convs, sheet.biased, sheet.norms)
    assert counted == tuple(there - never for there, never in zip(expected, unused, strict=True))
    last = list_layers(network, (nn.Conv2d, nn.Linear))[-1]
    assert last.weight.shape[:2] == (100, sheet.features)


@pytest.mark.parametrize("name", mark_slow(SHEET, 8))
def test_a_forward_takes_the_multiply_adds_of_the_sheet(name):
    network = build_without_values(name)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        logits = network(torch.empty(2, 3, 32, 32, device="meta"))
    assert logits.shape == (2, 100)
    macs = counter.get_total_flops() / 2 / len(logits)
    assert macs == pytest.approx(1e6 * SHEET[name].mega_macs, rel=0.002)
    assert macs == NETWORKS[name].multiply_adds


@pytest.mark.parametrize("name", mark_slow(SHEET, 8))
def test_the_first_layer_is_found_and_is_the_sheets(name):
    network = build_without_values(name)
    (found,) = trainact.find_first_layers(network, torch.empty(1, 3, 32, 32))
    layer = network.get_submodule(found)
    assert layer is list_layers(network, nn.Conv2d)[0]
    kernel = "x".join(map(str, layer.kernel_size))
    bias = " bias" if layer.bias is not None else ""
    assert f"{kernel} p{layer.padding[0]} {layer.out_channels}{bias}" == SHEET[name].first
    assert (layer.in_channels, layer.stride, layer.groups) == (3, (1, 1), 1)


@functools.cache
def run_backward(name: str) -> tuple[torch.Size, list[str]]:
    """Return the logits' shape for 40 grey pixels and 7 classes, and what got no gradient."""
    with torch.device("meta"):
        network = build_network(name, 7, in_channels=1, image_size=40)
        network.train(not name.startswith("stochasticdepth"))  # which drops some in training
        logits = network(torch.empty(2, 1, 40, 40))
        logits.sum().backward()
    return logits.shape, [key for key, p in network.named_parameters() if p.grad is None]


@pytest.mark.parametrize("name", mark_slow(ONE_OF_EACH, 8))
def test_classes_channels_and_size_of_the_image_are_free(name):
    assert run_backward(name)[0] == (2, 7)


@pytest.mark.parametrize("name", mark_slow(ONE_OF_EACH, 8))
def test_every_parameter_gets_a_gradient(name):
    assert run_backward(name)[1] == []


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("squeezenet", {}),
        ("shufflenet", {}),
        ("shufflenetv2", {}),
        ("mobilenetv2", {}),
        ("resnet18-tract", {"width": 8}),
        ("speed", {"widths": [24, 32, 32]}),
        ("vit-cifar", {"depth": 2, "patch_norm": "dual"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_step_with_tract_has_finite_gradients_everywhere(name, arguments):
    torch.manual_seed(0)
    network = build_network(name, 10, **arguments)
    images = torch.randn(2, 3, 32, 32)
    (found,) = trainact.apply_tract(network, example_input=images)
    nn.functional.cross_entropy(network(images), torch.tensor([3, 8])).backward()
    assert all(p.grad.isfinite().all() for p in network.parameters())
    assert network.get_submodule(found).weight.grad.abs().max() > 0


def test_the_message_for_an_unknown_name_has_similar_names():
    with pytest.raises(
        TrActValueError, match=r"unknown network 'resnet19'; did you mean 'resnet18'"
    ):
        build_network("resnet19", 10)
    with pytest.raises(TrActValueError, match="there are resnet18-tract, "):
        build_network("§", 10)


def test_an_unknown_argument_is_answered_with_those_accepted():
    with pytest.raises(
        TrActValueError, match=r"'resnet18-tract' does not accept depth; .*accepts width"
    ):
        build_network("resnet18-tract", 10, depth=3)
    with pytest.raises(TrActValueError, match="image_size it accepts no arguments"):
        build_network("vgg11", 10, width=3)
    with pytest.raises(TrActValueError, match="patches, width, depth, heads, patch_norm"):
        build_network("vit-cifar", 10, layers=3)


def test_importing_the_registry_needs_torch_alone():
    heavy = ("torchvision", "timm", "transformers", "matplotlib", "rich")
    code = (
        f"import sys, trainact.lab.models.networks; print([m for m in {heavy} if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
