"""SqueezeNet with simple bypass.

Iandola, Han, Moskewicz, Ashraf, Dally, Keutzer: SqueezeNet: AlexNet-Level Accuracy with 50x Fewer
Parameters and <0.5 MB Model Size, 2016.
"""

from torch import Tensor, nn

from trainact.lab.models.networks.layers import Concat, ConvNorm

__all__ = ["SqueezeNet"]


class Fire(nn.Module):
    """Squeeze to an eighth of the output channels, then expand by 1 x 1 and 3 x 3.

    ``bypass`` adds the input to the output.
    """

    def __init__(self, in_channels: int, out_channels: int, *, bypass: bool = False) -> None:
        super().__init__()
        squeezed, half = out_channels // 8, out_channels // 2
        self.squeeze = ConvNorm(in_channels, squeezed, 1, bias=True)
        self.expand = Concat(*(ConvNorm(squeezed, half, size, bias=True) for size in (1, 3)))
        self.bypass = bypass

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, out_channels, H, W] of x [N, in_channels, H, W]."""
        expanded = self.expand(self.squeeze(x))
        return x + expanded if self.bypass else expanded


class SqueezeNet(nn.Sequential):
    """A 3 x 3 convolution, eight Fire modules, three max-pools and a 1 x 1 as classifier.

    The last Fire module has no bypass, as in the network of the paper's experiments.
    """

    def __init__(self, num_classes: int = 100, *, in_channels: int = 3) -> None:
        super().__init__()
        self.stem = nn.Sequential(ConvNorm(in_channels, 96, bias=True), nn.MaxPool2d(2))
        self.fires = nn.Sequential(
            Fire(96, 128),
            Fire(128, 128, bypass=True),
            Fire(128, 256),
            nn.MaxPool2d(2),
            Fire(256, 256, bypass=True),
            Fire(256, 384),
            Fire(384, 384, bypass=True),
            Fire(384, 512),
            nn.MaxPool2d(2),
            Fire(512, 512),
        )
        self.head = nn.Sequential(
            nn.Conv2d(512, num_classes, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )
