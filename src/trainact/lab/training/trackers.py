"""Experiment trackers, through Accelerate."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.tracking import get_available_trackers

from trainact.errors import TrActValueError
from trainact.lab.recipes.recipe import Recipe, recipe_to_dict

__all__ = ["check_tracker", "start_tracker", "stop_trackers", "track"]

PROJECT = "trainact"


def check_tracker(name: str) -> None:
    """Raise if the package of a tracker is not installed."""
    if name != "none" and name not in map(str, get_available_trackers()):
        raise TrActValueError(
            f"run.tracker is {name!r}, but its package is not installed: pip install {name}"
        )


def start_tracker(accelerator: Accelerator, recipe: Recipe, folder: Path) -> None:
    """Open the recipe's tracker, if it has one; it gets the fields of the recipe."""
    name = recipe.run.tracker
    if name == "none":
        return
    fields = {
        f"{table}.{key}": value if isinstance(value, bool | int | float | str) else str(value)
        for table, row in recipe_to_dict(recipe).items()
        for key, value in row.items()
    }
    options = {name: _find_options(name, folder)}
    accelerator.init_trackers(PROJECT, config=fields, init_kwargs=options)


def _find_options(name: str, folder: Path) -> dict[str, Any]:
    """Return what gives the run its name in a tracker, and keeps local files in its folder."""
    options: dict[str, dict[str, Any]] = {
        "aim": {"experiment": folder.name},
        "clearml": {"task_name": folder.name},
        "dvclive": {"dir": str(folder / "dvclive"), "dvcyaml": None, "save_dvc_exp": False},
        "mlflow": {"run_name": folder.name},
        "swanlab": {"experiment_name": folder.name, "logdir": str(folder / "swanlab")},
        "trackio": {"name": folder.name},
        "wandb": {"name": folder.name, "dir": str(folder)},
    }
    return options.get(name, {})


def track(accelerator: Accelerator, metrics: Mapping[str, Any], epoch: int) -> None:
    """Send the metrics of an epoch that are numbers to the tracker."""
    numbers = {key: value for key, value in metrics.items() if isinstance(value, int | float)}
    accelerator.log(numbers, step=epoch)


def stop_trackers(accelerator: Accelerator) -> None:
    """Close the trackers; the next run of this process opens its own."""
    for tracker in accelerator.trackers:
        tracker.finish()
