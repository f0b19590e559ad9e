"""The constants of ``trainact.device_costs``, measured on this machine, and what they decide."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from rich.table import Table
from torch import Tensor, nn

from trainact.device_costs import DeviceCosts, find_device_costs
from trainact.lab.cost.cases import LAYERS, Case
from trainact.lab.cost.launches import METHODS, name_choice
from trainact.lab.cost.timing import Work, time_call
from trainact.options import Precision, choose_precision
from trainact.outer_products import full_precision_products
from trainact.overlapping_patches import LEFT_HEIGHT, can_sum_by_lines, sum_by_lines
from trainact.rows import Patches, count_inputs, count_rows, patches_of_layer, unfold_rows

__all__ = [
    "SIZE",
    "Choice",
    "calibrate",
    "compare_choices",
    "make_choice_table",
    "make_cost_table",
]

SIZE = 1024
"""Rows and columns of the large product, and about the length of an image line's product."""

SAMPLES = 5
CALLS = 100
"""Operators called in one sample."""


@dataclass(frozen=True)
class Choice:
    """What two sets of constants choose for a first layer, and the time of each method."""

    name: str
    shipped: str  # by the constants in device_costs.py
    measured: str  # by those of this machine
    times: dict[str, float]  # milliseconds of xᵀx by method

    def loss(self, method: str) -> float:
        """Return the time of a method divided by that of the fastest."""
        return self.times[method] / min(self.times.values())


def calibrate(device: torch.device, dtype: torch.dtype, size: int = SIZE) -> DeviceCosts:
    """Measure the constants in multiplications of a large product; ``size`` scales the work."""
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    left = torch.randn(size // 8, LEFT_HEIGHT, size, device=device).to(dtype)
    right = torch.randn(size // 8, 8 * LEFT_HEIGHT, size, device=device).to(dtype)
    images = torch.randn(max(1, size // 32), 3, 64, 64, device=device).to(dtype)
    patches = patches_of_layer(nn.Conv2d(3, 1, 7, 2, 3))
    one = torch.ones(1, device=device, dtype=dtype)

    def call_operators() -> None:
        for _ in range(CALLS):
            one.add_(1)

    def line_products() -> Tensor:
        return left @ right.mT

    with full_precision_products():
        unit = _time_best(lambda: a @ b) / size**3
        line_product = _time_best(line_products) / (line_products().numel() * size)
    copied = unfold_rows(images, patches).numel()
    copy = _time_best(lambda: unfold_rows(images, patches)) / copied
    operator = _time_best(call_operators) / CALLS
    return DeviceCosts(*(float(f"{t / unit:.2g}") for t in (copy, operator, line_product)))


def compare_choices(
    costs: DeviceCosts,
    device: torch.device,
    dtype: torch.dtype,
    cases: Sequence[Case] = LAYERS,
) -> list[Choice]:
    """Time every method on each first layer, beside what the constants choose.

    Layers with fewer rows than columns are left out, since they need no such sum.
    """
    choices = []
    for case in cases:
        layer = case.make()
        assert isinstance(layer, nn.Conv2d | nn.Linear)
        x, patches = torch.randn(case.shape, device=device).to(dtype), patches_of_layer(layer)
        num_rows, num_inputs = count_rows(x, patches), count_inputs(x, patches)
        if num_rows < num_inputs:
            continue
        precision = choose_precision(None, dtype, device, num_rows, num_inputs)
        shipped = name_choice(x, patches, find_device_costs(device))
        measured = name_choice(x, patches, costs)
        choices.append(Choice(case.name, shipped, measured, _time_methods(x, patches, precision)))
    return choices


def _time_methods(x: Tensor, patches: Patches, precision: Precision) -> dict[str, float]:
    times = {}
    for name, method in METHODS.items():
        if method is not sum_by_lines or can_sum_by_lines(x, patches):
            with full_precision_products():
                times[name] = _time_best(functools.partial(method, x, patches, precision))
    return times


def _time_best(run: Work) -> float:
    """Return the milliseconds of the fastest sample, which other processes disturbed the least."""
    return min(time_call(run) for _ in range(SAMPLES))


def make_cost_table(measured: DeviceCosts, device: torch.device) -> Table:
    """Return the measured constants beside those in ``device_costs.py``."""
    table = Table(title="Costs in multiplications of a large product")
    for column in ("", "in device_costs.py", "measured here"):
        table.add_column(column, justify="right" if column else "left")
    shipped = find_device_costs(device)
    for name in DeviceCosts._fields:
        table.add_row(name, *(f"{getattr(costs, name):,.6g}" for costs in (shipped, measured)))
    return table


def make_choice_table(choices: Sequence[Choice]) -> Table:
    """Return the choices, the time of each method, and the factors lost by a wrong choice."""
    table = Table(title="Methods for xᵀx: milliseconds, and time / fastest of each choice")
    for column in ("", *METHODS, "chosen", "lost", "measured costs choose", "lost"):
        table.add_column(column, justify="right" if column else "left")
    for choice in choices:
        times = (f"{choice.times[m]:.2f}" if m in choice.times else "-" for m in METHODS)
        decided = (
            cell
            for method in (choice.shipped, choice.measured)
            for cell in (method, f"{choice.loss(method):.2f}x")
        )
        table.add_row(choice.name, *times, *decided)
    return table
