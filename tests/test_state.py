"""tract_state and load_tract_state: what a checkpoint needs besides the state dict."""

import copy
import io

import pytest
import torch
from torch import nn

from trainact import TrActError, accumulate, apply_tract, load_tract_state, tract_state


def network(**options) -> nn.Sequential:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 36, 5))
    apply_tract(model, **options)
    return model


def train(model: nn.Module, seeds: range, pooled: bool = False) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for seed in seeds:
        x = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(seed))
        optimizer.zero_grad()
        if pooled:
            with accumulate(model):
                for part in x.chunk(2):
                    model(part).square().mean().backward()
        else:
            model(x).square().mean().backward()
        optimizer.step()


def through_a_file(state):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


OPTIONS = [
    {"moment_decay": 0.9},
    {"moment_decay": 0.5, "center": True, "relative": True},
    {"rows": 50},
    {"rows": 50, "moment_decay": 0.9, "sync": True},
    {"center": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("pooled", [False, True])
def test_a_resumed_run_is_bit_equal(options, pooled):
    whole, first, second = (network(**options) for _ in range(3))
    train(whole, range(6), pooled)
    train(first, range(3), pooled)
    saved = through_a_file({"model": first.state_dict(), "tract": tract_state(first)})
    train(first, range(10, 12), pooled)  # the state is a copy: this does not reach it
    second.load_state_dict(saved["model"])
    load_tract_state(second, saved["tract"])
    train(second, range(3, 6), pooled)
    for name, value in whole.state_dict().items():
        assert torch.equal(second.state_dict()[name], value), name
    for name, value in tract_state(whole).items():
        assert torch.equal(tract_state(second)[name], value), name


def test_the_state_has_the_layers_names_and_what_the_options_need():
    assert tract_state(network()) == {}
    assert tract_state(nn.Linear(3, 3)) == {}
    assert set(tract_state(network(rows=9))) == {"0.seed"}
    state = tract_state(network(moment_decay=0.9, center=True))
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    assert shapes == {
        "0.average.total": (1, 27, 27),
        "0.average.num_rows": (1,),
        "0.average.row_sum": (1, 27),
    }
    assert all(tensor.dtype == torch.float64 for tensor in state.values())
    assert "average.total" in tract_state(network(moment_decay=0.9)[0])


def test_loading_changes_the_tensors_in_place():
    """So that a compiled graph goes on using them."""
    model = network(moment_decay=0.9)
    train(model, range(2))
    twin = network(moment_decay=0.9)
    kept = twin[0].memory.average.total
    load_tract_state(twin, tract_state(model))
    assert twin[0].memory.average.total is kept
    assert torch.equal(kept, model[0].memory.average.total)


def bad_states():
    good = tract_state(network(moment_decay=0.9, center=True))
    missing = {name: value for name, value in good.items() if "row_sum" not in name}
    return [
        (missing, ValueError, r"missing \['0.average.row_sum'\], unexpected \[\]"),
        (good | {"1.seed": torch.zeros(())}, ValueError, r"unexpected \['1.seed'\]"),
        (good | {"0.average.total": torch.zeros(1, 9, 9)}, ValueError, r"has shape \(1, 9, 9\)"),
        (good | {"0.average.num_rows": torch.zeros(1)}, ValueError, r"and torch\.float32; the"),
        (good | {"0.average.num_rows": 1.0}, TypeError, "is a float, not a tensor"),
        ([good], TypeError, "a dict; got list"),
    ]


@pytest.mark.parametrize(("state", "kind", "message"), bad_states())
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(state, kind, message):
    model = network(moment_decay=0.9, center=True)
    train(model, range(2))
    before = copy.deepcopy(tract_state(model))
    with pytest.raises(TrActError, match=message) as caught:
        load_tract_state(model, state)
    assert isinstance(caught.value, kind)
    assert all(torch.equal(tensor, before[name]) for name, tensor in tract_state(model).items())


def test_only_a_module_has_a_state():
    with pytest.raises(TrActError, match=r"tract_state takes an nn\.Module; got dict"):
        tract_state({})
    with pytest.raises(TrActError, match=r"load_tract_state takes an nn\.Module; got str"):
        load_tract_state("model", {})
