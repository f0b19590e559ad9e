"""What decides between the methods that sum xᵀx: the cost of their steps on each kind of device.

The unit is one multiplication of a large matrix product. ``trainact bench --calibrate`` measures
these numbers on a machine and shows what they would choose there.
"""

from typing import NamedTuple

import torch

__all__ = ["ACCELERATOR", "CPU", "DeviceCosts", "find_device_costs"]


class DeviceCosts(NamedTuple):
    """Costs on one kind of device, in multiplications of a large matrix product."""

    copy: float
    """Copying one number."""
    operator: float
    """Calling one operator: on an accelerator, the launch of a kernel."""
    line_product: float
    """One multiplication in a product of image lines, whose left matrix has about 12 rows."""


CPU = DeviceCosts(copy=30, operator=250_000, line_product=1)
"""Measured on two threads of an AMD EPYC."""

ACCELERATOR = DeviceCosts(copy=50, operator=80_000_000, line_product=10)
"""Estimated for a GPU of 10 T multiplications, 1.5 TB and 125,000 launches a second; never run."""


def find_device_costs(device: torch.device) -> DeviceCosts:
    """Return the costs on ``device``; everything but a CPU counts as an accelerator."""
    return CPU if device.type == "cpu" else ACCELERATOR
