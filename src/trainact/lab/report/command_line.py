"""The command that does a recipe's runs, with what it takes from its user: data and weights."""

import shlex

from trainact.lab.data.sources import COLLECTIONS, DETECTION
from trainact.lab.recipes.experiment import Experiment

__all__ = ["write_command"]

WEIGHTS = "{{pretraining}}-{epochs}ep-seed{{seed}}-*/weights.safetensors"
"""Of the pre-training of the same arm and seed, below ``runs/RECIPE/runs``."""


def write_command(experiment: Experiment, verb: str = "run") -> str:
    """Return the words after ``trainact``, on as many lines as they need.

    Args:
        experiment: a recipe of the package.
        verb: ``run``, or ``tune``.
    """
    name, data = experiment.name, experiment.recipe.data
    words = [f"{verb} {name}"]
    if data.name in (*COLLECTIONS, DETECTION):
        words[0] += f" --data path/to/{shlex.quote(data.name)}"
    if any("model.pretraining" in arm.changes for arm in experiment.arms):
        source = "deit3-vit-b" if "vit-b" in name else "deit3-vit-s"
        long = name.startswith("transfer") or "-800-" in name
        weights = WEIGHTS.format(epochs=800 if long else 400)
        words.append(f"--model.weights 'runs/{source}/runs/{weights}'")
    if data.name == DETECTION:
        words.append("--model.arguments.weights path/to/vgg16.safetensors")
    return " \\\n    ".join(words)
