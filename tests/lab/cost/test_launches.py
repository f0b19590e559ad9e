"""Operators of first layers and models; ``tests/test_operator_counts.py`` has the stems."""

import pytest
import torch
from torch import nn

pytest.importorskip("rich", reason="trainact bench needs the extra 'bench'")

from trainact.errors import TrActValueError
from trainact.lab.cost import launches
from trainact.lab.cost.launches import (
    FEW_ROWS,
    METHODS,
    count_launches,
    count_model_launches,
    count_operators,
    make_launch_table,
)
from trainact.lab.models.zoos import build_meta_model


def test_views_and_allocations_are_not_counted():
    x = torch.randn(4, 6)
    assert count_operators(lambda: (torch.empty(3), x.mT.unflatten(0, (2, 3)), x.detach())) == []
    assert count_operators(lambda: x.mT.contiguous() + 1) == ["clone", "add"]


def test_few_rows_need_no_sum_of_outer_products():
    row = count_launches(nn.Conv2d(3, 8, 16, 16), (2, 3, 32, 32))
    assert row["cpu"]["method"] == row["accelerator"]["method"] == FEW_ROWS
    assert row["methods"] == dict.fromkeys(METHODS)
    assert 0 < row["accelerator"]["operators"] <= row["cpu"]["operators"]


def test_a_layer_is_counted_and_left_as_it_is():
    layer = nn.Linear(4, 2)
    before = layer.weight.detach().clone()
    count_launches(layer, (8, 4))
    assert layer.weight.grad is None
    assert torch.equal(layer.weight, before)


def test_the_first_layer_of_a_model_gets_the_whole_batch():
    (row,) = count_model_launches(build_meta_model("torchvision:resnet18").model, batch=4)
    assert (row["name"], row["shape"]) == ("conv1", [4, 3, 224, 224])
    assert make_launch_table([row]).row_count == 1


def test_a_model_that_no_input_reaches_is_refused(monkeypatch):
    monkeypatch.setattr(launches, "list_example_inputs", lambda model: [])
    with pytest.raises(TrActValueError, match="no example input reaches the first layer 'conv1'"):
        count_model_launches(build_meta_model("torchvision:resnet18").model, batch=4)
