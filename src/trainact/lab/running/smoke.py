"""A smoke run: an experiment in seconds, to see that data, network and machine are in order."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from trainact.lab.data.sources import PLACED
from trainact.lab.recipes.experiment import Experiment
from trainact.lab.recipes.recipe import change_recipe

__all__ = ["shrink"]

LARGE = 64
"""Pixels of a side beyond which a smoke run takes smaller images."""


def shrink(experiment: Experiment, changes: Mapping[str, Any] | None = None) -> Experiment:
    """Return the experiment as a smoke run: every arm, one seed, one epoch of a few batches.

    Its runs are marked as smoke, live in another folder and never meet full ones. Large images are
    smaller and fewer; images that are not at hand are those of ``photos``; without a GPU all is in
    float32. Where the network varies, there are two steps of four images for each: many networks,
    and some of them are large. ``changes`` are fields that its user set: they stay as set.
    """
    data, run = experiment.recipe.data, experiment.recipe.run
    small: dict[str, Any] = {
        "run.smoke": True,
        "data.train_images": 160,
        "data.test_images": 80,
        "data.batch_size": min(data.batch_size, 32),
        "data.held_out": min(data.held_out, 80),
        "schedule.warmup_epochs": min(experiment.recipe.schedule.warmup_epochs, 0.5),
        "schedule.milestones": [],
        "schedule.per": "step",  # or a warm-up of whole epochs would never end
    }
    if data.image_size > LARGE:
        small |= {
            "data.train_images": 32,
            "data.test_images": 16,
            "data.batch_size": 8,
            "data.image_size": max(32, data.image_size * 2 // 7 // 16 * 16),  # 64 of 224
        }
    if data.classes:
        small["data.classes"] = 0
    if data.workers:
        small["data.workers"] = 0
    if run.precision == "fp16" and not torch.cuda.is_available():
        small["run.precision"] = "no"
    if experiment.networks:
        small |= {"data.train_images": 8, "data.test_images": 8, "data.batch_size": 4}
        small |= {"run.keep_weights": False}  # gigabytes, of no use
    if data.name in PLACED and not data.folder:
        small["data.name"] = "photos"
    recipe = change_recipe(experiment.recipe, {**small, **experiment.smoke, **(changes or {})})
    first = experiment.changes.get(experiment.budgets[0], {})
    return dataclasses.replace(
        experiment, recipe=recipe, budgets=(1,), seeds=experiment.seeds[:1], changes={1: first}
    )
