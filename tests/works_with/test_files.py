"""Copies, checkpoints and averaged models have the contents of a plain model's."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from trainact import apply_tract, load_tract_state, remove_tract, tract_state
from works_with_helpers import import_torchvision_or_skip


def network() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 5))


def tract_network(**options) -> nn.Sequential:
    model = network()
    apply_tract(model, **options)
    return model


def train(model: nn.Module, steps: int = 2, seed: int = 5) -> None:
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(6, 3, 8, 8, generator=generator)).square().mean().backward()
        optimizer.step()


def assert_same_state(one: nn.Module, two: nn.Module) -> None:
    first, second = one.state_dict(), two.state_dict()
    assert list(first) == list(second)
    for name in first:
        assert torch.equal(first[name], second[name]), name


def through_torch_save(state):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def through_safetensors(state):
    safetensors = pytest.importorskip("safetensors.torch", reason="needs safetensors")
    return safetensors.load(safetensors.save(state))


files = pytest.mark.parametrize("store", [through_torch_save, through_safetensors])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"every": 2},
        {"rows": 40},
        {"sync": True},
        {"center": True, "relative": True, "moment_decay": 0.9},
    ],
)
@pytest.mark.parametrize(
    "make_copy", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))]
)
def test_copies_train_as_the_original_does(make_copy, options):
    model = tract_network(**options)
    twin = make_copy(model)
    train(model)
    train(twin)
    assert_same_state(model, twin)


@files
@pytest.mark.parametrize("options", [{}, {"center": True, "moment_decay": 0.9}], ids=str)
def test_a_checkpoint_of_tract_is_a_checkpoint_of_the_plain_model(store, options):
    model = tract_network(**options)
    train(model)
    plain = network()
    plain.load_state_dict(store(model.state_dict()), strict=True)
    assert_same_state(plain, model)
    train(plain)
    model.load_state_dict(store(plain.state_dict()), strict=True)
    assert_same_state(plain, model)


@files
@pytest.mark.parametrize("options", [{}, {"center": True, "moment_decay": 0.9}], ids=str)
def test_training_resumes_from_a_file(store, options):
    whole, first = tract_network(**options), tract_network(**options)
    first.load_state_dict(whole.state_dict())
    train(whole, seed=1)
    train(whole, seed=2)
    train(first, seed=1)
    second = tract_network(**options)
    second.load_state_dict(store(first.state_dict()))
    load_tract_state(second, store(tract_state(first)))
    train(second, seed=2)
    assert_same_state(whole, second)


def average_with_timm(model):
    import_torchvision_or_skip()
    from timm.utils import ModelEmaV3

    averaged = ModelEmaV3(model, decay=0.5)
    averaged.update(model)  # as torch's first update does: no change yet
    return averaged, averaged.update


def average_with_torch(model):
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5), use_buffers=True)
    averaged.update_parameters(model)
    return averaged, averaged.update_parameters


@pytest.mark.parametrize("average", [average_with_timm, average_with_torch])
def test_an_average_of_the_weights_is_the_plain_models(average):
    model = tract_network()
    averaged, update = average(model)
    expected = {name: p.detach().clone() for name, p in model.named_parameters()}
    for seed in range(3):
        train(model, steps=1, seed=seed)
        update(model)
        for name, parameter in model.named_parameters():
            expected[name].lerp_(parameter.detach(), 0.5)
    for name, parameter in averaged.module.named_parameters():
        torch.testing.assert_close(parameter.detach(), expected[name])
    assert remove_tract(averaged.module) == ["0"]
    network().load_state_dict(averaged.module.state_dict(), strict=True)
