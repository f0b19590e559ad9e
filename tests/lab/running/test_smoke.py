"""Recipes as smoke runs: small enough, and the loss falls."""

import dataclasses

import pytest

from lab_helpers import measure_fixed_batch
from slow_cases import mark_slow
from trainact.lab.recipes.experiment import find_experiment, list_experiments
from trainact.lab.recipes.recipe import change_recipe
from trainact.lab.running.smoke import shrink

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
    ("cifar10-speed", "eigen+frozen"): {},
    ("cifar10-speed", "eigen+tract-0.1"): {},
    ("cifar10-speed-muon", "plain"): {},
    ("cifar10-speed-vit", "eigen"): {"model.arguments.depth": 2},
    ("cifar100-table", "tract-0.1"): {"data.train_images": 64, "optimizer.lr": 0.01},
}


@pytest.mark.parametrize(("name", "arm"), mark_slow(FAMILIES, fast=2))
def test_the_loss_on_a_fixed_batch_falls(tmp_path, name, arm):
    experiment = shrink(find_experiment(name))
    (run,) = [run for run in experiment.split()[0].plan() if run.run.arm == arm]
    changes = {"schedule.warmup_epochs": 0, "schedule.epochs": 3, "run.device": "cpu"}
    recipe = change_recipe(run, changes | FAMILIES[name, arm])
    before, after = measure_fixed_batch(recipe, tmp_path, epochs=3)
    assert after < before


SMALL_VIT = {"model.arguments.width": 48, "model.arguments.depth": 2, "model.arguments.heads": 3}
RESNET = {"model.name": "lab:resnet18-imagenet", "model.arguments.width": 8}
LARGE_FAMILIES = {
    "imagenet-resnet18": ("imagenette", RESNET | {"optimizer.lr": 0.02}),
    "deit3-vit-s": ("imagenette", SMALL_VIT),
    "deit3-vit-s-finetune-a": ("imagenette", SMALL_VIT | {"optimizer.lr": 1e-3}),
    "deit3-vit-s-finetune-b": ("imagenette", SMALL_VIT | {"optimizer.lr": 4e-3}),
    "transfer-cars": ("stanford_cars", SMALL_VIT),
    "transfer-flowers102-adamw": ("flowers102", SMALL_VIT | {"optimizer.lr": 1e-3}),
    "imagenette-cpu-resnet": ("imagenette", {"model.arguments.width": 8, "optimizer.lr": 0.02}),
    "imagenette-cpu-vit": ("imagenette", {"model.arguments.width": 48, "model.arguments.depth": 2}),
}


@pytest.mark.parametrize("name", mark_slow(LARGE_FAMILIES))
def test_the_loss_of_a_large_recipe_falls(samples, tmp_path, name):
    folder, changes = LARGE_FAMILIES[name]
    recipe = shrink(find_experiment(name)).recipe
    recipe = change_recipe(recipe, {"data.name": str(samples / folder), "data.image_size": 32,
                                    "schedule.warmup_epochs": 0, "schedule.epochs": 3,
                                    "run.device": "cpu", "run.ema": 0, **changes})  # fmt: skip
    before, after = measure_fixed_batch(recipe, tmp_path, epochs=3)
    assert after < before


@pytest.mark.parametrize("name", ["cifar10-speed", "cifar10-resnet18-sgd"])
def test_every_smoke_run_has_the_steps_that_its_lookahead_needs(name):
    experiment = find_experiment(name)
    large = change_recipe(experiment.recipe, {"data.image_size": 224})
    several = dataclasses.replace(experiment, networks=("resnet18", "resnet34"))
    every = experiment.recipe.optimizer.lookahead_steps
    for one in (experiment, dataclasses.replace(experiment, recipe=large), several):
        small = shrink(one).recipe
        steps = small.data.train_images // small.data.batch_size
        assert small.optimizer.lookahead_steps == min(every, 2) <= steps


def _is_large(name):
    data = find_experiment(name).recipe.data
    return data.image_size and data.name != "voc2007"


def test_every_large_recipe_is_shrunk_to_small_pictures():
    large = [name for name in list_experiments() if _is_large(name)]
    assert len(large) == 23
    for name in large:
        small = shrink(find_experiment(name)).recipe
        assert small.data.name == "photos"
        assert (small.data.image_size, small.data.classes, small.data.workers) in {
            (64, 0, 0), (48, 0, 0), (32, 0, 0),
        }  # fmt: skip
