"""Evaluation mode for a while: whatever happens in it, flags and buffers are restored."""

import contextlib

import pytest
import torch
from torch import nn

from trainact import find_first_layers, whiten
from trainact.evaluation import evaluation_mode


class Counter(nn.Module):
    """Updates its buffers in every forward, and reads a value, which the meta device refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("replaced", torch.zeros(()))
        self.register_buffer("largest", None)
        self.register_buffer("wide", torch.tensor([torch.nan, 1.0]))

    def forward(self, images):
        self.calls += 1
        self.replaced = self.replaced + 1
        self.largest = images.max()
        self.wide.data.add_(images.max().item() + 1)
        if not hasattr(self, "added"):
            self.register_buffer("added", self.largest)
        return self.stem(images)


def assert_unchanged(model: Counter, buffers: dict[str, torch.Tensor]) -> None:
    assert list(dict(model.named_buffers())) == list(buffers)
    for name, buffer in model.named_buffers():
        assert buffer is buffers[name]
    assert model.calls == model.replaced == 0
    assert model.largest is None
    assert not hasattr(model, "added")
    assert model.wide.isnan().tolist() == [True, False]
    assert model.wide[1] == 1
    assert model.training


def use_block(model: nn.Module) -> None:
    with evaluation_mode(model):
        assert not model.training
        assert not model.stem.training
        model(torch.rand(2, 3, 8, 8))
    with contextlib.suppress(ZeroDivisionError), evaluation_mode(model):
        raise ZeroDivisionError(model(torch.rand(2, 3, 8, 8)))


@pytest.mark.parametrize(
    "use",
    [use_block, find_first_layers, lambda model: whiten(model, torch.rand(8, 3, 8, 8))],
    ids=["block", "find_first_layers", "whiten"],
)
def test_buffers_are_restored(use):
    model = Counter()
    buffers = dict(model.named_buffers())
    use(model)
    assert_unchanged(model, buffers)


def test_only_flags_are_set():
    class Own(nn.Linear):
        def train(self, mode=True):
            raise AssertionError("a model's own method may do more")

    model = nn.Sequential(Own(2, 2), nn.Dropout().eval())
    with evaluation_mode(model):
        assert not any(module.training for module in model.modules())
    assert [module.training for module in model.modules()] == [True, True, False]


def test_buffers_without_plain_values_stay_the_same_objects():
    lazy = nn.LazyBatchNorm2d(affine=False)
    meta = nn.BatchNorm2d(3, device="meta")
    model = nn.Sequential(lazy, meta)
    model.register_buffer("sparse", torch.eye(2).to_sparse())
    model.register_buffer("repeated", torch.ones(1).expand(4))
    model.register_buffer("wide", torch.ones(2))
    buffers = dict(model.named_buffers())
    with evaluation_mode(model):
        pass
    assert all(buffer is buffers[name] for name, buffer in model.named_buffers())
