"""Wide ResNet: pre-activation residual blocks, few and wide.

Zagoruyko, Komodakis: Wide Residual Networks, 2016.
"""

from functools import partial

from torch import Tensor, nn

from trainact.errors import TrActValueError
from trainact.lab.models.networks.layers import make_builder, make_head, make_stages

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


class WideResNet(nn.Sequential):
    """A 3 x 3 convolution to 16 channels and three stages of wide blocks.

    The stages have ``widening`` times 16, 32 and 64 channels. ``depth`` counts the convolutions
    without the shortcuts. Dropout is between a block's two convolutions.

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
        widths = [16, *(widening * width for width in (16, 32, 64))]
        block = partial(WideBlock, dropout=dropout)
        self.stages = make_stages(block, widths, depths=(blocks,) * 3, strides=(1, 2, 2))
        self.norm = nn.BatchNorm2d(widths[-1])
        self.relu = nn.ReLU(inplace=True)
        self.head = make_head(widths[-1], num_classes)


wideresnet_40_10 = make_builder(WideResNet, depth=40, widening=10)
