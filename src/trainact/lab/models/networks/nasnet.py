"""NASNet-A: repeated cells from architecture search.

Zoph, Vasudevan, Shlens, Le: Learning Transferable Architectures for Scalable Image Recognition,
2018.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainact.lab.models.networks.layers import make_head

__all__ = ["NASNet"]


def _make_pointwise(in_channels: int, out_channels: int, *, bias: bool) -> nn.Sequential:
    """ReLU, a 1 x 1 convolution and normalisation."""
    return nn.Sequential(
        nn.ReLU(),
        nn.Conv2d(in_channels, out_channels, 1, bias=bias),
        nn.BatchNorm2d(out_channels),
    )


def _make_separable(
    channels: int, size: int, *, stride: int = 1, first_bias: bool = True
) -> nn.Sequential:
    """ReLU, depthwise and pointwise convolution and normalisation, twice.

    ``stride`` and ``first_bias`` are those of the first depthwise convolution; all other
    convolutions have a bias.
    """
    parts: list[nn.Module] = []
    for step, bias in ((stride, first_bias), (1, True)):
        around = size // 2
        depthwise = nn.Conv2d(channels, channels, size, step, around, groups=channels, bias=bias)
        pointwise = nn.Conv2d(channels, channels, 1)
        parts += [nn.ReLU(), depthwise, pointwise, nn.BatchNorm2d(channels)]
    return nn.Sequential(*parts)


class Halve(nn.Module):
    """Halve the image: half of the channels from every second pixel, half from its diagonal one."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.even = nn.Conv2d(in_channels, out_channels // 2, 1)
        self.odd = nn.Conv2d(in_channels, out_channels // 2, 1)
        self.norm = nn.BatchNorm2d(out_channels)

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, out_channels, H / 2, W / 2] of x [N, in_channels, H, W]."""
        x = x.relu()
        diagonal = F.pad(x[:, :, 1:, 1:], (0, 1, 0, 1))
        joined = [self.even(x[:, :, ::2, ::2]), self.odd(diagonal[:, :, ::2, ::2])]
        return self.norm(torch.cat(joined, dim=1))


def _make_fit(in_channels: int, out_channels: int, *, halve: bool) -> nn.Module:
    """Return the module that adapts the output of the second-last cell to the current one."""
    if halve:
        return Halve(in_channels, out_channels)
    if in_channels != out_channels:
        return _make_pointwise(in_channels, out_channels, bias=True)
    return nn.Identity()


class NormalCell(nn.Module):
    """Five sums of branches, concatenated with the adapted earlier input: 6 · ``channels``.

    Args:
        channels: of each branch.
        in_channels: of the last cell's output.
        earlier_channels: of the second-last cell's output.
        halve: whether the earlier output has twice the size.
    """

    growth = 6

    def __init__(
        self, channels: int, in_channels: int, earlier_channels: int, *, halve: bool
    ) -> None:
        super().__init__()
        self.fit = _make_fit(earlier_channels, channels, halve=halve)
        self.squeeze = _make_pointwise(in_channels, channels, bias=False)
        self.branches = nn.ModuleList(
            _make_separable(channels, size, first_bias=False) for size in (3, 3, 5, 5, 3)
        )

    def forward(self, x: Tensor, earlier: Tensor) -> Tensor:
        """Return [N, 6 · channels, H, W]."""
        p, h = self.fit(earlier), self.squeeze(x)
        first, second, third, fourth, fifth = self.branches
        average_p, average_h = _average(p), _average(h)
        sums = [
            first(h) + h,
            second(p) + third(h),
            average_h + h,  # the paper has p here, the network of its experiments h
            average_p + average_p,
            fourth(p) + fifth(p),
        ]
        return torch.cat([p, *sums], dim=1)


class ReductionCell(nn.Module):
    """Like NormalCell, but halves the image and concatenates four sums: 4 · ``channels``."""

    growth = 4

    def __init__(
        self, channels: int, in_channels: int, earlier_channels: int, *, halve: bool
    ) -> None:
        super().__init__()
        self.fit = _make_fit(earlier_channels, channels, halve=halve)
        self.squeeze = _make_pointwise(in_channels, channels, bias=True)
        self.branches = nn.ModuleList(
            _make_separable(channels, size, stride=2) for size in (7, 5, 7, 5)
        )
        self.last = _make_separable(channels, 3)

    def forward(self, x: Tensor, earlier: Tensor) -> Tensor:
        """Return [N, 4 · channels, H / 2, W / 2]."""
        p, h = self.fit(earlier), self.squeeze(x)
        first, second, third, fourth = self.branches
        largest = F.max_pool2d(h, 3, 2, padding=1)
        start = first(p) + second(h)
        joined = largest + third(p)
        sums = [
            joined,
            _average(h, stride=2) + fourth(p),
            largest + self.last(start),
            _average(start) + joined,
        ]
        return torch.cat(sums, dim=1)


def _average(x: Tensor, stride: int = 1) -> Tensor:
    return F.avg_pool2d(x, 3, stride, padding=1)


class NASNet(nn.Module):
    """A 3 x 3 convolution and three stages of normal cells, with reduction cells between them.

    The inputs of a cell are the outputs of the last two cells, or twice that of the convolution. A
    cell has only the layers that it needs to adapt its inputs. In the network of the paper's
    experiments, every cell has the layers of all cases: 28 convolutions and 887,568 parameters
    more, 5,221,624 in total, which never get a gradient.

    ``cells`` is the number of normal cells per stage, ``filters`` that of the channels of the first
    convolution and of a branch in the first stage.
    """

    def __init__(
        self, num_classes: int = 100, *, in_channels: int = 3, cells: int = 4, filters: int = 44
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(in_channels, filters, 3, padding=1, bias=False), nn.BatchNorm2d(filters)
        )
        self.cells = nn.ModuleList()
        earlier, last, halve = filters, filters, False
        for stage in range(3):
            channels = filters * 2**stage
            kinds = [ReductionCell] * bool(stage) + [NormalCell] * cells
            for kind in kinds:
                self.cells.append(kind(channels, last, earlier, halve=halve))
                earlier, last, halve = last, channels * kind.growth, kind is ReductionCell
        self.head = make_head(last, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits [N, classes] of images [N, C, H, W]."""
        x = earlier = self.stem(images)
        for cell in self.cells:
            x, earlier = cell(x, earlier), x
        return self.head(x.relu())
