"""A recipe that runs in a second, and the ways tests run it."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from trainact.lab.recipe import Recipe, change_recipe

HERE = Path(__file__).parent
QUICK: dict[str, Any] = {
    "data.name": "photos",
    "data.train_images": 320,
    "data.test_images": 80,
    "data.batch_size": 32,
    "model.name": "small_models:make_tiny",
    "schedule.epochs": 3,
    "run.checkpoint_seconds": 1e-6,
    "run.device": "cpu",
}


def make_quick(**changes: Any) -> Recipe:
    """Return the quick recipe; ``run__seed=1`` sets ``run.seed``."""
    return change_recipe(Recipe(), QUICK | {k.replace("__", "."): v for k, v in changes.items()})


def start(*command: str, **options: Any) -> "subprocess.Popen[str]":
    """Start Python on a module, with the tests' networks importable."""
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", *command],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def without_times(record: dict[str, Any]) -> dict[str, Any]:
    """Return what must be the same in two runs of one recipe."""
    epochs = [
        {key: value for key, value in epoch.items() if not key.endswith("seconds")}
        for epoch in record["epochs"]
    ]
    changing = ("seconds", "sessions", "seal", "environment", "recipe")
    return {k: v for k, v in record.items() if k not in changing} | {"epochs": epochs}
