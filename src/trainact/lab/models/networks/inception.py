"""GoogLeNet, Inception-v3, Inception-v4 and Inception-ResNet-v2: cells of parallel branches.

Szegedy et al.: Going Deeper with Convolutions, 2015.
Szegedy, Vanhoucke, Ioffe, Shlens, Wojna: Rethinking the Inception Architecture for Computer Vision,
2016.
Szegedy, Ioffe, Vanhoucke, Alemi: Inception-v4, Inception-ResNet and the Impact of Residual
Connections on Learning, 2017.
"""

from torch import Tensor, nn

from trainact.lab.models.networks.layers import Concat, ConvNorm, make_convs, make_head

__all__ = ["GoogLeNet", "InceptionResNetV2", "InceptionV3", "InceptionV4"]

HALVE = (2, 0)
"""Stride and padding of a 3 x 3 convolution that halves the image without padding."""


def _make_fork(in_channels: int, channels: int) -> Concat:
    """Return a 1 x 3 and a 3 x 1 convolution side by side."""
    return Concat(*(make_convs(in_channels, (channels, size)) for size in ((1, 3), (3, 1))))


def _average() -> nn.AvgPool2d:
    """Return an average pool over 3 x 3 that keeps the size."""
    return nn.AvgPool2d(3, 1, padding=1)


def _make_reduction(in_channels: int, *stack: int, single: int) -> Concat:
    """Halve the image by one convolution, by a stack of three, and by a max-pool.

    ``single`` and ``stack`` are the output channels; the last of the stack has the stride.
    """
    first, second, third = stack
    return Concat(
        make_convs(in_channels, (single, 3, HALVE)),
        make_convs(in_channels, (first, 1), (second, 3), (third, 3, HALVE)),
        nn.MaxPool2d(3, 2),
    )


def _make_google_cell(
    in_channels: int, one: int, three: tuple[int, int], five: tuple[int, int], pooled: int
) -> Concat:
    """Return GoogLeNet's four branches, with two 3 x 3 instead of the 5 x 5.

    The normalisation between these two has the number of its channels as eps, as in the network of
    the paper's experiments.
    """
    return Concat(
        make_convs(in_channels, (one, 1), bias=True),
        make_convs(in_channels, (three[0], 1), (three[1], 3), bias=True),
        nn.Sequential(
            ConvNorm(in_channels, five[0], 1, bias=True),
            ConvNorm(*five, 3, bias=True, eps=five[1]),
            ConvNorm(five[1], five[1], 3, bias=True),
        ),
        make_convs(in_channels, (pooled, 1), pool=nn.MaxPool2d(3, 1, padding=1), bias=True),
    )


class GoogLeNet(nn.Sequential):
    """Three 3 x 3 convolutions, nine cells and three max-pools, dropout and classifier."""

    def __init__(
        self, num_classes: int = 100, *, in_channels: int = 3, dropout: float = 0.4
    ) -> None:
        super().__init__()
        self.stem = make_convs(in_channels, (64, 3), (64, 3), (192, 3))
        self.cells = nn.Sequential(
            nn.MaxPool2d(3, 2, padding=1),
            _make_google_cell(192, 64, (96, 128), (16, 32), 32),
            _make_google_cell(256, 128, (128, 192), (32, 96), 64),
            nn.MaxPool2d(3, 2, padding=1),
            _make_google_cell(480, 192, (96, 208), (16, 48), 64),
            _make_google_cell(512, 160, (112, 224), (24, 64), 64),
            _make_google_cell(512, 128, (128, 256), (24, 64), 64),
            _make_google_cell(512, 112, (144, 288), (32, 64), 64),
            _make_google_cell(528, 256, (160, 320), (32, 128), 128),
            nn.MaxPool2d(3, 2, padding=1),
            _make_google_cell(832, 256, (160, 320), (32, 128), 128),
            _make_google_cell(832, 384, (192, 384), (48, 128), 128),
        )
        self.head = make_head(1024, num_classes, dropout=dropout)


