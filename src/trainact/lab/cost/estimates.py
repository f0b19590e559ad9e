"""What runs would cost, before any is done: multiply-adds, and seconds on known hardware.

A training step of an image is three forwards, a test of it one. TrAct's own work is left out: it is
within what such an estimate can tell. Nothing is trained and no data are needed: networks are built
without values.
"""

import json
import statistics
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from trainact.errors import TrActValueError
from trainact.lab.analysis.runs import Record
from trainact.lab.cost.detection import count_detector
from trainact.lab.cost.multiply_adds import count_forward
from trainact.lab.data.published import ImageCounts, count_images
from trainact.lab.environment import count_threads
from trainact.lab.models.builders import build_for_training
from trainact.lab.models.detection.faster_rcnn import DETECTOR
from trainact.lab.models.networks import NETWORKS
from trainact.lab.models.zoos import hide_values
from trainact.lab.paper import read_times
from trainact.lab.recipes.experiment import find_experiment
from trainact.lab.recipes.recipe import ModelFields, Recipe, make_recipe
from trainact.lab.records.results import find_runs

__all__ = ["Throughput", "count_run", "find_throughputs"]

RESULTS = Path(__file__).parents[4] / "results"
"""Of the repository; a package that was installed without it has none."""
CPU_RATE = 18e9
"""One thread of an AMD EPYC, from a trial of the recipe cifar10-cpu-resnet-sgd."""
CHANNELS = 3


@dataclass(frozen=True)
class Throughput:
    """Multiply-adds of training per second.

    Attributes:
        device: cpu or cuda.
        hardware: what it is called.
        rate: per second.
        source: where the number is from.
    """

    device: str
    hardware: str
    rate: float
    source: str

    def time(self, recipe: Recipe, multiply_adds: float | None) -> float | None:
        """Return the seconds of so much work; None if it is not known or not meant for this."""
        if multiply_adds is None or (self.device, recipe.run.device) == ("cuda", "cpu"):
            return None
        return multiply_adds / self.rate


def count_run(recipe: Recipe) -> float | None:
    """Return the multiply-adds of a whole run; None where they cannot be told without the data."""
    counts = count_images(recipe.data)
    if counts is None:
        return None
    step = _count_step(recipe, counts)
    if step is None:
        return None
    train, test = step
    return recipe.schedule.epochs * (counts.train * train + counts.test * test)


def find_throughputs(results: Path = RESULTS) -> list[Throughput]:
    """Return what a CPU and a GPU do per second: as recorded, else as stated here."""
    found: dict[tuple[str, str], list[float]] = {}
    records = [run.record for run in find_runs([results])] if results.is_dir() else []
    for record in filter(None, records):
        try:
            rate = _measure_rate(record)
        except (TrActValueError, KeyError, TypeError, ZeroDivisionError):
            continue  # trainact report tells of damaged records
        made = record["environment"]
        device = "cuda" if str(made["device"]).startswith("cuda") else "cpu"
        processor = f"{made['processor']}, {count_threads(made)}"
        if rate is not None and record["kind"] == "full":
            found.setdefault((device, made["accelerator"] or processor), []).append(rate)
    throughputs = []
    for fallback in (_state_cpu(), _take_gpu_from_paper()):
        rates = {name: row for (kind, name), row in found.items() if kind == fallback.device}
        if rates:
            hardware = max(rates, key=lambda name: len(rates[name]))
            count = len(rates[hardware])
            source = f"the median of {count} record{'s' * (count != 1)} under results/"
            rate = statistics.median(rates[hardware])
            throughputs.append(Throughput(fallback.device, hardware, rate, source))
        else:
            throughputs.append(fallback)
    return throughputs


def _state_cpu() -> Throughput:
    source = "a figure stated here, for want of a record"
    return Throughput("cpu", "AMD EPYC, 1 thread", CPU_RATE, source)


@cache
def _take_gpu_from_paper() -> Throughput:
    """Return the rate of the paper's GPU, from the time that it prints for the ViT."""
    time = read_times()[0]
    plan = find_experiment(time.recipe).plan()
    work = count_run(next(r for r in plan if (r.run.arm, r.schedule.epochs) == ("plain", 100)))
    assert work is not None
    seconds = 3600 * time.hours
    source = f"the paper's {seconds:.0f} s for 100 epochs of {time.recipe}, no record"
    return Throughput("cuda", time.gpu, work / seconds, source)


def _measure_rate(record: Record) -> float | None:
    """Return the multiply-adds per second of a run's training; its first epoch warms it up."""
    recipe = make_recipe(record["recipe"])
    known = count_images(recipe.data)
    size = recipe.data.image_size or (known.size if known else 0)
    epochs = record["epochs"][1:] or record["epochs"]
    if not size or not epochs:
        return None
    counts = ImageCounts(0, 0, record["data"]["classes"], size)
    step = _count_step(recipe, counts)
    if step is None:
        return None
    return statistics.median(step[0] * e["train_seen"] / e["train_seconds"] for e in epochs)


def _count_step(recipe: Recipe, counts: ImageCounts) -> tuple[float, float] | None:
    """Return the multiply-adds of training and of testing, for one image."""
    model = recipe.model
    arguments = json.dumps(model.arguments, sort_keys=True)
    forward = _count_model(model.name, arguments, counts.classes, counts.size)
    if forward is None:
        return None
    train, test = forward
    return 3 * train, test


@cache
def _count_model(name: str, arguments: str, classes: int, size: int) -> tuple[float, float] | None:
    """Return the multiply-adds of a forward in training and in testing."""
    fields: Any = ModelFields(name, json.loads(arguments))
    if name == DETECTOR:
        return count_detector(fields.arguments, classes, size)
    known = NETWORKS.get(name.removeprefix("lab:"))
    if known and not fields.arguments and (classes, size) == (100, 32):
        return known.multiply_adds, known.multiply_adds
    model = hide_values(lambda: build_for_training(fields, classes, CHANNELS, size)).eval()
    example = torch.zeros(1, CHANNELS, size, size, device="meta")
    forward = count_forward(model, example)
    return None if forward is None else (forward, forward)
