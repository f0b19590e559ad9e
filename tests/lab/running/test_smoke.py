"""The recipes for CIFAR as smoke runs, on crops of photographs: each family learns."""

import math

import pytest
import torch

from lab_helpers import make_quick, measure_fixed_batch
from trainact.lab.data import load_data
from trainact.lab.data.images import Standard
from trainact.lab.recipes.experiment import find_experiment
from trainact.lab.recipes.recipe import change_recipe
from trainact.lab.running.smoke import shrink
from trainact.lab.training.batches import Batches, Place
from trainact.lab.training.machine import start_machine
from trainact.lab.training.progress import TOTALS
from trainact.lab.training.session import Session

SMALLER = {"model.arguments.width": 48, "model.arguments.depth": 2, "model.arguments.heads": 4}
NARROW = {"model.arguments.width": 16}
FAMILIES = {
    ("cifar10-resnet18-sgd", "tract-0.1"): NARROW,
    ("cifar10-resnet18-adam", "tract-0.05"): NARROW,
    ("cifar10-resnet18-adam-sgd", "sgd-first tract-0.1"): NARROW,
    ("cifar100-resnet18-sgd", "plain"): NARROW,
    ("cifar10-vit", "tract-0.2"): SMALLER,
    ("cifar10-vit-lambda", "tract-1.6"): SMALLER,
    ("cifar10-vit-norms", "dual-patch-norm"): SMALLER,
    ("cifar10-vit-ranges", "[0,255] tract-0.1"): SMALLER,
    ("cifar10-cpu-resnet-sgd", "lr-0.3"): {},
    ("cifar10-cpu-vit-sgd", "tract-0.1"): {},
    ("cifar100-table", "tract-0.1"): {"data.train_images": 64, "optimizer.lr": 0.01},
}


@pytest.mark.parametrize(("name", "arm"), FAMILIES)
def test_the_loss_on_a_fixed_batch_falls(tmp_path, name, arm):
    experiment = shrink(find_experiment(name))
    (run,) = [run for run in experiment.split()[0].plan() if run.run.arm == arm]
    changes = {"schedule.warmup_epochs": 0, "schedule.epochs": 3, "run.device": "cpu"}
    recipe = change_recipe(run, changes | FAMILIES[name, arm])
    before, after = measure_fixed_batch(recipe, tmp_path, epochs=3)
    assert after < before


def test_pixels_are_given_in_the_range_that_a_recipe_asks_for():
    fields = make_quick(data__flip=False, data__crop="none").data
    data = load_data(fields)
    standard, place = Standard((0.4, 0.5, 0.6), (0.2, 0.1, 0.4)), Place(0, 1, torch.device("cpu"))

    def read(values):
        asked = change_recipe(make_quick(), {"data.values": values, "data.flip": False,
                                             "data.crop": "none"}).data  # fmt: skip
        batches = Batches(data.train, asked, standard, 0, place, len(data.classes))
        return next(batches.read(0, 0))[0].images

    raw, unit, usual = read("raw"), read("unit"), read("standard")
    assert raw.max() > 200
    torch.testing.assert_close(raw, raw.round())
    torch.testing.assert_close(unit, raw / 255)
    mean, std = (torch.tensor(row)[:, None, None] for row in (standard.mean, standard.std))
    torch.testing.assert_close(usual, (unit - mean) / std)


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
