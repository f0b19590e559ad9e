"""Networks by name: the paper's for CIFAR, those for ImageNet that torchvision lacks, and SpeedNet.

All take ``num_classes`` and ``in_channels``, the channels of the image, and return logits
[N, num_classes] of images [N, in_channels, H, W].
"""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import nn

from trainact.errors import TrActValueError
from trainact.lab.models.networks import (
    deit3,
    densenet,
    inception,
    mobilenet,
    nasnet,
    resnet,
    shufflenet,
    speed,
    squeezenet,
    vgg,
    vit,
    wide_resnet,
    xception,
)
from trainact.lab.text import describe_unknown

__all__ = ["NETWORKS", "Network", "build_network"]


class Network(NamedTuple):
    """The builder of a network and its size; its module cites the paper."""

    build: Callable[..., nn.Module]  # takes num_classes, in_channels and further keywords
    parameters: int  # at 100 classes and 3 channels of 32 x 32 pixels
    multiply_adds: int  # of the forward pass of one such image


NETWORKS: dict[str, Network] = {
    "resnet18-tract": Network(resnet.resnet18_tract, 11_220_132, 140_232_704),
    "vit-cifar": Network(vit.CifarViT, 6_303_460, 426_486_528),
    "speed": Network(speed.SpeedNet, 1_994_680, 118_170_400),
    "resnet18-imagenet": Network(resnet.resnet18_imagenet, 11_227_812, 37_062_656),
    "deit3-small": Network(deit3.deit3_small, 21_639_268, 107_616_768),
    "deit3-base": Network(deit3.deit3_base, 85_745_764, 427_570_176),
    "squeezenet": Network(squeezenet.SqueezeNet, 781_156, 53_280_768),
    "mobilenet": Network(mobilenet.MobileNet, 3_315_428, 46_446_592),
    "mobilenetv2": Network(mobilenet.MobileNetV2, 2_369_380, 64_947_264),
    "shufflenet": Network(shufflenet.ShuffleNet, 1_012_108, 41_693_952),
    "shufflenetv2": Network(shufflenet.ShuffleNetV2, 1_360_896, 43_675_520),
    "vgg11": Network(vgg.vgg11, 28_518_244, 172_048_384),
    "vgg13": Network(vgg.vgg13, 28_703_140, 247_545_856),
    "vgg16": Network(vgg.vgg16, 34_015_396, 332_480_512),
    "vgg19": Network(vgg.vgg19, 39_327_652, 417_415_168),
    "densenet121": Network(densenet.densenet121, 7_048_548, 888_442_880),
    "densenet161": Network(densenet.densenet161, 26_681_188, 2_467_749_504),
    "densenet201": Network(densenet.densenet201, 18_277_220, 1_364_061_696),
    "googlenet": Network(inception.GoogLeNet, 6_402_564, 531_976_192),
    "inceptionv3": Network(inception.InceptionV3, 22_318_148, 3_390_711_808),
    "inceptionv4": Network(inception.InceptionV4, 41_296_516, 7_503_132_032),
    "inceptionresnetv2": Network(inception.InceptionResNetV2, 65_442_072, 9_293_562_640),
    "xception": Network(xception.Xception, 21_013_988, 1_129_865_728),
    "resnet18": Network(resnet.resnet18, 11_220_132, 555_468_800),
    "resnet34": Network(resnet.resnet34, 21_328_292, 1_159_448_576),
    "resnet50": Network(resnet.resnet50, 23_705_252, 1_298_014_208),
    "resnet101": Network(resnet.resnet101, 42_697_380, 2_510_168_064),
    "resnet152": Network(resnet.resnet152, 58_341_028, 3_722_321_920),
    "resnext50": Network(resnet.resnext50, 14_788_772, 750_919_680),
    "resnext101": Network(resnet.resnext101, 25_303_204, 1_419_386_880),
    "resnext152": Network(resnet.resnext152, 33_343_652, 1_930_567_680),
    "seresnet18": Network(resnet.seresnet18, 11_314_012, 555_555_840),
    "seresnet34": Network(resnet.seresnet34, 21_498_000, 1_159_605_760),
    "seresnet50": Network(resnet.seresnet50, 26_262_804, 1_300_529_152),
    "seresnet101": Network(resnet.seresnet101, 47_527_764, 2_514_911_232),
    "seresnet152": Network(resnet.seresnet152, 65_045_780, 3_728_900_096),
    "nasnet": Network(nasnet.NASNet, 4_334_056, 657_224_832),
    "wideresnet-40-10": Network(wide_resnet.wideresnet_40_10, 55_914_020, 8_074_541_568),
    "stochasticdepth18": Network(resnet.stochasticdepth18, 11_224_932, 555_468_800),
    "stochasticdepth34": Network(resnet.stochasticdepth34, 21_336_804, 1_159_448_576),
    "stochasticdepth50": Network(resnet.stochasticdepth50, 23_705_316, 1_298_014_208),
    "stochasticdepth101": Network(resnet.stochasticdepth101, 42_697_444, 2_510_168_064),
}
"""All networks, by their names in recipes."""


def build_network(
    name: str, num_classes: int, in_channels: int = 3, image_size: int = 32, **arguments: Any
) -> nn.Module:
    """Build a network of ``NETWORKS``.

    >>> network = build_network("resnet18-tract", num_classes=10, width=16)
    >>> sum(parameter.numel() for parameter in network.parameters())
    701466

    Args:
        name: its name.
        num_classes: number of outputs.
        in_channels: channels of the image.
        image_size: pixels per side, at least 32; ignored by networks that accept any size.
        arguments: further arguments of the network's builder.

    Raises:
        TrActValueError: there is no such network, or it does not accept one of the arguments.
    """
    if name not in NETWORKS:
        raise TrActValueError(describe_unknown(name, NETWORKS, "network"))
    build = NETWORKS[name].build
    given = ("num_classes", "in_channels", "image_size")
    accepted = inspect.signature(build).parameters
    unknown = [key for key in arguments if key not in accepted]
    if unknown:
        others = ", ".join(key for key in accepted if key not in given) or "no arguments"
        raise TrActValueError(
            f"the network {name!r} does not accept {', '.join(unknown)}; besides num_classes, "
            f"in_channels and image_size it accepts {others}."
        )
    if "image_size" in accepted:
        arguments["image_size"] = image_size
    return build(num_classes, in_channels=in_channels, **arguments)
