"""Wide ResNet: pre-activation residual blocks, few and wide.

Zagoruyko, Komodakis: Wide Residual Networks, 2016.
"""

from torch import Tensor, nn

from trainact.errors import TrActValueError
from trainact.lab.models.networks.layers import make_builder, make_head

__all__ = ["WideResNet", "wideresnet_40_10"]


class WideBlock(nn.Module):
    """Normalisation, ReLU and a 3 x 3 convolution, twice, with dropout before the second."""

    def __init__(self, in_channels: int, out_channels: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.BatchNorm2d(in_channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(in_channels, out_channels, 3, stride, padding=1),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Conv2d(out_channels, out_channels, 3, padding=1),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Conv2d(in_channels, out_channels, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, out_channels, H / stride, W / stride] of x [N, in_channels, H, W]."""
        return self.shortcut(x) + self.branch(x)


class WideResNet(nn.Module):
    """A 3 x 3 convolution to 16 channels and three stages of wide blocks.

    Args:
        num_classes: outputs.
        in_channels: channels of the image.
        depth: number of convolutions without shortcuts, 4 more than a multiple of 6.
        widening: the stages have this many times 16, 32 and 64 channels.
        dropout: probability of dropping a value between a block's two convolutions.

    Raises:
        TrActValueError: the depth is not 4 more than a multiple of 6.
    """

    def __init__(
        self,
        num_classes: int = 100,
        *,
        in_channels: int = 3,
        depth: int = 40,
        widening: int = 10,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        blocks, rest = divmod(depth - 4, 6)
        if blocks < 1 or rest:
            raise TrActValueError(f"depth takes 10, 16, 22, 28, 34, 40 and so on; got {depth}.")
        self.stem = nn.Conv2d(in_channels, 16, 3, padding=1)
        self.stages = nn.Sequential()
        channels = 16
        for width, stride in ((16, 1), (32, 2), (64, 2)):
            stage = nn.Sequential()
            for index in range(blocks):
                wide = width * widening
                stage.append(WideBlock(channels, wide, 1 if index else stride, dropout))
                channels = wide
            self.stages.append(stage)
        self.norm = nn.BatchNorm2d(channels)
        self.head = make_head(channels, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits [N, classes] of images [N, C, H, W]."""
        return self.head(self.norm(self.stages(self.stem(images))).relu_())


wideresnet_40_10 = make_builder(WideResNet, depth=40, widening=10)
