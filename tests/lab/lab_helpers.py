"""A recipe that runs in a second, and helpers that run it."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from trainact.lab.data import load_data
from trainact.lab.recipes.recipe import Recipe, change_recipe
from trainact.lab.training.machine import start_machine
from trainact.lab.training.session import Session, sum_losses

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


def run_several(command: list[str], cwd: Path | None = None, **environment: str) -> str:
    """Run a command and all processes that it starts; kill them after ten minutes.

    Returns:
        What it printed.
    """
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        command,
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"} | environment,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        printed, said = process.communicate(timeout=600)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise AssertionError(f"did not end: {process.communicate()[1][-3000:]}") from None
    assert process.returncode == 0, said[-3000:]
    return printed


def without_times(record: dict[str, Any]) -> dict[str, Any]:
    """Return what must be the same in two runs of one recipe."""
    epochs = [
        {key: value for key, value in epoch.items() if not key.endswith("seconds")}
        for epoch in record["epochs"]
    ]
    changing = ("seconds", "sessions", "seal", "environment", "earlier_environments", "recipe")
    return {k: v for k, v in record.items() if k not in changing} | {"epochs": epochs}


def measure_fixed_batch(recipe: Recipe, folder: Path, epochs: int) -> tuple[float, float]:
    """Return the loss on two fixed batches before and after some epochs."""
    session = Session(recipe, load_data(recipe.data), start_machine(recipe.run, folder))
    shares = [share for share, _ in session.batches.read(0, 0)][:2]
    images, labels = (torch.cat(parts) for parts in zip(*(s[:2] for s in shares), strict=True))

    def measure() -> float:
        with torch.no_grad():
            session.network.train()
            logits = session.network(images)
            return float(sum_losses(logits, labels, recipe.optimizer)) / len(labels)

    before = measure()
    for epoch in range(epochs):
        for step, (share, count) in enumerate(session.batches.read(epoch % 2, 0)):
            session.take_step(share, count, epoch * session.batches.steps + step)
    return before, measure()


def ignore(event):
    del event


class InterruptedRunError(Exception):
    pass


def stop_after(steps):
    """Return a report function that raises after the given number of reports, as a crash would."""
    left = list(steps)

    def report(event):
        if event.kind in ("step", "epoch"):
            left[0] -= 1
            if left[0] == 0:
                raise InterruptedRunError

    return report
