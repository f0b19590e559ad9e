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
from trainact.lab.builders import build_for_training
from trainact.lab.cost import count_forward
from trainact.lab.data.cifar_sets import SETS
from trainact.lab.data.photos import CLASSES, TEST_CROPS, TRAIN_CROPS
from trainact.lab.detection.faster_rcnn import DETECTOR
from trainact.lab.detection.work import count_detector
from trainact.lab.environment import count_threads
from trainact.lab.experiment import find_experiment
from trainact.lab.models import hide_values
from trainact.lab.networks import NETWORKS
from trainact.lab.outcomes import Record
from trainact.lab.paper import read_times
from trainact.lab.recipe import DataFields, ModelFields, Recipe, make_recipe
from trainact.lab.record import read_record

__all__ = ["ImageCounts", "Throughput", "count_images", "count_run", "find_throughputs"]

RESULTS = Path(__file__).parents[3] / "results"
"""Of the repository; a package that was installed without it has none."""
CPU_RATE = 18e9
"""One thread of an AMD EPYC, from a trial of the recipe cifar10-cpu-resnet-sgd."""
CHANNELS = 3


@dataclass(frozen=True)
class ImageCounts:
    """What a run would see of a data set."""

    train: int
    test: int
    classes: int
    size: int  # pixels of a side


PUBLISHED = {
    "imagenet": ImageCounts(1_281_167, 50_000, 1000, 224),
    "imagenette": ImageCounts(9469, 3925, 10, 160),
    "flowers102": ImageCounts(2040, 6149, 102, 224),
    "stanford_cars": ImageCounts(8144, 8041, 196, 224),
    "voc2007": ImageCounts(5011, 4952, 20, 600),
}
"""Sets that their users have somewhere, as they are published (Flowers-102: to train on, its
training and validation images)."""


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


def count_images(fields: DataFields) -> ImageCounts | None:
    """Return how many images a recipe uses; None where only the data themselves can tell.

    >>> count_images(DataFields("cifar10", train_images=20000))
    ImageCounts(train=20000, test=10000, classes=10, size=32)
    """
    whole = _list_known().get(fields.name)
    if whole is None:
        return None
    test = fields.held_out if fields.evaluate_on == "held-out" else fields.test_images
    held_out = 0 if fields.name == "photos" else fields.held_out
    return ImageCounts(
        fields.train_images or whole.train - held_out,
        test or whole.test,
        whole.classes,
        fields.image_size or whole.size,
    )


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
    for path in sorted(results.rglob("record.json")) if results.is_dir() else ():
        try:
            record = read_record(path)
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


def _list_known() -> dict[str, ImageCounts]:
    known = {
        name: ImageCounts(data.num_train, data.num_test, len(data.classes), 32)
        for name, data in SETS.items()
    }
    return PUBLISHED | known | {"photos": ImageCounts(TRAIN_CROPS, TEST_CROPS, len(CLASSES), 32)}


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
