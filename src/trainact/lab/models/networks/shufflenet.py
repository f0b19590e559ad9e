"""ShuffleNet and ShuffleNetV2: cheap pointwise convolutions with channel shuffles between them.

Zhang, Zhou, Lin, Sun: ShuffleNet: An Extremely Efficient Convolutional Neural Network for Mobile
Devices, 2018.
Ma, Zhang, Zheng, Sun: ShuffleNet V2: Practical Guidelines for Efficient CNN Architecture Design,
2018.
"""

import torch
from torch import Tensor, nn

from trainact.lab.models.networks.layers import ConvNorm, make_head, make_stages

__all__ = ["ShuffleNet", "ShuffleNetV2", "shuffle_channels"]

DEPTHS = (4, 8, 4)
"""Units of the three stages, in both networks."""
STRIDES = (2, 2, 2)
GROUPS = 3
"""Groups of the 1 x 1 convolutions of ShuffleNet."""


def shuffle_channels(x: Tensor, groups: int) -> Tensor:
    """Take one channel of each group in turn: x [N, groups · C, H, W], its channels permuted.

    >>> shuffle_channels(torch.arange(6).reshape(1, 6, 1, 1), groups=2).flatten().tolist()
    [0, 3, 1, 4, 2, 5]
    """
    return x.unflatten(1, (groups, -1)).transpose(1, 2).flatten(1, 2)


def _make_depthwise(channels: int, stride: int) -> ConvNorm:
    return ConvNorm(
        channels, channels, stride=stride, groups=channels, bias=True, activation=nn.Identity
    )


class GroupedUnit(nn.Module):
    """Grouped 1 x 1, shuffle, depthwise 3 x 3, grouped 1 x 1; added to the input, then ReLU.

    A unit of stride 2 is instead concatenated with its average-pooled input.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.halves, inner = stride == 2, out_channels // 4
        made = out_channels - in_channels if self.halves else out_channels
        self.narrow = ConvNorm(in_channels, inner, 1, groups=GROUPS, bias=True)
        self.depthwise = _make_depthwise(inner, stride)
        self.widen = ConvNorm(inner, made, 1, groups=GROUPS, bias=True, activation=nn.Identity)
        self.pool = nn.AvgPool2d(3, 2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, out_channels, H / stride, W / stride] of x [N, in_channels, H, W]."""
        made = self.widen(self.depthwise(shuffle_channels(self.narrow(x), GROUPS)))
        joined = torch.cat([self.pool(x), made], dim=1) if self.halves else x + made
        return joined.relu_()


class ShuffleNet(nn.Sequential):
    """A 3 x 3 convolution to 24 channels and three stages, whose first units halve the image."""

    def __init__(self, num_classes: int = 100, *, in_channels: int = 3) -> None:
        super().__init__()
        self.stem = ConvNorm(in_channels, 24, bias=True)
        self.stages = make_stages(GroupedUnit, (24, 240, 480, 960), DEPTHS, STRIDES)
        self.head = make_head(960, num_classes)


class SplitUnit(nn.Module):
    """One half of the channels is passed on, the other convolved; then both are shuffled.

    The convolutions are 1 x 1, depthwise 3 x 3 and 1 x 1. In a unit of stride 2, both halves get
    all channels, and the first is convolved too.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.halves, half = stride == 2, out_channels // 2
        inner = in_channels if self.halves else half
        self.branch = nn.Sequential(
            ConvNorm(inner, inner, 1, bias=True),
            _make_depthwise(inner, stride),
            ConvNorm(inner, half, 1, bias=True),
        )
        self.shortcut: nn.Module = nn.Identity()
        if self.halves:
            self.shortcut = nn.Sequential(
                _make_depthwise(inner, stride), ConvNorm(inner, half, 1, bias=True)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, out_channels, H / stride, W / stride] of x [N, in_channels, H, W]."""
        passed, changed = (x, x) if self.halves else x.chunk(2, dim=1)
        joined = torch.cat([self.shortcut(passed), self.branch(changed)], dim=1)
        return shuffle_channels(joined, groups=2)


class ShuffleNetV2(nn.Sequential):
    """A 3 x 3 convolution to 24 channels, without ReLU, three stages and a last 1 x 1."""

    def __init__(self, num_classes: int = 100, *, in_channels: int = 3) -> None:
        super().__init__()
        self.stem = ConvNorm(in_channels, 24, bias=True, activation=nn.Identity)
        self.stages = make_stages(SplitUnit, (24, 116, 232, 464), DEPTHS, STRIDES)
        self.last = ConvNorm(464, 1024, 1, bias=True)
        self.head = make_head(1024, num_classes)
