"""Steps of a session: the loss, the norms of gradients, a frozen first layer and the views."""

import math

import pytest
import torch

from lab_helpers import ignore, make_quick
from trainact.errors import TrActValueError
from trainact.lab.data import load_data
from trainact.lab.recipes.experiment import find_experiment
from trainact.lab.recipes.recipe import OptimizerFields
from trainact.lab.training.machine import start_machine
from trainact.lab.training.progress import TOTALS
from trainact.lab.training.session import Session, sum_losses
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


def test_the_bias_of_a_frozen_first_layer_is_trained_for_its_epochs(tmp_path):
    session = make_session(
        tmp_path, optimizer__first_layer_frozen=True, optimizer__first_layer_bias_epochs=2,
        tract__enabled=False, optimizer__weight_decay=0.1, schedule__name="constant",
    )  # fmt: skip
    layer = session.network[0]
    weight = layer.weight.detach().clone()
    moved = []
    for epoch in range(4):
        for step, (share, count) in enumerate(session.batches.read(epoch, 0)):
            before = layer.bias.detach().clone()
            session.take_step(share, count, epoch * session.batches.steps + step)
            moved.append(not torch.equal(layer.bias, before))
    steps = session.batches.steps
    assert moved == [True] * 2 * steps + [False] * 2 * steps
    assert torch.equal(layer.weight, weight)


def test_epochs_for_a_bias_that_is_not_there_are_refused(tmp_path):
    with pytest.raises(TrActValueError, match=r"first layer \(0\) has no bias to train; set it"):
        make_session(
            tmp_path, model__name="small_models:make_unbiased", tract__enabled=False,
            optimizer__first_layer_frozen=True, optimizer__first_layer_bias_epochs=3,
        )  # fmt: skip


def test_the_views_are_tested_after_the_last_epoch_only(tmp_path):
    record = train(make_quick(schedule__epochs=2, data__test_views=True), tmp_path, ignore)
    first, last = record["epochs"]
    assert "views_correct" not in first
    assert 0 < last["views_correct"] <= last["test_seen"]
    without = train(make_quick(schedule__epochs=2), tmp_path, ignore)
    assert "views_correct" not in without["epochs"][-1]
    assert without["epochs"][-1]["test_correct"] == last["test_correct"]


@pytest.mark.parametrize(
    ("over", "label", "other"), [("all", 0.91, 0.01), ("others", 0.9, 0.1 / 9)]
)
def test_label_smoothing_is_shared_by_all_classes_or_by_the_others(over, label, other):
    fields = OptimizerFields(label_smoothing=0.1, smoothing_over=over)
    logits, labels = torch.randn(4, 10), torch.tensor([3, 0, 9, 3])
    targets = torch.full((4, 10), other)
    targets[range(4), labels] = label
    by_hand = -(targets * logits.log_softmax(1)).sum()
    torch.testing.assert_close(sum_losses(logits, labels, fields), by_hand)


def test_smoothing_over_the_other_classes_takes_mixed_labels():
    """A class with share y gets (1 - ε) y, and ε/(K-1) of the other shares."""
    fields = OptimizerFields(label_smoothing=0.2, smoothing_over="others")
    logits, shares = torch.randn(2, 4), torch.tensor([[0.7, 0.0, 0.3, 0.0], [0.0, 1.0, 0.0, 0.0]])
    targets = 0.8 * shares + 0.2 * (1 - shares) / 3
    by_hand = -(targets * logits.log_softmax(1)).sum()
    torch.testing.assert_close(sum_losses(logits, shares, fields), by_hand)


@pytest.mark.parametrize("name", ["vit", "vit-lambda", "vit-norms", "vit-ranges"])
def test_the_paper_s_vision_transformers_smooth_labels_as_upstream_does(name):
    run = find_experiment(f"cifar10-{name}").plan()[0]
    logits, label = torch.zeros(1, 10), torch.tensor([4])
    logits[0, 4] = 2.0
    expected = -(0.9 * logits.log_softmax(1)[0, 4] + 0.1 * logits.log_softmax(1)[0, 0])
    torch.testing.assert_close(sum_losses(logits, label, run.optimizer), expected)
