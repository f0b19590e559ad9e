"""Steps of a session: the loss, the norms of gradients, a frozen first layer and the views."""

import math

import pytest
import torch

from lab_helpers import ignore, make_quick
from trainact.lab.data import load_data
from trainact.lab.training.machine import start_machine
from trainact.lab.training.progress import TOTALS
from trainact.lab.training.session import Session
from trainact.lab.training.train import train


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


def make_session(folder, **changes):
    recipe = make_quick(**changes)
    return Session(recipe, load_data(recipe.data), start_machine(recipe.run, folder))


def test_the_summed_loss_has_the_batch_times_the_gradient_of_the_mean(tmp_path):
    norms, weights = [], []
    for reduction, lr in (("mean", 0.32), ("sum", 0.01)):  # a batch has 32 images
        session = make_session(
            tmp_path, optimizer__reduction=reduction, optimizer__lr=lr, optimizer__momentum=0.0,
            optimizer__label_smoothing=0.2, schedule__name="constant",
        )  # fmt: skip
        share, count = next(session.batches.read(0, 0))
        totals = dict(zip(TOTALS, session.take_step(share, count, 0).tolist(), strict=True))
        norms.append(totals["grad_norm"])
        weights.append(torch.cat([p.detach().flatten() for p in session.trained]))
    assert norms[1] / norms[0] == pytest.approx(32)
    torch.testing.assert_close(*weights)


def test_the_views_are_tested_after_the_last_epoch_only(tmp_path):
    record = train(make_quick(schedule__epochs=2, data__test_views=True), tmp_path, ignore)
    first, last = record["epochs"]
    assert "views_correct" not in first
    assert 0 < last["views_correct"] <= last["test_seen"]
    without = train(make_quick(schedule__epochs=2), tmp_path, ignore)
    assert "views_correct" not in without["epochs"][-1]
    assert without["epochs"][-1]["test_correct"] == last["test_correct"]
