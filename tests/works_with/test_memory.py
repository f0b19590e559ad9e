"""TrAct's gradient stays exact with the usual ways to save memory or time."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from cases import assert_close
from trainact import TrAct, apply_tract, remove_tract


def network() -> nn.Sequential:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 36, 5))
    apply_tract(model)
    return model


def images() -> torch.Tensor:
    return torch.randn(6, 3, 8, 8)


def grads(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.parametrize(
    ("use_reentrant", "input_requires_grad"),
    [(False, False), (False, True), (True, True)],  # the reentrant variant needs such an input
)
def test_activation_checkpointing_is_exact(use_reentrant, input_requires_grad):
    model, x = network(), images().requires_grad_(input_requires_grad)
    model(x).square().mean().backward()
    expected = grads(model)
    model.zero_grad()
    checkpoint(model, x, use_reentrant=use_reentrant).square().mean().backward()
    for actual, target in zip(grads(model), expected, strict=True):
        assert torch.equal(actual, target)


def test_saved_tensors_may_be_offloaded():
    model, x = network(), images()
    model(x).square().mean().backward()
    expected = grads(model)
    model.zero_grad()
    with torch.autograd.graph.save_on_cpu():
        z = model(x)
    z.square().mean().backward()
    for actual, target in zip(grads(model), expected, strict=True):
        assert torch.equal(actual, target)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("variant", ["foreach", "fused"])
def test_foreach_and_fused_optimizers_step_as_the_plain_loop_does(optimizer, variant):
    model = network()
    twin = copy.deepcopy(model)
    steppers = [
        optimizer(model.parameters(), lr=0.01, **{variant: True}),
        optimizer(twin.parameters(), lr=0.01, foreach=False),
    ]
    for _ in range(2):
        x = images()
        for net, stepper in zip((model, twin), steppers, strict=True):
            stepper.zero_grad()
            net(x).square().mean().backward()
            stepper.step()
    for actual, expected in zip(model.parameters(), twin.parameters(), strict=True):
        assert_close(actual.detach(), expected.detach(), 1e-5)


def count_saved_bytes(layer: nn.Module, x: torch.Tensor, autocast: bool) -> int:
    """Return the bytes that a forward keeps for its backward."""
    storages = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with hooks, torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        _ = layer(x)
    return sum(storages.values())


@pytest.mark.parametrize(
    ("padding_mode", "autocast", "inputs"),
    [("zeros", False, 0), ("zeros", True, 1), ("circular", False, 1), ("reflect", False, 1)],
)
def test_the_input_itself_is_kept_where_the_plain_layer_keeps_a_copy(
    padding_mode, autocast, inputs
):
    x, plain = images(), nn.Conv2d(3, 4, 3, padding=1, padding_mode=padding_mode)
    expected = count_saved_bytes(plain, x, autocast) + inputs * x.nbytes
    assert count_saved_bytes(TrAct(plain), x, autocast) == expected


def test_under_autocast_the_input_must_stay_as_it_is_until_backward():
    x = images()
    with torch.autocast("cpu", torch.bfloat16):
        z = TrAct(nn.Conv2d(3, 4, 3))(x)
    x.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


def test_under_autocast_an_input_made_in_inference_mode_is_cloned_first():
    layer = TrAct(nn.Conv2d(3, 4, 3))
    with torch.inference_mode():
        x = images()
    with torch.autocast("cpu", torch.bfloat16):
        with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
            layer(x)
        layer(x.clone()).sum().backward()


def norm_of(grads: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([grad.flatten() for grad in grads]).norm()


def test_clipping_sees_the_norm_of_tracts_gradient():
    model, x = network(), images() / 5
    plain = copy.deepcopy(model)
    remove_tract(plain)
    stem_norms = []
    for net in (model, plain):
        net(x).square().mean().backward()
        stem_norms.append(net[0].weight.grad.norm())
        expected = norm_of(grads(net))
        assert_close(nn.utils.clip_grad_norm_(net.parameters(), max_norm=1e-3), expected, 1e-5)
        assert_close(norm_of(grads(net)), torch.tensor(1e-3), 1e-3)
    assert stem_norms[0] > 2 * stem_norms[1]


def test_channels_last_trains_a_whole_network():
    model, x = network(), images()
    model(x).square().mean().backward()
    expected = grads(model)
    model.zero_grad()
    model.to(memory_format=torch.channels_last)
    model(x.contiguous(memory_format=torch.channels_last)).square().mean().backward()
    for actual, target in zip(grads(model), expected, strict=True):
        assert_close(actual, target, 1e-5)