class InceptionV3(nn.Sequential):
    """Five convolutions of stride 1 and the paper's eleven cells, two of which halve the image.

    The convolution after the first cells' average pool is 3 x 3, as in the network of the paper's
    experiments.
    """

    def __init__(
        self, num_classes: int = 100, *, in_channels: int = 3, dropout: float = 0.5
    ) -> None:
        super().__init__()
        self.stem = make_convs(in_channels, (32, 3), (32, 3), (64, 3), (80, 1), (192, 3, (1, 0)))
        self.cells = nn.Sequential(
            self._make_square_cell(192, 32),
            self._make_square_cell(256, 64),
            self._make_square_cell(288, 64),
            _make_reduction(288, 64, 96, 96, single=384),
            *(self._make_long_cell(width) for width in (128, 160, 160, 192)),
            Concat(
                make_convs(768, (192, 1), (320, 3, HALVE)),
                make_convs(768, (192, 1), (192, (1, 7)), (192, (7, 1)), (192, 3, HALVE)),
                nn.AvgPool2d(3, 2),
            ),
            self._make_forked_cell(1280),
            self._make_forked_cell(2048),
        )
        self.head = make_head(2048, num_classes, dropout=dropout)

    @staticmethod
    def _make_square_cell(channels: int, pooled: int) -> Concat:
        return Concat(
            make_convs(channels, (64, 1)),
            make_convs(channels, (48, 1), (64, 5)),
            make_convs(channels, (64, 1), (96, 3), (96, 3)),
            make_convs(channels, (pooled, 3), pool=_average()),
        )

    @staticmethod
    def _make_long_cell(width: int) -> Concat:
        once = ((width, (7, 1)), (192, (1, 7)))
        return Concat(
            make_convs(768, (192, 1)),
            make_convs(768, (width, 1), *once),
            make_convs(768, (width, 1), (width, (7, 1)), (width, (1, 7)), *once),
            make_convs(768, (192, 1), pool=_average()),
        )

    @staticmethod
    def _make_forked_cell(channels: int) -> Concat:
        return Concat(
            make_convs(channels, (320, 1)),
            make_convs(channels, (384, 1)).append(_make_fork(384, 384)),
            make_convs(channels, (448, 1), (384, 3)).append(_make_fork(384, 384)),
            make_convs(channels, (192, 1), pool=_average()),
        )


def _make_stem(in_channels: int) -> nn.Sequential:
    """Return the stem of Inception-v4 without strides: 384 channels, two pixels fewer per side."""
    return nn.Sequential(
        make_convs(in_channels, (32, 3, (1, 0)), (32, 3), (64, 3)),
        Concat(make_convs(64, (96, 3)), nn.MaxPool2d(3, 1, padding=1)),
        Concat(
            make_convs(160, (64, 1), (64, (7, 1)), (64, (1, 7)), (96, 3)),
            make_convs(160, (64, 1), (96, 3)),
        ),
        Concat(nn.MaxPool2d(3, 1, padding=1), make_convs(192, (192, 3))),
    )


class InceptionV4(nn.Sequential):
    """The stem, 4, 7 and 3 cells with reductions between them, dropout and classifier."""

    def __init__(
        self, num_classes: int = 100, *, in_channels: int = 3, dropout: float = 0.2
    ) -> None:
        super().__init__()
        halve = (2, 1)
        self.stem = _make_stem(in_channels)
        self.cells = nn.Sequential(
            *(self._make_square_cell() for _ in range(4)),
            _make_reduction(384, 192, 224, 256, single=384),
            *(self._make_long_cell() for _ in range(7)),
            Concat(
                make_convs(1024, (192, 1), (192, 3, halve)),
                make_convs(1024, (256, 1), (256, (1, 7)), (320, (7, 1)), (320, 3, halve)),
                nn.MaxPool2d(3, 2, padding=1),
            ),
            *(self._make_forked_cell() for _ in range(3)),
        )
        self.head = make_head(1536, num_classes, dropout=dropout)

    @staticmethod
    def _make_square_cell() -> Concat:
        return Concat(
            make_convs(384, (64, 1), (96, 3), (96, 3)),
            make_convs(384, (64, 1), (96, 3)),
            make_convs(384, (96, 1)),
            make_convs(384, (96, 1), pool=_average()),
        )

    @staticmethod
    def _make_long_cell() -> Concat:
        return Concat(
            make_convs(1024, (384, 1)),
            make_convs(1024, (192, 1), (224, (1, 7)), (256, (7, 1))),
            make_convs(1024, (192, 1), (192, (1, 7)), (224, (7, 1)), (224, (1, 7)), (256, (7, 1))),
            make_convs(1024, (128, 1), pool=_average()),
        )

    @staticmethod
    def _make_forked_cell() -> Concat:
        return Concat(
            make_convs(1536, (256, 1)),
            make_convs(1536, (384, 1)).append(_make_fork(384, 256)),
            make_convs(1536, (384, 1), (448, (1, 3)), (512, (3, 1))).append(_make_fork(512, 256)),
            make_convs(1536, (256, 1), pool=_average()),
        )


