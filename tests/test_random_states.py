"""A block that draws random numbers and leaves no trace."""

import contextlib
import random

import numpy as np
import pytest
import torch
from torch import nn

from trainact.random_states import kept_random_states


def draw() -> list[float]:
    return [torch.rand(()).item(), random.random(), random.gauss(), np.random.rand()]


@pytest.mark.parametrize("model", [nn.Linear(2, 2), nn.Identity(), nn.Linear(2, 2, device="meta")])
def test_the_random_states_are_restored(model):
    draw()
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()
    expected = draw()
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    np.random.set_state(states[2])
    with kept_random_states(model):
        draw()
    with contextlib.suppress(ZeroDivisionError), kept_random_states(model):
        raise ZeroDivisionError(draw())
    assert draw() == expected


def test_torch_is_given_a_kind_of_device_even_for_no_device(monkeypatch):
    fork = torch.random.fork_rng

    def fork_as_in_torch_2_9(devices, device_type="cuda"):
        return fork(devices, device_type=torch.device(device_type).type)

    monkeypatch.setattr(torch.random, "fork_rng", fork_as_in_torch_2_9)
    with kept_random_states(nn.Linear(2, 2)):
        draw()
