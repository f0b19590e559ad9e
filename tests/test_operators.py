"""Calls of torch's operators, however their arguments are passed."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from cases import CASES, assert_close
from trainact.operators import OperatorCall, read_operator_call
from trainact.reference import cut_patches
from trainact.rows import unfold_rows


class Recorder(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.calls: list[OperatorCall] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        call = read_operator_call(func, args, kwargs)
        self.calls += [call] if call is not None else []
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "case", [case for case in CASES if "no-" not in case.name], ids=lambda case: case.name
)
def test_the_rows_of_a_call_are_those_of_its_layer(case):
    layer, x = case.draw()
    with Recorder() as recorder:
        layer(x)
    (call,) = recorder.calls
    assert call.weight is layer.weight
    assert call.others.get("bias") is layer.bias
    assert_close(unfold_rows(call.x, call.describe_patches()), cut_patches(x, layer))


def test_keywords_are_read_too():
    x, weight = torch.randn(1, 2, 9), torch.randn(4, 1, 3)
    with Recorder() as recorder:
        F.conv1d(weight=weight, input=x, groups=2, padding=1, stride=(2,))
    (call,) = recorder.calls
    assert call.x is x
    assert call.weight is weight
    patches = call.describe_patches()
    assert (patches.groups, patches.padding, patches.stride) == (2, ((1, 1),), (2,))


def test_other_functions_are_none():
    with Recorder() as recorder:
        nn.ReLU()(torch.randn(3, 4) @ torch.randn(4, 2))
    assert not recorder.calls
