"""ResNet, ResNeXt, SE-ResNet and ResNet with stochastic depth.

He, Zhang, Ren, Sun: Deep Residual Learning for Image Recognition, 2016.
Xie, Girshick, Dollár, Tu, He: Aggregated Residual Transformations for Deep Neural Networks, 2017.
Hu, Shen, Albanie, Sun, Wu: Squeeze-and-Excitation Networks, 2018.
Huang, Sun, Liu, Sedra, Weinberger: Deep Networks with Stochastic Depth, 2016.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from trainact.lab.models.networks.layers import ConvNorm, make_builder, make_head
from trainact.lab.models.networks.residual import BasicBlock, BlockOptions, Bottleneck

__all__ = [
    "ResNet",
    "resnet18_imagenet",
    "resnet18_tract",
    *("resnet18", "resnet34", "resnet50", "resnet101", "resnet152"),
    *("resnext50", "resnext101", "resnext152"),
    *("seresnet18", "seresnet34", "seresnet50", "seresnet101", "seresnet152"),
    *("stochasticdepth18", "stochasticdepth34", "stochasticdepth50", "stochasticdepth101"),
]


class ResNet(nn.Module):
    """A convolution, four stages of residual blocks, average pooling and a classifier.

    Stages have 1, 2, 4 and 8 times the width; all but the first halve the image.

    Args:
        block: BasicBlock or Bottleneck.
        depths: blocks in each stage.
        num_classes: outputs.
        in_channels: channels of the image.
        width: channels after the first convolution.
        first_kernel: kernel size of the first convolution.
        first_stride: stride of the first convolution.
        first_bias: whether the first convolution has a bias.
        pool: whether a 3 x 3 max-pool of stride 2 follows the first convolution.
        options: of all blocks.
        last_survival: survival probability of the last block; it decreases linearly from 1 for
            the first block.
    """

    def __init__(
        self,
        block: type[BasicBlock | Bottleneck],
        depths: tuple[int, ...],
        num_classes: int = 100,
        *,
        in_channels: int = 3,
        width: int = 64,
        first_kernel: int = 3,
        first_stride: int = 1,
        first_bias: bool = False,
        pool: bool = False,
        options: BlockOptions = BlockOptions(),  # noqa: B008  (frozen)
        last_survival: float = 1.0,
    ) -> None:
        super().__init__()
        padding = first_kernel // 2
        self.stem = ConvNorm(
            in_channels, width, first_kernel, stride=first_stride, padding=padding, bias=first_bias
        )
        self.pool: nn.Module = nn.MaxPool2d(3, 2, padding=1) if pool else nn.Identity()
        self.stages = nn.Sequential()
        channels, done = width, 0
        for stage, depth in enumerate(depths):
            blocks = nn.Sequential()
            for index in range(depth):
                survival = 1 - (1 - last_survival) * done / max(1, sum(depths) - 1)
                here = dataclasses.replace(options, survival=survival)
                stride = 2 if stage and not index else 1
                blocks.append(block(channels, width * 2**stage, stride, here))
                channels, done = width * 2**stage * block.expansion, done + 1
            self.stages.append(blocks)
        self.head = make_head(channels, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits [N, classes] of images [N, C, H, W]."""
        return self.head(self.stages(self.pool(self.stem(images))))


def resnet18_tract(num_classes: int = 10, *, in_channels: int = 3, width: int = 64) -> ResNet:
    """Return the paper's network for CIFAR-10, with 11,173,962 parameters at 10 classes.

    It is ImageNet's ResNet-18, including its max-pool, with a first convolution of 3 x 3 and stride
    1. Convolutions have Kaiming normal initialisation with fan-out.
    """
    network = ResNet(
        BasicBlock, (2, 2, 2, 2), num_classes, in_channels=in_channels, width=width, pool=True
    )
    return _initialise(network)


def resnet18_imagenet(num_classes: int = 1000, *, in_channels: int = 3, width: int = 64) -> ResNet:
    """Return ResNet-18 for ImageNet (He et al., 2016), with 11,227,812 parameters at 100 classes.

    Its first convolution is 7 x 7 of stride 2, followed by the max-pool. At width 64 it is
    torchvision's ResNet-18, with the same initialisation.
    """
    network = ResNet(
        BasicBlock,
        (2, 2, 2, 2),
        num_classes,
        in_channels=in_channels,
        width=width,
        first_kernel=7,
        first_stride=2,
        pool=True,
    )
    return _initialise(network)


def _initialise(network: ResNet) -> ResNet:
    """Initialise convolutions with Kaiming's normal distribution and fan-out."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return network


resnet18 = make_builder(ResNet, BasicBlock, (2, 2, 2, 2))
resnet34 = make_builder(ResNet, BasicBlock, (3, 4, 6, 3))
resnet50 = make_builder(ResNet, Bottleneck, (3, 4, 6, 3))
resnet101 = make_builder(ResNet, Bottleneck, (3, 4, 23, 3))
resnet152 = make_builder(ResNet, Bottleneck, (3, 8, 36, 3))

# ResNeXt 32x4d. As in the network of the paper's experiments, the first 1 x 1 is grouped too, and
# the second stage of ResNeXt-152 has 4 blocks, not 8.
_GROUPED = BlockOptions(groups=32, group_width=4)
resnext50 = make_builder(ResNet, Bottleneck, (3, 4, 6, 3), options=_GROUPED)
resnext101 = make_builder(ResNet, Bottleneck, (3, 4, 23, 3), options=_GROUPED)
resnext152 = make_builder(ResNet, Bottleneck, (3, 4, 36, 3), options=_GROUPED)

# SE-ResNet. As in the network of the paper's experiments, ReLU precedes the gate, and all
# convolutions have a bias.
_GATED: dict[str, Any] = {"first_bias": True, "options": BlockOptions(bias=True, reduction=16)}
seresnet18 = make_builder(ResNet, BasicBlock, (2, 2, 2, 2), **_GATED)
seresnet34 = make_builder(ResNet, BasicBlock, (3, 4, 6, 3), **_GATED)
seresnet50 = make_builder(ResNet, Bottleneck, (3, 4, 6, 3), **_GATED)
seresnet101 = make_builder(ResNet, Bottleneck, (3, 4, 23, 3), **_GATED)
seresnet152 = make_builder(ResNet, Bottleneck, (3, 8, 36, 3), **_GATED)


def _make_stochastic(
    block: type[BasicBlock | Bottleneck], depths: tuple[int, ...]
) -> Callable[..., nn.Module]:
    """Return the builder of a ResNet whose survival probability decreases from 1 to 0.5.

    As in the network of the paper's experiments, no ReLU follows a block's sum, and the first
    convolution and basic blocks have a bias.
    """
    options = BlockOptions(bias=block is BasicBlock, relu=False)
    return make_builder(ResNet, block, depths, first_bias=True, options=options, last_survival=0.5)


stochasticdepth18 = _make_stochastic(BasicBlock, (2, 2, 2, 2))
stochasticdepth34 = _make_stochastic(BasicBlock, (3, 4, 6, 3))
stochasticdepth50 = _make_stochastic(Bottleneck, (3, 4, 6, 3))
stochasticdepth101 = _make_stochastic(Bottleneck, (3, 4, 23, 3))
