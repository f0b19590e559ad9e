"""DenseNet with bottlenecks and compression: every layer sees the outputs of all earlier ones.

Huang, Liu, van der Maaten, Weinberger: Densely Connected Convolutional Networks, 2017.
"""

from torch import nn

from trainact.lab.models.networks.layers import Concat, make_builder, make_head

__all__ = ["DenseNet", "densenet121", "densenet161", "densenet201"]


class DenseNet(nn.Sequential):
    """A 3 x 3 convolution and four dense blocks of ``depths`` layers with transitions between them.

    A layer adds ``growth`` channels; the first convolution has twice as many. A transition halves
    the channels and the image.
    """

    def __init__(
        self,
        depths: tuple[int, ...],
        num_classes: int = 100,
        *,
        in_channels: int = 3,
        growth: int = 32,
    ) -> None:
        super().__init__()
        channels = 2 * growth
        self.stem = nn.Conv2d(in_channels, channels, 3, padding=1, bias=False)
        self.blocks = nn.Sequential()
        for index, depth in enumerate(depths):
            if index:
                self.blocks.append(_make_transition(channels, channels // 2))
                channels //= 2
            block = nn.Sequential()
            for _ in range(depth):
                block.append(Concat(nn.Identity(), _make_layer(channels, growth)))
                channels += growth
            self.blocks.append(block)
        self.norm = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.head = make_head(channels, num_classes)


def _make_layer(channels: int, growth: int) -> nn.Sequential:
    """Normalise, 1 x 1 to four times the growth, normalise, 3 x 3 to the growth."""
    return nn.Sequential(
        nn.BatchNorm2d(channels),
        nn.ReLU(inplace=True),
        nn.Conv2d(channels, 4 * growth, 1, bias=False),
        nn.BatchNorm2d(4 * growth),
        nn.ReLU(inplace=True),
        nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
    )


def _make_transition(channels: int, narrowed: int) -> nn.Sequential:
    """Normalise, 1 x 1, average over 2 x 2; the network of the experiments has no ReLU here."""
    return nn.Sequential(
        nn.BatchNorm2d(channels), nn.Conv2d(channels, narrowed, 1, bias=False), nn.AvgPool2d(2)
    )


densenet121 = make_builder(DenseNet, (6, 12, 24, 16))
densenet161 = make_builder(DenseNet, (6, 12, 36, 24), growth=48)
densenet201 = make_builder(DenseNet, (6, 12, 48, 32))
