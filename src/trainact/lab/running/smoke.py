"""Smoke runs: an experiment in seconds, to check that data, network and machine work."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from trainact.lab.data.names import PLACED
from trainact.lab.recipes.experiment import Experiment
from trainact.lab.recipes.recipe import change_recipe

__all__ = ["shrink"]

LARGE = 64
"""Side in pixels above which smoke runs use smaller images."""


def shrink(experiment: Experiment, changes: Mapping[str, Any] | None = None) -> Experiment:
    """Return the experiment as smoke runs: every arm, one seed, one epoch of a few batches.

    Smoke runs are marked as such, have their own folder and are never compared with full runs.
    Large images are resized and fewer, data sets without a folder are replaced by ``photos``, and
    without a GPU the precision is float32. With several networks each one trains for two steps of
    four images. Fields in ``changes``, which the user set, keep their values.
    """
    recipe = experiment.recipe
    data, run = recipe.data, recipe.run
    smaller: dict[str, Any] = {
        "run.smoke": True,
        "data.train_images": 160,
        "data.test_images": 80,
        "data.batch_size": min(data.batch_size, 32),
        "data.held_out": min(data.held_out, 80),
        "data.classes": 0,
        "data.workers": 0,
        "optimizer.lookahead_steps": min(recipe.optimizer.lookahead_steps, 2),
        "schedule.warmup_epochs": min(recipe.schedule.warmup_epochs, 0.5),
        "schedule.milestones": [],
        "schedule.lag_epochs": 0,
        "schedule.per": "step",  # with "epoch", a run of one epoch would stay in the warm-up
    }
    if data.image_size > LARGE:
        smaller |= {
            "data.train_images": 32,
            "data.test_images": 16,
            "data.batch_size": 8,
            "data.image_size": max(32, data.image_size * 2 // 7 // 16 * 16),  # 64 of 224
        }
    if run.precision == "fp16" and not _has_gpu():
        smaller["run.precision"] = "no"
    if experiment.networks:
        smaller |= {"data.train_images": 8, "data.test_images": 8, "data.batch_size": 4}
        smaller |= {"run.keep_weights": False}  # gigabytes
    if data.name in PLACED and not data.folder:
        smaller["data.name"] = "photos"
    recipe = change_recipe(experiment.recipe, {**smaller, **experiment.smoke, **(changes or {})})
    first = experiment.changes.get(experiment.budgets[0], {})
    return dataclasses.replace(
        experiment, recipe=recipe, budgets=(1,), seeds=experiment.seeds[:1], changes={1: first}
    )


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()
