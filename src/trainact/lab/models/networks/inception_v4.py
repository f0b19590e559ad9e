"""Inception-v4 and Inception-ResNet-v2, which have the same stem.

Szegedy, Ioffe, Vanhoucke, Alemi: Inception-v4, Inception-ResNet and the Impact of Residual
Connections on Learning, 2017.
"""

from torch import Tensor, nn

from trainact.lab.models.networks.inception import (
    HALVE,
    average_pool,
    make_branch,
    make_fork,
    make_reduction,
)
from trainact.lab.models.networks.layers import Concat, make_head

__all__ = ["InceptionResNetV2", "InceptionV4"]


def _make_stem(in_channels: int) -> nn.Sequential:
    """Return the paper's stem without strides: 384 channels, two pixels fewer per side."""
    return nn.Sequential(
        make_branch(in_channels, (32, 3, (1, 0)), (32, 3), (64, 3)),
        Concat([make_branch(64, (96, 3)), nn.MaxPool2d(3, 1, padding=1)]),
        Concat(
            [
                make_branch(160, (64, 1), (64, (7, 1)), (64, (1, 7)), (96, 3)),
                make_branch(160, (64, 1), (96, 3)),
            ]
        ),
        Concat([nn.MaxPool2d(3, 1, padding=1), make_branch(192, (192, 3))]),
    )


class InceptionV4(nn.Module):
    """The stem, 4, 7 and 3 cells with reductions between them, dropout and classifier.

    Args:
        num_classes: outputs.
        in_channels: channels of the image.
        dropout: probability of dropping a feature.
    """

    def __init__(
        self, num_classes: int = 100, *, in_channels: int = 3, dropout: float = 0.2
    ) -> None:
        super().__init__()
        halve = (2, 1)
        self.stem = _make_stem(in_channels)
        self.cells = nn.Sequential(
            *(self._make_square_cell() for _ in range(4)),
            make_reduction(384, 192, 224, 256, single=384),
            *(self._make_long_cell() for _ in range(7)),
            Concat(
                [
                    make_branch(1024, (192, 1), (192, 3, halve)),
                    make_branch(1024, (256, 1), (256, (1, 7)), (320, (7, 1)), (320, 3, halve)),
                    nn.MaxPool2d(3, 2, padding=1),
                ]
            ),
            *(self._make_forked_cell() for _ in range(3)),
        )
        self.head = make_head(1536, num_classes, dropout=dropout)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits [N, classes] of images [N, C, H, W]."""
        return self.head(self.cells(self.stem(images)))

    @staticmethod
    def _make_square_cell() -> Concat:
        return Concat(
            [
                make_branch(384, (64, 1), (96, 3), (96, 3)),
                make_branch(384, (64, 1), (96, 3)),
                make_branch(384, (96, 1)),
                make_branch(384, (96, 1), pool=average_pool()),
            ]
        )

    @staticmethod
    def _make_long_cell() -> Concat:
        return Concat(
            [
                make_branch(1024, (384, 1)),
                make_branch(1024, (192, 1), (224, (1, 7)), (256, (7, 1))),
                make_branch(
                    1024, (192, 1), (192, (1, 7)), (224, (7, 1)), (224, (1, 7)), (256, (7, 1))
                ),
                make_branch(1024, (128, 1), pool=average_pool()),
            ]
        )

    @staticmethod
    def _make_forked_cell() -> Concat:
        return Concat(
            [
                make_branch(1536, (256, 1)),
                make_branch(1536, (384, 1)).append(make_fork(384, 256)),
                make_branch(1536, (384, 1), (448, (1, 3)), (512, (3, 1))).append(
                    make_fork(512, 256)
                ),
                make_branch(1536, (256, 1), pool=average_pool()),
            ]
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


class InceptionResNetV2(nn.Module):
    """The stem, 5, 10 and 5 residual cells with reductions between them, dropout and classifier.

    The shortcuts are 1 x 1 convolutions, and the branches are scaled by 0.1 in all but the first
    five cells, as in the network of the paper's experiments.

    Args:
        num_classes: outputs.
        in_channels: channels of the image.
        dropout: probability of dropping a feature.
    """

    def __init__(
        self, num_classes: int = 100, *, in_channels: int = 3, dropout: float = 0.2
    ) -> None:
        super().__init__()
        self.stem = _make_stem(in_channels)
        self.cells = nn.Sequential(
            *(self._make_square_cell() for _ in range(5)),
            make_reduction(384, 256, 256, 384, single=384),
            *(self._make_long_cell(channels) for channels in (1152, *9 * (1154,))),
            Concat(
                [
                    make_branch(1154, (256, 1), (384, 3, HALVE)),
                    make_branch(1154, (256, 1), (288, 3, HALVE)),
                    make_branch(1154, (256, 1), (288, 3), (320, 3, HALVE)),
                    nn.MaxPool2d(3, 2),
                ]
            ),
            *(self._make_short_cell(channels) for channels in (2146, *4 * (2048,))),
        )
        self.head = make_head(2048, num_classes, dropout=dropout)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits [N, classes] of images [N, C, H, W]."""
        return self.head(self.cells(self.stem(images)))

    @staticmethod
    def _make_square_cell() -> InceptionResidual:
        branches = Concat(
            [
                make_branch(384, (32, 1)),
                make_branch(384, (32, 1), (32, 3)),
                make_branch(384, (32, 1), (48, 3), (64, 3)),
            ]
        )
        return InceptionResidual(branches, 128, 384, 384, scale=1)

    @staticmethod
    def _make_long_cell(channels: int) -> InceptionResidual:
        branches = Concat(
            [
                make_branch(channels, (192, 1)),
                make_branch(channels, (128, 1), (160, (1, 7)), (192, (7, 1))),
            ]
        )
        return InceptionResidual(branches, 384, channels, 1154, scale=0.1)

    @staticmethod
    def _make_short_cell(channels: int) -> InceptionResidual:
        branches = Concat(
            [
                make_branch(channels, (192, 1)),
                make_branch(channels, (192, 1), (224, (1, 3)), (256, (3, 1))),
            ]
        )
        return InceptionResidual(branches, 448, channels, 2048, scale=0.1)
