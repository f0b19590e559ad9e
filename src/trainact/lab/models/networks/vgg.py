"""VGG with batch normalisation.

Simonyan, Zisserman: Very Deep Convolutional Networks for Large-Scale Image Recognition, 2015.
"""

from torch import nn

from trainact.lab.models.networks.layers import make_builder, make_convs

__all__ = ["VGG", "vgg11", "vgg13", "vgg16", "vgg19"]

WIDTHS = (64, 128, 256, 512, 512)
"""Channels of the five stages."""


class VGG(nn.Sequential):
    """Five stages of 3 x 3 convolutions, each with a max-pool at its end, and three linear layers.

    The stages have ``depths`` convolutions. The remaining positions (one for images of 32 pixels)
    are averaged. Dropout follows the two hidden linear layers.
    """

    def __init__(
        self,
        depths: tuple[int, ...],
        num_classes: int = 100,
        *,
        in_channels: int = 3,
        hidden: int = 4096,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        self.stages = nn.Sequential()
        channels = in_channels
        for width, depth in zip(WIDTHS, depths, strict=True):
            convs = make_convs(channels, *depth * [(width, 3)], bias=True)
            self.stages.append(convs.append(nn.MaxPool2d(2)))
            channels = width
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Sequential(
            nn.Linear(channels, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(hidden, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(hidden, num_classes),
        )


vgg11 = make_builder(VGG, (1, 1, 2, 2, 2))
vgg13 = make_builder(VGG, (2, 2, 2, 2, 2))
vgg16 = make_builder(VGG, (2, 2, 3, 3, 3))
vgg19 = make_builder(VGG, (2, 2, 4, 4, 4))
