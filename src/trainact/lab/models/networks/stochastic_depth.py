"""ResNets whose blocks are left out at random while they are trained.

Huang, Sun, Liu, Sedra, Weinberger: Deep Networks with Stochastic Depth, 2016.
"""

from trainact.lab.models.networks.residual import BasicBlock, BlockOptions, Bottleneck
from trainact.lab.models.networks.resnet import ResNet

__all__ = ["stochasticdepth18", "stochasticdepth34", "stochasticdepth50", "stochasticdepth101"]


def stochasticdepth18(num_classes: int = 100, *, in_channels: int = 3) -> ResNet:
    """Return ResNet-18 of stochastic depth (Huang et al., 2016): 11,224,932 parameters."""
    return _build_stochasticdepth(BasicBlock, (2, 2, 2, 2), num_classes, in_channels)


def stochasticdepth34(num_classes: int = 100, *, in_channels: int = 3) -> ResNet:
    """Return ResNet-34 of stochastic depth (Huang et al., 2016): 21,336,804 parameters."""
    return _build_stochasticdepth(BasicBlock, (3, 4, 6, 3), num_classes, in_channels)


def stochasticdepth50(num_classes: int = 100, *, in_channels: int = 3) -> ResNet:
    """Return ResNet-50 of stochastic depth (Huang et al., 2016): 23,705,316 parameters."""
    return _build_stochasticdepth(Bottleneck, (3, 4, 6, 3), num_classes, in_channels)


def stochasticdepth101(num_classes: int = 100, *, in_channels: int = 3) -> ResNet:
    """Return ResNet-101 of stochastic depth (Huang et al., 2016): 42,697,444 parameters."""
    return _build_stochasticdepth(Bottleneck, (3, 4, 23, 3), num_classes, in_channels)


def _build_stochasticdepth(
    block: type[BasicBlock | Bottleneck],
    depths: tuple[int, ...],
    num_classes: int,
    in_channels: int,
) -> ResNet:
    """Return blocks that survive with a probability falling linearly from 1 to 0.5.

    No ReLU follows a block's sum, and the first convolution and basic blocks have a bias, as in the
    network of the paper's experiments.
    """
    options = BlockOptions(bias=block is BasicBlock, relu=False)
    return ResNet(
        block,
        depths,
        num_classes,
        in_channels=in_channels,
        first_bias=True,
        options=options,
        last_survival=0.5,
    )
