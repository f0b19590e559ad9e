"""The two residual blocks of ResNet, ResNeXt, SE-ResNet and stochastic depth."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from trainact.lab.models.networks.layers import ConvNorm

__all__ = ["BasicBlock", "BlockOptions", "Bottleneck", "ResidualBlock", "SqueezeExcite"]


@dataclass(frozen=True)
class BlockOptions:
    """Differences of a residual block from that of ResNet."""

    bias: bool = False
    """Whether its convolutions have a bias."""
    groups: int = 1
    """Groups of a bottleneck's 3 x 3 convolution, and of the 1 x 1 before it (cardinality)."""
    group_width: int = 64
    """Channels of one of those groups in a block of width 64; they grow with the width."""
    reduction: int | None = None
    """Reduction of the channels in squeeze-and-excitation, after a ReLU; None for none."""
    survival: float = 1.0
    """Probability that the branch is kept in a training step."""
    relu: bool = True
    """Whether ReLU follows the sum."""


class SqueezeExcite(nn.Module):
    """Multiply each channel by a gate in (0, 1), computed from the averages of all channels."""

    def __init__(self, channels: int, reduction: int) -> None:
        super().__init__()
        self.squeeze = nn.Linear(channels, channels // reduction)
        self.excite = nn.Linear(channels // reduction, channels)

    def forward(self, x: Tensor) -> Tensor:
        """Return x [N, C, H, W] with gated channels."""
        weights = self.excite(self.squeeze(x.mean((2, 3))).relu()).sigmoid()
        return x * weights[:, :, None, None]


class ResidualBlock(nn.Module):
    """shortcut(x) + branch(x), with a 1 x 1 convolution as shortcut if the shapes differ.

    With a survival probability p below 1, the branch is dropped in a training step with probability
    1 - p (for the whole batch, drawn on the CPU) and multiplied by p in evaluation.

    Args:
        branch: the layers parallel to the shortcut.
        in_channels: channels of the input.
        out_channels: channels of the output.
        stride: of the whole block.
        options: groups and group_width are used by the subclass, the others here too.
    """

    expansion: ClassVar[int]
    """Output channels for each unit of width."""

    def __init__(
        self,
        branch: list[nn.Module],
        in_channels: int,
        out_channels: int,
        stride: int,
        options: BlockOptions,
    ) -> None:
        super().__init__()
        self.branch = nn.Sequential(*branch)
        if options.reduction is not None:
            self.branch.append(SqueezeExcite(out_channels, options.reduction))
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = ConvNorm(
                in_channels,
                out_channels,
                1,
                stride=stride,
                bias=options.bias,
                activation=nn.Identity,
            )
        self.survival, self.relu = options.survival, options.relu
        self.skips_parameters = options.survival < 1  # used when ranks average gradients

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, out_channels, H / stride, W / stride] of x [N, in_channels, H, W]."""
        total = self.shortcut(x)
        if not self._survives():
            return total.relu() if self.relu else total  # not in place: total may be x
        branch = self.branch(x)
        total = total + (branch if self.training or self.survival == 1 else self.survival * branch)
        return total.relu_() if self.relu else total

    def _survives(self) -> bool:
        if not self.training or self.survival == 1:
            return True
        return torch.rand((), device="cpu").item() < self.survival

    def extra_repr(self) -> str:
        """Return the survival probability if it is below 1."""
        return f"survival={self.survival:g}" if self.survival < 1 else ""


class BasicBlock(ResidualBlock):
    """Two 3 x 3 convolutions."""

    expansion = 1

    def __init__(
        self,
        in_channels: int,
        width: int,
        stride: int = 1,
        options: BlockOptions = BlockOptions(),  # noqa: B008  (frozen)
    ) -> None:
        last = nn.Identity if options.reduction is None else nn.ReLU
        branch: list[nn.Module] = [
            ConvNorm(in_channels, width, stride=stride, bias=options.bias),
            ConvNorm(width, width, bias=options.bias, activation=last),
        ]
        super().__init__(branch, in_channels, width, stride, options)


class Bottleneck(ResidualBlock):
    """1 x 1, 3 x 3 and 1 x 1 convolutions; the last has four times the width."""

    expansion = 4

    def __init__(
        self,
        in_channels: int,
        width: int,
        stride: int = 1,
        options: BlockOptions = BlockOptions(),  # noqa: B008  (frozen)
    ) -> None:
        groups, bias = options.groups, options.bias
        last = nn.Identity if options.reduction is None else nn.ReLU
        inner = groups * (options.group_width * width // 64)
        branch: list[nn.Module] = [
            ConvNorm(in_channels, inner, 1, groups=groups, bias=bias),
            ConvNorm(inner, inner, 3, stride=stride, groups=groups, bias=bias),
            ConvNorm(inner, self.expansion * width, 1, bias=bias, activation=last),
        ]
        super().__init__(branch, in_channels, self.expansion * width, stride, options)
