"""GoogLeNet and Inception-v3, and the branches that all Inception networks share.

Szegedy et al.: Going Deeper with Convolutions, 2015.
Szegedy, Vanhoucke, Ioffe, Shlens, Wojna: Rethinking the Inception Architecture for Computer Vision,
2016.
"""

from torch import Tensor, nn

from trainact.lab.models.networks.layers import Concat, ConvNorm, make_head

__all__ = ["GoogLeNet", "InceptionV3"]

Size = int | tuple[int, int]
HALVE = (2, 0)
"""Stride and padding of a 3 x 3 convolution that halves the image without padding."""


def make_branch(
    in_channels: int,
    *layers: tuple[int, Size] | tuple[int, Size, tuple[int, int]],
    pool: nn.Module | None = None,
    bias: bool = False,
) -> nn.Sequential:
    """Return a sequence of convolutions.

    Args:
        in_channels: channels of the input.
        layers: output channels, kernel size and optionally (stride, padding) of each convolution;
            by default the stride is 1 and the padding keeps the size.
        pool: a module before the convolutions.
        bias: whether the convolutions have a bias.
    """
    branch = nn.Sequential() if pool is None else nn.Sequential(pool)
    for channels, size, *rest in layers:
        stride, padding = rest[0] if rest else (1, None)
        branch.append(
            ConvNorm(in_channels, channels, size, stride=stride, padding=padding, bias=bias)
        )
        in_channels = channels
    return branch


def make_fork(in_channels: int, channels: int) -> Concat:
    """Return a 1 x 3 and a 3 x 1 convolution side by side."""
    return Concat(make_branch(in_channels, (channels, size)) for size in ((1, 3), (3, 1)))


def average_pool() -> nn.AvgPool2d:
    """Return an average pool over 3 x 3 that keeps the size."""
    return nn.AvgPool2d(3, 1, padding=1)


def make_reduction(in_channels: int, *stack: int, single: int) -> Concat:
    """Halve the image by a stack of three convolutions, by one, and by a max-pool.

    Args:
        in_channels: channels of the input.
        stack: output channels of the three; the last has the stride.
        single: output channels of the single convolution.
    """
    first, second, third = stack
    return Concat(
        [
            make_branch(in_channels, (single, 3, HALVE)),
            make_branch(in_channels, (first, 1), (second, 3), (third, 3, HALVE)),
            nn.MaxPool2d(3, 2),
        ]
    )


def _make_google_cell(
    in_channels: int,
    one: int,
    before_three: int,
    three: int,
    before_five: int,
    five: int,
    pooled: int,
) -> Concat:
    """Return GoogLeNet's four branches, with two 3 x 3 instead of the 5 x 5.

    The normalisation between these two has the number of its channels as eps, as in the network of
    the paper's experiments.
    """
    return Concat(
        [
            make_branch(in_channels, (one, 1), bias=True),
            make_branch(in_channels, (before_three, 1), (three, 3), bias=True),
            nn.Sequential(
                ConvNorm(in_channels, before_five, 1, bias=True),
                ConvNorm(before_five, five, 3, bias=True, eps=five),
                ConvNorm(five, five, 3, bias=True),
            ),
            make_branch(in_channels, (pooled, 1), pool=nn.MaxPool2d(3, 1, padding=1), bias=True),
        ]
    )


class GoogLeNet(nn.Module):
    """Three 3 x 3 convolutions, nine cells and three max-pools, dropout and classifier.

    Args:
        num_classes: outputs.
        in_channels: channels of the image.
        dropout: probability of dropping a feature.
    """

    def __init__(
        self, num_classes: int = 100, *, in_channels: int = 3, dropout: float = 0.4
    ) -> None:
        super().__init__()
        self.stem = make_branch(in_channels, (64, 3), (64, 3), (192, 3))
        self.cells = nn.Sequential(
            nn.MaxPool2d(3, 2, padding=1),
            _make_google_cell(192, 64, 96, 128, 16, 32, 32),
            _make_google_cell(256, 128, 128, 192, 32, 96, 64),
            nn.MaxPool2d(3, 2, padding=1),
            _make_google_cell(480, 192, 96, 208, 16, 48, 64),
            _make_google_cell(512, 160, 112, 224, 24, 64, 64),
            _make_google_cell(512, 128, 128, 256, 24, 64, 64),
            _make_google_cell(512, 112, 144, 288, 32, 64, 64),
            _make_google_cell(528, 256, 160, 320, 32, 128, 128),
            nn.MaxPool2d(3, 2, padding=1),
            _make_google_cell(832, 256, 160, 320, 32, 128, 128),
            _make_google_cell(832, 384, 192, 384, 48, 128, 128),
        )
        self.head = make_head(1024, num_classes, dropout=dropout)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits [N, classes] of images [N, C, H, W]."""
        return self.head(self.cells(self.stem(images)))


class InceptionV3(nn.Module):
    """Five convolutions of stride 1 and the paper's eleven cells, two of which halve the image.

    The convolution after the first cells' average pool is 3 x 3, as in the network of the paper's
    experiments.

    Args:
        num_classes: outputs.
        in_channels: channels of the image.
        dropout: probability of dropping a feature.
    """

    def __init__(
        self, num_classes: int = 100, *, in_channels: int = 3, dropout: float = 0.5
    ) -> None:
        super().__init__()
        self.stem = make_branch(in_channels, (32, 3), (32, 3), (64, 3), (80, 1), (192, 3, (1, 0)))
        self.cells = nn.Sequential(
            self._make_square_cell(192, 32),
            self._make_square_cell(256, 64),
            self._make_square_cell(288, 64),
            make_reduction(288, 64, 96, 96, single=384),
            *(self._make_long_cell(width) for width in (128, 160, 160, 192)),
            Concat(
                [
                    make_branch(768, (192, 1), (320, 3, HALVE)),
                    make_branch(768, (192, 1), (192, (1, 7)), (192, (7, 1)), (192, 3, HALVE)),
                    nn.AvgPool2d(3, 2),
                ]
            ),
            self._make_forked_cell(1280),
            self._make_forked_cell(2048),
        )
        self.head = make_head(2048, num_classes, dropout=dropout)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits [N, classes] of images [N, C, H, W]."""
        return self.head(self.cells(self.stem(images)))

    @staticmethod
    def _make_square_cell(channels: int, pooled: int) -> Concat:
        return Concat(
            [
                make_branch(channels, (64, 1)),
                make_branch(channels, (48, 1), (64, 5)),
                make_branch(channels, (64, 1), (96, 3), (96, 3)),
                make_branch(channels, (pooled, 3), pool=average_pool()),
            ]
        )

    @staticmethod
    def _make_long_cell(width: int) -> Concat:
        once = ((width, (7, 1)), (192, (1, 7)))
        twice = ((width, (7, 1)), (width, (1, 7)), *once)
        return Concat(
            [
                make_branch(768, (192, 1)),
                make_branch(768, (width, 1), *once),
                make_branch(768, (width, 1), *twice),
                make_branch(768, (192, 1), pool=average_pool()),
            ]
        )

    @staticmethod
    def _make_forked_cell(channels: int) -> Concat:
        return Concat(
            [
                make_branch(channels, (320, 1)),
                make_branch(channels, (384, 1)).append(make_fork(384, 384)),
                make_branch(channels, (448, 1), (384, 3)).append(make_fork(384, 384)),
                make_branch(channels, (192, 1), pool=average_pool()),
            ]
        )
