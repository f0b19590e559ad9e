"""MobileNet and MobileNetV2: depthwise convolutions between pointwise ones.

Howard et al.: MobileNets: Efficient Convolutional Neural Networks for Mobile Vision Applications,
2017.
Sandler, Howard, Zhu, Zhmoginov, Chen: MobileNetV2: Inverted Residuals and Linear Bottlenecks, 2018.
"""

from functools import partial

from torch import Tensor, nn

from trainact.lab.models.networks.layers import ConvNorm, make_head, make_stages

__all__ = ["MobileNet", "MobileNetV2"]

PLAN = (
    *((64, 1), (128, 2), (128, 1), (256, 2), (256, 1)),
    *((512, 2), *5 * ((512, 1),), (1024, 2), (1024, 1)),
)
"""Channels and stride of MobileNet's separable convolutions."""


class MobileNet(nn.Sequential):
    """A 3 x 3 convolution and 13 depthwise separable ones; only pointwise ones have a bias."""

    def __init__(self, num_classes: int = 100, *, in_channels: int = 3) -> None:
        super().__init__()
        self.stem = ConvNorm(in_channels, 32)
        self.blocks = nn.Sequential()
        channels = 32
        for width, stride in PLAN:
            depthwise = ConvNorm(channels, channels, stride=stride, groups=channels)
            self.blocks.append(nn.Sequential(depthwise, ConvNorm(channels, width, 1, bias=True)))
            channels = width
        self.head = make_head(channels, num_classes)


class InvertedResidual(nn.Module):
    """Expanding 1 x 1, depthwise 3 x 3 and projecting 1 x 1 without activation.

    The input is added if the shapes agree. The inner channels are ``expansion`` times those of the
    input.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = expansion * in_channels
        self.branch = nn.Sequential(
            ConvNorm(in_channels, wide, 1, bias=True, activation=nn.ReLU6),
            ConvNorm(wide, wide, stride=stride, groups=wide, bias=True, activation=nn.ReLU6),
            ConvNorm(wide, out_channels, 1, bias=True, activation=nn.Identity),
        )
        self.adds = stride == 1 and in_channels == out_channels

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, out_channels, H / stride, W / stride] of x [N, in_channels, H, W]."""
        return x + self.branch(x) if self.adds else self.branch(x)


class MobileNetV2(nn.Sequential):
    """A 1 x 1 convolution, 17 inverted residuals and a 1 x 1 convolution as classifier.

    The first convolution has padding 1, which adds a border of normalised biases to the image, as
    in the network of the paper's experiments. All convolutions have a bias.
    """

    def __init__(self, num_classes: int = 100, *, in_channels: int = 3) -> None:
        super().__init__()
        self.stem = ConvNorm(in_channels, 32, 1, padding=1, bias=True, activation=nn.ReLU6)
        narrow, wide = (partial(InvertedResidual, expansion=times) for times in (1, 6))
        self.stages = make_stages(narrow, (32, 16), (1,), (1,))
        widths, depths = (16, 24, 32, 64, 96, 160, 320), (2, 3, 4, 3, 3, 1)
        self.stages.extend(make_stages(wide, widths, depths, strides=(2, 2, 2, 1, 1, 1)))
        self.head = nn.Sequential(
            ConvNorm(widths[-1], 1280, 1, bias=True, activation=nn.ReLU6),
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(1280, num_classes, 1),
            nn.Flatten(),
        )
