"""Steps of a session."""

import math

import torch

from lab_helpers import make_quick
from trainact.lab.data import load_data
from trainact.lab.training.machine import start_machine
from trainact.lab.training.progress import TOTALS
from trainact.lab.training.session import Session


def test_a_step_whose_gradient_overflows_is_not_in_the_mean_norm(tmp_path, monkeypatch):
    recipe = make_quick(optimizer__lr=1e-3)
    session = Session(recipe, load_data(recipe.data), start_machine(recipe.run, tmp_path))
    shares = list(session.batches.read(0, 0))[:3]
    endless, totals = (torch.tensor(math.inf), torch.tensor(math.inf)), torch.zeros(len(TOTALS))
    for number, (share, count) in enumerate(shares):
        with monkeypatch.context() as patch:
            if number == 1:
                patch.setattr(session, "_finish_gradients", lambda: endless)
            totals = totals + session.take_step(share, count, number)
    sums = dict(zip(TOTALS, totals.tolist(), strict=True))
    assert sums["finite_steps"] == 2
    assert 0 < sums["first_layer_grad_norm"] < sums["grad_norm"] < math.inf
