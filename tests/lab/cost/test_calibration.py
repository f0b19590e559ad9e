"""The constants that decide between the methods, measured with tiny sizes; no time is asserted."""

import pytest
import torch
from torch import nn

pytest.importorskip("rich", reason="trainact bench needs the extra 'bench'")

from trainact.device_costs import CPU as CPU_COSTS
from trainact.lab.cost.calibration import (
    Choice,
    calibrate,
    compare_choices,
    make_choice_table,
    make_cost_table,
)
from trainact.lab.cost.cases import LayerCase

CPU = torch.device("cpu")
STEMS = (
    LayerCase("conv", lambda: nn.Conv2d(3, 4, 3, padding=1), (64, 3, 32, 32)),
    LayerCase("linear", lambda: nn.Linear(8, 4), (32, 8)),
    LayerCase("few rows", lambda: nn.Linear(8, 4), (2, 8)),
)


def test_the_costs_are_measured_in_multiplications():
    costs = calibrate(CPU, torch.float32, size=32)
    assert all(cost > 0 for cost in costs)
    table = make_cost_table(costs, CPU)
    assert [next(iter(c.cells)) for c in table.columns] == ["copy", "30", f"{costs.copy:,.6g}"]


def test_the_measured_costs_decide_and_every_method_is_timed():
    never_lines = CPU_COSTS._replace(line_product=1e9)
    conv, linear = compare_choices(never_lines, CPU, torch.float32, STEMS)
    assert (conv.name, conv.shipped, conv.measured) == ("conv", "by lines", "by unfolding")
    assert set(conv.times) == {"by unfolding", "by large chunks", "by lines"}
    assert (linear.shipped, linear.measured) == ("by unfolding", "by unfolding")
    assert set(linear.times) == {"by unfolding", "by large chunks"}
    assert make_choice_table([conv, linear]).row_count == 2


def test_a_wrong_choice_loses_a_factor():
    choice = Choice("x", "by lines", "by unfolding", {"by lines": 6.0, "by unfolding": 2.0})
    assert (choice.loss("by lines"), choice.loss("by unfolding")) == (3, 1)
    cells = [next(iter(column.cells)) for column in make_choice_table([choice]).columns]
    assert cells == ["x", "2.00", "-", "6.00", "by lines", "3.00x", "by unfolding", "1.00x"]
