"""ResNet, ResNeXt, SE-ResNet and ResNet with stochastic depth.

He, Zhang, Ren, Sun: Deep Residual Learning for Image Recognition, 2016.
Xie, Girshick, Dollár, Tu, He: Aggregated Residual Transformations for Deep Neural Networks, 2017.
Hu, Shen, Albanie, Sun, Wu: Squeeze-and-Excitation Networks, 2018.
Huang, Sun, Liu, Sedra, Weinberger: Deep Networks with Stochastic Depth, 2016.
"""

import dataclasses

from torch import Tensor, nn

from trainact.lab.models.networks.layers import ConvNorm, make_head
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


def resnet18(num_classes: int = 100, *, in_channels: int = 3) -> ResNet:
    """Return ResNet-18 (He et al., 2016), with 11,220,132 parameters at 100 classes."""
    return ResNet(BasicBlock, (2, 2, 2, 2), num_classes, in_channels=in_channels)


def resnet34(num_classes: int = 100, *, in_channels: int = 3) -> ResNet:
    """Return ResNet-34 (He et al., 2016), with 21,328,292 parameters at 100 classes."""
    return ResNet(BasicBlock, (3, 4, 6, 3), num_classes, in_channels=in_channels)


def resnet50(num_classes: int = 100, *, in_channels: int = 3) -> ResNet:
    """Return ResNet-50 (He et al., 2016), with 23,705,252 parameters at 100 classes."""
    return ResNet(Bottleneck, (3, 4, 6, 3), num_classes, in_channels=in_channels)


def resnet101(num_classes: int = 100, *, in_channels: int = 3) -> ResNet:
    """Return ResNet-101 (He et al., 2016), with 42,697,380 parameters at 100 classes."""
    return ResNet(Bottleneck, (3, 4, 23, 3), num_classes, in_channels=in_channels)


def resnet152(num_classes: int = 100, *, in_channels: int = 3) -> ResNet:
    """Return ResNet-152 (He et al., 2016), with 58,341,028 parameters at 100 classes."""
    return ResNet(Bottleneck, (3, 8, 36, 3), num_classes, in_channels=in_channels)


def resnext50(num_classes: int = 100, *, in_channels: int = 3) -> ResNet:
    """Return ResNeXt-50 32x4d (Xie et al., 2017), with 14,788,772 parameters at 100 classes."""
    return _build_resnext((3, 4, 6, 3), num_classes, in_channels)


def resnext101(num_classes: int = 100, *, in_channels: int = 3) -> ResNet:
    """Return ResNeXt-101 32x4d (Xie et al., 2017), with 25,303,204 parameters at 100 classes."""
    return _build_resnext((3, 4, 23, 3), num_classes, in_channels)


def resnext152(num_classes: int = 100, *, in_channels: int = 3) -> ResNet:
    """Return ResNeXt-152 32x4d (Xie et al., 2017), with 33,343,652 parameters at 100 classes.

    Its second stage has 4 blocks, not ResNet-152's 8: 143 convolutions including the shortcuts.
    """
    return _build_resnext((3, 4, 36, 3), num_classes, in_channels)


def _build_resnext(depths: tuple[int, ...], num_classes: int, in_channels: int) -> ResNet:
    """Return a ResNet with bottlenecks of 32 groups of 4 channels.

    The first 1 x 1 is grouped too, as in the network of the paper's experiments.
    """
    options = BlockOptions(groups=32, group_width=4)
    return ResNet(Bottleneck, depths, num_classes, in_channels=in_channels, options=options)


def seresnet18(num_classes: int = 100, *, in_channels: int = 3) -> ResNet:
    """Return SE-ResNet-18 (Hu et al., 2018), with 11,314,012 parameters at 100 classes."""
    return _build_seresnet(BasicBlock, (2, 2, 2, 2), num_classes, in_channels)


def seresnet34(num_classes: int = 100, *, in_channels: int = 3) -> ResNet:
    """Return SE-ResNet-34 (Hu et al., 2018), with 21,498,000 parameters at 100 classes."""
    return _build_seresnet(BasicBlock, (3, 4, 6, 3), num_classes, in_channels)


def seresnet50(num_classes: int = 100, *, in_channels: int = 3) -> ResNet:
    """Return SE-ResNet-50 (Hu et al., 2018), with 26,262,804 parameters at 100 classes."""
    return _build_seresnet(Bottleneck, (3, 4, 6, 3), num_classes, in_channels)


def seresnet101(num_classes: int = 100, *, in_channels: int = 3) -> ResNet:
    """Return SE-ResNet-101 (Hu et al., 2018), with 47,527,764 parameters at 100 classes."""
    return _build_seresnet(Bottleneck, (3, 4, 23, 3), num_classes, in_channels)


def seresnet152(num_classes: int = 100, *, in_channels: int = 3) -> ResNet:
    """Return SE-ResNet-152 (Hu et al., 2018), with 65,045,780 parameters at 100 classes."""
    return _build_seresnet(Bottleneck, (3, 8, 36, 3), num_classes, in_channels)


def _build_seresnet(
    block: type[BasicBlock | Bottleneck],
    depths: tuple[int, ...],
    num_classes: int,
    in_channels: int,
) -> ResNet:
    """Return a ResNet with squeeze-and-excitation.

    ReLU comes before the gate, and all convolutions have a bias, as in the network of the paper's
    experiments.
    """
    options = BlockOptions(bias=True, reduction=16)
    return ResNet(
        block, depths, num_classes, in_channels=in_channels, first_bias=True, options=options
    )


def stochasticdepth18(num_classes: int = 100, *, in_channels: int = 3) -> ResNet:
    """Return ResNet-18 with stochastic depth (Huang et al., 2016): 11,224,932 parameters."""
    return _build_stochasticdepth(BasicBlock, (2, 2, 2, 2), num_classes, in_channels)


def stochasticdepth34(num_classes: int = 100, *, in_channels: int = 3) -> ResNet:
    """Return ResNet-34 with stochastic depth (Huang et al., 2016): 21,336,804 parameters."""
    return _build_stochasticdepth(BasicBlock, (3, 4, 6, 3), num_classes, in_channels)


def stochasticdepth50(num_classes: int = 100, *, in_channels: int = 3) -> ResNet:
    """Return ResNet-50 with stochastic depth (Huang et al., 2016): 23,705,316 parameters."""
    return _build_stochasticdepth(Bottleneck, (3, 4, 6, 3), num_classes, in_channels)


def stochasticdepth101(num_classes: int = 100, *, in_channels: int = 3) -> ResNet:
    """Return ResNet-101 with stochastic depth (Huang et al., 2016): 42,697,444 parameters."""
    return _build_stochasticdepth(Bottleneck, (3, 4, 23, 3), num_classes, in_channels)


def _build_stochasticdepth(
    block: type[BasicBlock | Bottleneck],
    depths: tuple[int, ...],
    num_classes: int,
    in_channels: int,
) -> ResNet:
    """Return a ResNet whose survival probability decreases linearly from 1 to 0.5.

    No ReLU follows a block's sum, and the first convolution and basic blocks have a bias, as in the
    network of the paper's experiments.
    """
    options = BlockOptions(bias=block is BasicBlock, relu=False)
    return ResNet(
        block,
        depths,
        num_classes,
        in_channels=in_channels,
        first_bias=True,
        options=options,
        last_survival=0.5,
    )
