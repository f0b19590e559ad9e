"""Xception: residual blocks of depthwise separable convolutions.

Chollet: Xception: Deep Learning with Depthwise Separable Convolutions, 2017.
"""

import itertools

from torch import Tensor, nn

from trainact.lab.models.networks.layers import ConvNorm, make_head

__all__ = ["Xception"]


def _make_separable(in_channels: int, out_channels: int) -> nn.Sequential:
    """Return a depthwise 3 x 3 convolution, a pointwise one and normalisation."""
    return nn.Sequential(
        nn.Conv2d(in_channels, in_channels, 3, padding=1, groups=in_channels, bias=False),
        nn.Conv2d(in_channels, out_channels, 1, bias=False),
        nn.BatchNorm2d(out_channels),
    )


class XceptionBlock(nn.Module):
    """Separable convolutions with ReLU before each, and a shortcut.

    Args:
        widths: input channels, then the output channels of each convolution.
        stride: of the max-pool at the end of the branch and of the 1 x 1 convolution in the
            shortcut; None omits both.
        first_relu: whether a ReLU precedes the first convolution too.
        clips_shortcut: whether that first ReLU is applied to the shortcut as well.
    """

    def __init__(
        self,
        *widths: int,
        stride: int | None = None,
        first_relu: bool = True,
        clips_shortcut: bool = True,
    ) -> None:
        super().__init__()
        self.branch = nn.Sequential()
        for index, (before, after) in enumerate(itertools.pairwise(widths)):
            if index:
                self.branch.append(nn.ReLU(inplace=True))
            self.branch.append(_make_separable(before, after))
        self.shortcut: nn.Module = nn.Identity()
        if stride is not None:
            self.branch.append(nn.MaxPool2d(3, stride, padding=1))
            self.shortcut = ConvNorm(
                widths[0], widths[-1], 1, stride=stride, bias=True, activation=nn.Identity
            )
        self.first_relu, self.clips_shortcut = first_relu, clips_shortcut

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, widths[-1], H / stride, W / stride] of x [N, widths[0], H, W]."""
        clipped = x.relu() if self.first_relu else x
        return self.shortcut(clipped if self.clips_shortcut else x) + self.branch(clipped)


class Xception(nn.Sequential):
    """The paper's entry, middle and exit flow, with strides for images of 32 pixels.

    In all blocks but the last, the first ReLU is applied to the shortcut too, as in the network of
    the paper's experiments.
    """

    def __init__(self, num_classes: int = 100, *, in_channels: int = 3) -> None:
        super().__init__()
        self.entry = nn.Sequential(
            ConvNorm(in_channels, 32),
            ConvNorm(32, 64),
            XceptionBlock(64, 128, 128, stride=2, first_relu=False),
            XceptionBlock(128, 256, 256, stride=2),
            XceptionBlock(256, 728, 728, stride=1),
        )
        self.middle = nn.Sequential(*(XceptionBlock(728, 728, 728, 728) for _ in range(8)))
        self.exit = nn.Sequential(
            XceptionBlock(728, 728, 1024, stride=2, clips_shortcut=False),
            _make_separable(1024, 1536),
            nn.ReLU(inplace=True),
            _make_separable(1536, 2048),
            nn.ReLU(inplace=True),
        )
        self.head = make_head(2048, num_classes)
