"""Layers that most networks share."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Concat", "ConvNorm", "make_builder", "make_convs", "make_head", "make_stages"]

Size = int | tuple[int, int]


class ConvNorm(nn.Sequential):
    """A convolution, batch normalisation and an activation.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        kernel_size: one number or (height, width).
        stride: in both directions.
        padding: pixels on each side; None keeps the size at stride 1.
        groups: of the convolution.
        bias: whether the convolution has a bias, which the normalisation cancels.
        activation: class of the activation; ``nn.Identity`` for none.
        eps: of the normalisation.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size = 3,
        *,
        stride: int = 1,
        padding: int | None = None,
        groups: int = 1,
        bias: bool = False,
        activation: Callable[..., nn.Module] = nn.ReLU,
        eps: float = 1e-5,
    ) -> None:
        super().__init__()
        kernel = (kernel_size, kernel_size) if isinstance(kernel_size, int) else kernel_size
        around = (kernel[0] // 2, kernel[1] // 2) if padding is None else (padding, padding)
        self.conv = nn.Conv2d(
            in_channels, out_channels, kernel, stride, around, groups=groups, bias=bias
        )
        self.norm = nn.BatchNorm2d(out_channels, eps=eps)
        self.activation = activation(inplace=True)


class Concat(nn.ModuleList):
    """Parallel branches of the same input, whose channels are concatenated."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__(branches)

    def forward(self, x: Tensor) -> Tensor:
        """Return the branches' outputs [N, sum of channels, H', W'] of x [N, C, H, W]."""
        return torch.cat([branch(x) for branch in self], dim=1)


def make_convs(
    in_channels: int,
    *layers: tuple[int, Size] | tuple[int, Size, tuple[int, int]],
    pool: nn.Module | None = None,
    bias: bool = False,
) -> nn.Sequential:
    """Return a sequence of `ConvNorm`.

    Args:
        in_channels: channels of the input.
        layers: output channels, kernel size and optionally (stride, padding) of each convolution;
            by default the stride is 1 and the padding keeps the size.
        pool: a module before the convolutions.
        bias: whether the convolutions have a bias.
    """
    convs = nn.Sequential() if pool is None else nn.Sequential(pool)
    for channels, size, *rest in layers:
        stride, padding = rest[0] if rest else (1, None)
        convs.append(
            ConvNorm(in_channels, channels, size, stride=stride, padding=padding, bias=bias)
        )
        in_channels = channels
    return convs


def make_stages(
    block: Callable[[int, int, int], nn.Module],
    widths: Sequence[int],
    depths: Sequence[int],
    strides: Sequence[int],
) -> nn.Sequential:
    """Return stages of blocks, which are made by ``block(in_channels, out_channels, stride)``.

    Args:
        block: makes a block.
        widths: input channels, then the channels of each stage.
        depths: blocks of each stage.
        strides: stride of the first block of each stage.
    """
    stages = nn.Sequential()
    for (before, width), depth, stride in zip(
        itertools.pairwise(widths), depths, strides, strict=True
    ):
        later = (block(width, width, 1) for _ in range(depth - 1))
        stages.append(nn.Sequential(block(before, width, stride), *later))
    return stages


def make_head(features: int, num_classes: int, *, dropout: float = 0.0) -> nn.Sequential:
    """Return average pooling and a classifier: [N, features, H, W] to [N, num_classes].

    ``dropout`` is the probability of dropping a feature.
    """
    parts: list[nn.Module] = [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    if dropout:
        parts.append(nn.Dropout(dropout))
    return nn.Sequential(*parts, nn.Linear(features, num_classes))


def make_builder(
    network: Callable[..., nn.Module], *args: Any, **options: Any
) -> Callable[..., nn.Module]:
    """Return a builder with the arguments ``num_classes`` and ``in_channels``.

    It calls ``network(*args, num_classes, in_channels=in_channels, **options)``.
    """

    def build(num_classes: int = 100, *, in_channels: int = 3) -> nn.Module:
        return network(*args, num_classes, in_channels=in_channels, **options)

    return build
