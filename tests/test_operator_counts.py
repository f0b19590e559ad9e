"""How many operators one backward of a layer calls on an accelerator; each is a kernel launch.

There is no accelerator here: tensors on the meta device take the same path. They have no values, so
a synchronisation or a shape that depends on values would raise.
"""

import pytest
import torch
from torch import nn

from trainact import TrAct
from trainact.torch_internals import TorchDispatchMode

STEMS = {
    "cifar-3x3": (nn.Conv2d, (3, 64, 3, 1, 1), (128, 3, 32, 32), 25),
    "linear": (nn.Linear, (48, 384), (128, 64, 48), 25),
    "resnet-7x7": (nn.Conv2d, (3, 64, 7, 2, 3), (32, 3, 224, 224), 35),
    "resnet-7x7-batch-256": (nn.Conv2d, (3, 64, 7, 2, 3), (256, 3, 224, 224), 35),
    "vgg-3x3": (nn.Conv2d, (3, 64, 3, 1, 1), (16, 3, 224, 224), 25),
    "convnext-4x4": (nn.Conv2d, (3, 96, 4, 4), (32, 3, 224, 224), 25),
    "vit-s-16": (nn.Conv2d, (3, 384, 16, 16), (32, 3, 224, 224), 25),
    "vit-s-16-few-rows": (nn.Conv2d, (3, 384, 16, 16), (2, 3, 224, 224), 25),
}
stems = pytest.mark.parametrize("name", STEMS)


class OperatorCounter(TorchDispatchMode):
    """Counts operators, without views and allocations."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        is_view = any(r.alias_info and not r.alias_info.is_write for r in func._schema.returns)
        if not is_view and "empty" not in name and name not in ("detach", "_unsafe_view"):
            self.operators.append(name)
        return func(*args, **(kwargs or {}))


def count(name: str, **options) -> list[str]:
    cls, arguments, shape, _ = STEMS[name]
    layer = TrAct(cls(*arguments, device="meta"), **options)
    z = layer(torch.empty(shape, device="meta"))
    grad_z = torch.empty_like(z)
    with OperatorCounter() as counter:
        z.backward(grad_z)
    assert layer.weight.grad.shape == layer.weight.shape
    return counter.operators


@stems
def test_an_accelerator_gets_few_operators(name):
    operators = count(name)
    assert len(operators) <= STEMS[name][3], operators


@stems
def test_summing_over_ranks_takes_at_most_ten_more(name):
    with_sync, alone = count(name, sync=True), count(name)
    assert len(with_sync) <= min(len(alone) + 10, STEMS[name][3] + 10), with_sync
