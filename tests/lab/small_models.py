"""Small networks, named in recipes as ``small_models:FUNCTION``."""

import os
import signal
from pathlib import Path

import torch
from torch import Tensor, nn


def make_tiny(num_classes: int, in_channels: int = 3, width: int = 8) -> nn.Module:
    """Two layers, without dropout or batch norm."""
    return nn.Sequential(
        nn.Conv2d(in_channels, width, 4, stride=4),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * width, num_classes),
    )


def make_noisy(num_classes: int) -> nn.Module:
    """The same with batch norm and dropout."""
    first, *rest = make_tiny(num_classes)
    return nn.Sequential(first, nn.BatchNorm2d(8), *rest[:3], nn.Dropout(0.3), rest[3])


def make_unbiased(num_classes: int) -> nn.Module:
    """The same as `make_tiny` without a bias in the first layer."""
    _, *rest = make_tiny(num_classes)
    return nn.Sequential(nn.Conv2d(3, 8, 4, stride=4, bias=False), *rest)


def make_deep(num_classes: int) -> nn.Module:
    """A network with hidden layers: a convolution, one with groups, and a matrix."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2),
        nn.BatchNorm2d(16),
        nn.Conv2d(16, 16, 3, groups=16),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 12),
        nn.ReLU(),
        nn.Linear(12, num_classes),
    )


class Skipping(nn.Module):
    """Skips a layer in half of its training steps, as stochastic depth does."""

    skips_parameters = True

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.first, *rest = make_tiny(num_classes)
        self.branch = nn.Conv2d(8, 8, 1)
        self.rest = nn.Sequential(*rest)

    def forward(self, images: Tensor) -> Tensor:
        x = self.first(images)
        if not self.training or torch.rand(()).item() < 0.5:
            x = x + self.branch(x)
        return self.rest(x)


class Counting(nn.Module):
    """Counts its training steps."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.net = make_tiny(num_classes)
        self.calls = 0

    def forward(self, images: Tensor) -> Tensor:
        self.calls += self.training
        return self.net(images)


class Overflowing(Counting):
    """Returns NaN after three steps."""

    def forward(self, images: Tensor) -> Tensor:
        z = super().forward(images)
        return z * (float("nan") if self.calls > 3 else 1.0)


class Mortal(Counting):
    """Kills its process in step 25, unless another process was killed before."""

    def forward(self, images: Tensor) -> Tensor:
        z = super().forward(images)
        if self.calls == 25:
            try:
                Path(os.environ["MORTAL_DIED"]).touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)
            except FileExistsError:
                pass
        return z


def make_loud(num_classes: int) -> nn.Module:
    """Prints a line."""
    print("building a network")
    return make_tiny(num_classes)


def make_number(num_classes: int) -> float:
    return torch.pi * num_classes


def make_broken(num_classes: int) -> nn.Module:
    """Expects another image size."""
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(7, num_classes))
