"""ResNet, ResNeXt, SE-ResNet and ResNet with stochastic depth.

He, Zhang, Ren, Sun: Deep Residual Learning for Image Recognition, 2016.
Xie, Girshick, Dollár, Tu, He: Aggregated Residual Transformations for Deep Neural Networks, 2017.
Hu, Shen, Albanie, Sun, Wu: Squeeze-and-Excitation Networks, 2018.
Huang, Sun, Liu, Sedra, Weinberger: Deep Networks with Stochastic Depth, 2016.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from trainact.lab.models.networks.layers import ConvNorm, make_builder, make_head

__all__ = [
    *("BasicBlock", "BlockOptions", "Bottleneck", "ResNet", "ResidualBlock", "SqueezeExcite"),
    "resnet18_imagenet",
    "resnet18_tract",
    *("resnet18", "resnet34", "resnet50", "resnet101", "resnet152"),
    *("resnext50", "resnext101", "resnext152"),
    *("seresnet18", "seresnet34", "seresnet50", "seresnet101", "seresnet152"),
    *("stochasticdepth18", "stochasticdepth34", "stochasticdepth50", "stochasticdepth101"),
]


@dataclass(frozen=True)
class BlockOptions:
    """Differences of a residual block from that of ResNet."""

    bias: bool = False  # of the convolutions
    groups: int = 1  # of a bottleneck's 3 x 3 and of the 1 x 1 before it (cardinality)
    group_width: int = 64  # channels of such a group in a block of width 64; grow with the width
    reduction: int | None = None  # of squeeze-and-excitation, after a ReLU; None for none
    survival: float = 1.0  # probability that the branch is kept in a training step
    relu: bool = True  # whether ReLU follows the sum


Layers = list[nn.Module]


class SqueezeExcite(nn.Module):
    """Multiply each channel by a gate in (0, 1), computed from the averages of all channels."""

    def __init__(self, channels: int, reduction: int) -> None:
        super().__init__()
        self.squeeze = nn.Linear(channels, channels // reduction)
        self.excite = nn.Linear(channels // reduction, channels)

    def forward(self, x: Tensor) -> Tensor:
        """Return x [N, C, H, W] with gated channels."""
        weights = self.excite(self.squeeze(x.mean((2, 3))).relu()).sigmoid()
        return x * weights[:, :, None, None]


class ResidualBlock(nn.Module):
    """shortcut(x) + branch(x), with a 1 x 1 convolution as shortcut if the shapes differ.

    With a survival probability p below 1, the branch is dropped in a training step with probability
    1 - p (for the whole batch, drawn on the CPU) and multiplied by p in evaluation.
    """

    expansion: ClassVar[int]  # output channels for each unit of width

    def __init__(
        self,
        in_channels: int,
        width: int,
        stride: int = 1,
        options: BlockOptions = BlockOptions(),
    ) -> None:
        super().__init__()
        out_channels = self.expansion * width
        self.branch = nn.Sequential(*self._make_branch(in_channels, width, stride, options))
        if options.reduction is not None:
            self.branch.append(SqueezeExcite(out_channels, options.reduction))
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            kinds: dict[str, Any] = {"bias": options.bias, "activation": nn.Identity}
            self.shortcut = ConvNorm(in_channels, out_channels, 1, stride=stride, **kinds)
        self.survival, self.relu = options.survival, options.relu
        self.skips_parameters = options.survival < 1  # used when ranks average gradients

    @staticmethod
    def _make_branch(in_channels: int, width: int, stride: int, options: BlockOptions) -> Layers:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, out_channels, H / stride, W / stride] of x [N, in_channels, H, W]."""
        total = self.shortcut(x)
        if not self._survives():
            return total.relu() if self.relu else total  # not in place: total may be x
        branch = self.branch(x)
        total = total + (branch if self.training or self.survival == 1 else self.survival * branch)
        return total.relu_() if self.relu else total

    def _survives(self) -> bool:
        if not self.training or self.survival == 1:
            return True
        return torch.rand((), device="cpu").item() < self.survival

    def extra_repr(self) -> str:
        """Return the survival probability if it is below 1."""
        return f"survival={self.survival:g}" if self.survival < 1 else ""


class BasicBlock(ResidualBlock):
    """Two 3 x 3 convolutions."""

    expansion = 1

    @staticmethod
    def _make_branch(in_channels: int, width: int, stride: int, options: BlockOptions) -> Layers:
        last = nn.Identity if options.reduction is None else nn.ReLU
        return [
            ConvNorm(in_channels, width, stride=stride, bias=options.bias),
            ConvNorm(width, width, bias=options.bias, activation=last),
        ]


class Bottleneck(ResidualBlock):
    """1 x 1, 3 x 3 and 1 x 1 convolutions; the last has four times the width."""

    expansion = 4

    @staticmethod
    def _make_branch(in_channels: int, width: int, stride: int, options: BlockOptions) -> Layers:
        groups, bias = options.groups, options.bias
        last = nn.Identity if options.reduction is None else nn.ReLU
        inner = groups * (options.group_width * width // 64)
        return [
            ConvNorm(in_channels, inner, 1, groups=groups, bias=bias),
            ConvNorm(inner, inner, 3, stride=stride, groups=groups, bias=bias),
            ConvNorm(inner, 4 * width, 1, bias=bias, activation=last),
        ]


class ResNet(nn.Sequential):
    """A convolution, four stages of residual blocks, average pooling and a classifier.

    The stages have ``depths`` blocks and 1, 2, 4 and 8 times the width; all but the first halve the
    image. ``pool`` adds a 3 x 3 max-pool of stride 2 after the first convolution. The survival
    probability of the blocks decreases linearly from 1 to ``last_survival``.
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
        options: BlockOptions = BlockOptions(),
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
                here = replace(options, survival=survival)
                stride = 2 if stage and not index else 1
                blocks.append(block(channels, width * 2**stage, stride, here))
                channels, done = width * 2**stage * block.expansion, done + 1
            self.stages.append(blocks)
        self.head = make_head(channels, num_classes)


def resnet18_tract(num_classes: int = 10, *, in_channels: int = 3, width: int = 64) -> ResNet:
    """Return the paper's network for CIFAR-10, with 11,173,962 parameters at 10 classes.

    It is ImageNet's ResNet-18, including its max-pool, with a first convolution of 3 x 3 and stride
    1, and the same initialisation.
    """
    return _make_resnet18(num_classes, in_channels=in_channels, width=width)


def resnet18_imagenet(num_classes: int = 1000, *, in_channels: int = 3, width: int = 64) -> ResNet:
    """Return ResNet-18 for ImageNet (He et al., 2016), with 11,227,812 parameters at 100 classes.

    Its first convolution is 7 x 7 of stride 2, followed by the max-pool. At width 64 it is
    torchvision's ResNet-18, with the same initialisation.
    """
    stem = {"first_kernel": 7, "first_stride": 2}
    return _make_resnet18(num_classes, in_channels=in_channels, width=width, **stem)


def _make_resnet18(num_classes: int, **options: Any) -> ResNet:
    """Return ResNet-18 with a max-pool and Kaiming normal initialisation with fan-out."""
    network = ResNet(BasicBlock, (2, 2, 2, 2), num_classes, pool=True, **options)
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