class InceptionResidual(nn.Module):
    """Sum of a 1 x 1 convolution of the branches and one of the input; norm and ReLU.

    Args:
        branches: applied to the input.
        made: channels of all branches together.
        in_channels: channels of the input.
        out_channels: channels of the output.
        scale: factor of the branches in the sum.
    """

    def __init__(
        self, branches: Concat, made: int, in_channels: int, out_channels: int, scale: float
    ) -> None:
        super().__init__()
        self.branches = branches
        self.mix = nn.Conv2d(made, out_channels, 1)
        self.shortcut = nn.Conv2d(in_channels, out_channels, 1)
        self.norm = nn.BatchNorm2d(out_channels)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, out_channels, H, W] of x [N, in_channels, H, W]."""
        made = self.mix(self.branches(x))
        return self.norm(self.shortcut(x) + self.scale * made).relu_()


class InceptionResNetV2(nn.Sequential):
    """The stem, 5, 10 and 5 residual cells with reductions between them, dropout and classifier.

    The shortcuts are 1 x 1 convolutions, and the branches are scaled by 0.1 in all but the first
    five cells, as in the network of the paper's experiments.
    """

    def __init__(
        self, num_classes: int = 100, *, in_channels: int = 3, dropout: float = 0.2
    ) -> None:
        super().__init__()
        self.stem = _make_stem(in_channels)
        self.cells = nn.Sequential(
            *(self._make_square_cell() for _ in range(5)),
            _make_reduction(384, 256, 256, 384, single=384),
            *(self._make_long_cell(channels) for channels in (1152, *9 * (1154,))),
            Concat(
                make_convs(1154, (256, 1), (384, 3, HALVE)),
                make_convs(1154, (256, 1), (288, 3, HALVE)),
                make_convs(1154, (256, 1), (288, 3), (320, 3, HALVE)),
                nn.MaxPool2d(3, 2),
            ),
            *(self._make_short_cell(channels) for channels in (2146, *4 * (2048,))),
        )
        self.head = make_head(2048, num_classes, dropout=dropout)

    @staticmethod
    def _make_square_cell() -> InceptionResidual:
        branches = Concat(
            make_convs(384, (32, 1)),
            make_convs(384, (32, 1), (32, 3)),
            make_convs(384, (32, 1), (48, 3), (64, 3)),
        )
        return InceptionResidual(branches, 128, 384, 384, scale=1)

    @staticmethod
    def _make_long_cell(channels: int) -> InceptionResidual:
        branches = Concat(
            make_convs(channels, (192, 1)),
            make_convs(channels, (128, 1), (160, (1, 7)), (192, (7, 1))),
        )
        return InceptionResidual(branches, 384, channels, 1154, scale=0.1)

    @staticmethod
    def _make_short_cell(channels: int) -> InceptionResidual:
        branches = Concat(
            make_convs(channels, (192, 1)),
            make_convs(channels, (192, 1), (224, (1, 3)), (256, (3, 1))),
        )
        return InceptionResidual(branches, 448, channels, 2048, scale=0.1)
