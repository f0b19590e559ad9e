"""TrAct with any optimizer, and with a separate optimizer for the first layer."""

import copy

import pytest
import torch
from torch import nn

from cases import assert_close
from trainact import TrAct, TrActError, apply_tract, split_first_layer
from trainact.reference import tract_gradient_of_layer
from works_with_helpers import import_torchvision_or_skip


def network() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    apply_tract(model.double(), layers="0")
    return model


def make_lamb(parameters):
    import_torchvision_or_skip()
    from timm.optim import Lamb

    return Lamb(parameters, lr=0.01)


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "Lamb": make_lamb,
}


def set_grads(model: nn.Module, x: torch.Tensor) -> None:
    """Give the plain twin TrAct's gradient, computed by the slow reference."""
    zs = []
    handle = model[0].register_forward_hook(lambda _m, _x, z: z.retain_grad() or zs.append(z))
    model(x).square().mean().backward()
    handle.remove()
    model[0].weight.grad = tract_gradient_of_layer(model[0], x, zs[0].grad)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_steps_along_tracts_gradient(name):
    model = network()
    plain = nn.Sequential(
        *(
            nn.Linear(m.in_features, m.out_features).double() if isinstance(m, nn.Linear) else m
            for m in model
        )
    )
    plain.load_state_dict(model.state_dict())
    optimizer, twin = OPTIMIZERS[name](model.parameters()), OPTIMIZERS[name](plain.parameters())
    for _ in range(3):
        x = torch.randn(30, 12).double()
        optimizer.zero_grad()
        twin.zero_grad()
        model(x).square().mean().backward()
        set_grads(plain, x)
        optimizer.step()
        twin.step()
    for actual, expected in zip(model.parameters(), plain.parameters(), strict=True):
        assert_close(actual.detach(), expected.detach(), 1e-6)


def matrices_of(parameters):
    return [p for p in parameters if p.dim() == 2], [p for p in parameters if p.dim() != 2]


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="needs torch.optim.Muon")
def test_muon_trains_the_body_and_another_optimizer_the_stem():
    model = network()
    before = copy.deepcopy(model.state_dict())
    first, rest = split_first_layer(model)
    body, others = matrices_of(rest)
    optimizers = [
        torch.optim.SGD(first, lr=0.1),
        torch.optim.Muon(body, lr=0.02),
        torch.optim.AdamW(others, lr=0.01),
    ]
    x = torch.randn(30, 12).double()
    losses = []
    for _ in range(10):
        loss = (model(x) - 1).square().mean()
        losses.append(loss.item())
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert losses[-1] < 0.7 * losses[0]
    assert all(not torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_the_first_layer_may_have_a_separate_optimizer():
    model = network()
    first, rest = split_first_layer(model)
    assert first == [model[0].weight, model[0].bias]
    assert [id(p) for p in rest] == [id(p) for p in list(model.parameters())[2:]]
    before = model[0].weight.detach().clone()
    model(torch.randn(30, 12).double()).square().mean().backward()
    torch.optim.SGD(first, lr=0.1).step()
    torch.optim.Adam(rest, lr=1e-3).step()
    assert_close(model[0].weight.detach(), before - 0.1 * model[0].weight.grad)


def test_a_shared_parameter_appears_once():
    model = nn.Sequential(TrAct(nn.Linear(6, 6)), nn.Linear(6, 6), nn.Linear(6, 6))
    model[1].weight = model[0].weight
    model[2].bias = model[1].bias
    first, rest = split_first_layer(model)
    assert [id(p) for p in first] == [id(model[0].weight), id(model[0].bias)]
    assert [id(p) for p in rest] == [id(model[1].bias), id(model[2].weight)]


def test_a_frozen_parameter_is_left_out():
    model = network()
    model[0].bias.requires_grad_(False)
    model[2].requires_grad_(False)
    first, rest = split_first_layer(model)
    assert [id(p) for p in first] == [id(model[0].weight)]
    assert [id(p) for p in rest] == [id(model[4].weight), id(model[4].bias)]


def test_a_model_without_tract_has_no_first_group():
    with pytest.raises(TrActError, match="split_first_layer found no TrAct layer"):
        split_first_layer(nn.Linear(3, 3))
