"""Layer configurations that the tests run through, each with a readable name."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Case:
    """A layer and the shape of an input to it."""

    name: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]

    def draw(self, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, Tensor]:
        return self.make().to(dtype), torch.randn(self.shape).to(dtype)


CASES = [
    Case("linear-2d", lambda: nn.Linear(6, 4), (20, 6)),
    Case("linear-3d", lambda: nn.Linear(6, 4), (3, 7, 6)),
    Case("linear-5d", lambda: nn.Linear(6, 4), (2, 3, 2, 2, 6)),
    Case("linear-one-row", lambda: nn.Linear(6, 4), (1, 6)),
    Case("linear-one-dimension", lambda: nn.Linear(6, 4), (6,)),
    Case("linear-few-rows", lambda: nn.Linear(16, 4, bias=False), (5, 16)),
    Case("linear-no-rows", lambda: nn.Linear(6, 4), (0, 6)),
    Case("conv1d", lambda: nn.Conv1d(2, 5, 3, padding=1), (4, 2, 9)),
    Case("conv2d-k3-p1", lambda: nn.Conv2d(3, 5, 3, padding=1), (4, 3, 8, 7)),
    Case("conv2d-k7-s2-p3", lambda: nn.Conv2d(3, 5, 7, stride=2, padding=3), (3, 3, 15, 14)),
    Case("conv2d-patches", lambda: nn.Conv2d(3, 5, 4, stride=4), (3, 3, 12, 8)),
    Case("conv2d-few-rows", lambda: nn.Conv2d(3, 5, 4, stride=4), (2, 3, 8, 8)),
    Case("conv2d-odd", lambda: nn.Conv2d(2, 4, (2, 3), (3, 1), (1, 2), (1, 2)), (3, 2, 9, 8)),
    Case("conv2d-groups", lambda: nn.Conv2d(4, 6, 3, groups=2, bias=False), (3, 4, 8, 8)),
    Case("conv2d-depthwise", lambda: nn.Conv2d(3, 6, 3, groups=3), (3, 3, 8, 8)),
    Case("conv2d-same", lambda: nn.Conv2d(3, 4, (3, 4), padding="same"), (2, 3, 8, 8)),
    Case("conv2d-valid", lambda: nn.Conv2d(3, 4, 3, padding="valid"), (2, 3, 8, 8)),
    Case(
        "conv2d-same-dilated-reflect",
        lambda: nn.Conv2d(3, 4, 4, padding="same", dilation=2, padding_mode="reflect"),
        (2, 3, 9, 9),
    ),
    *(
        Case(
            f"conv2d-{mode}",
            lambda mode=mode: nn.Conv2d(3, 4, 3, padding=(2, 1), padding_mode=mode),
            (3, 3, 7, 7),
        )
        for mode in ("reflect", "replicate", "circular")
    ),
    Case("conv2d-unbatched", lambda: nn.Conv2d(3, 4, 3), (3, 9, 9)),
    Case("conv2d-no-images", lambda: nn.Conv2d(3, 4, 3), (0, 3, 8, 8)),
    Case("conv2d-one-position", lambda: nn.Conv2d(3, 4, 3), (1, 3, 3, 3)),
    Case(
        "conv3d", lambda: nn.Conv3d(2, 4, 2, stride=(1, 2, 2), padding=(1, 0, 0)), (3, 2, 4, 6, 6)
    ),
]


def assert_close(actual: Tensor, expected: Tensor, rtol: float = 1e-9) -> None:
    """Compare by the norm of the difference, which does not depend on scale or on zeros."""
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    difference = (actual.double() - expected.double()).norm()
    bound = rtol * expected.double().norm()
    assert difference <= bound, f"differs by {difference:.3g}, {bound:.3g} allowed"
