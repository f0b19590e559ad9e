"""Estimated cost of runs before they start: multiply-adds, and seconds on known hardware.

An image counts as three forwards in training and as one in testing. TrAct's own work is left out;
it is smaller than the error of such an estimate. Three tables in this folder hold what takes long
to find out: ``multiply_adds.toml`` for the networks of the recipes, ``throughput.toml`` for
hardware, ``recipes.toml`` for the recipes themselves. ``python -m tools.estimates`` writes them. No
data are needed, and torch only for a network that is in no table.
"""

import dataclasses
import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from trainact.lab.data.published import ImageCounts, count_images
from trainact.lab.recipes.experiment import Experiment
from trainact.lab.recipes.recipe import ModelFields, Recipe, identify, identify_seeds

__all__ = [
    "CAUTION",
    "ExperimentCost",
    "ListedRecipe",
    "ModelKey",
    "Throughput",
    "count_model",
    "count_run",
    "count_step",
    "estimate_experiment",
    "estimate_runs",
    "format_work",
    "list_costs",
    "read_counts",
    "read_listing",
    "read_throughputs",
]

CAUTION = (
    "Estimates come from multiply-adds alone. A small network takes longer, because it does not "
    "fill a GPU; reading and augmenting images is not included."
)
CHANNELS = 3
VIEWS = 6
"""Forwards of an image in a test with ``data.test_views``."""
LONGEST_ON_CPU = 24 * 3600.0
"""Seconds. A recipe with a longer run gets no CPU estimate."""

ModelKey = tuple[str, str, int, int]
"""A model's name, its arguments as JSON, classes and pixels of a side."""


@dataclass(frozen=True)
class Throughput:
    """Training speed of one device, in multiply-adds per second."""

    device: str  # cpu or cuda
    hardware: str
    rate: float
    source: str  # of the rate

    @property
    def kind(self) -> str:
        """``CPU`` or ``GPU``."""
        return "CPU" if self.device == "cpu" else "GPU"

    def estimate_seconds(self, work: float | None) -> float | None:
        """Return the seconds for ``work`` multiply-adds; None if they are unknown."""
        return None if work is None else work / self.rate

    def __str__(self) -> str:
        return (
            f"{self.kind}: {self.hardware}, {format_work(self.rate)} multiply-adds per second of "
            f"training ({self.source})."
        )


@dataclass(frozen=True)
class ExperimentCost:
    """Multiply-adds of an experiment's runs; None where they depend on data not at hand."""

    device: str  # run.device of the recipe
    runs: int
    new: int  # runs that no other recipe, counted before, has too
    total: float | None = None  # of the new runs
    longest: float | None = None  # of all runs

    def suits(self, throughput: Throughput) -> bool:
        """Return whether the runs are meant for this kind of device."""
        if throughput.device == "cuda":
            return self.device != "cpu"
        return (throughput.estimate_seconds(self.longest) or 0.0) < LONGEST_ON_CPU


@dataclass(frozen=True)
class ListedRecipe:
    """What ``trainact ls`` shows of a recipe."""

    name: str
    title: str
    paper: str
    cost: ExperimentCost


def list_costs(experiments: Sequence[Experiment]) -> list[ListedRecipe]:
    """Return each recipe with its cost; a run that a recipe before it has too is not new."""
    counted: set[str] = set()
    return [
        ListedRecipe(one.name, one.title, one.paper, estimate_experiment(one, counted))
        for one in experiments
    ]


def estimate_experiment(experiment: Experiment, counted: set[str] | None = None) -> ExperimentCost:
    """Count the work of an experiment's runs, each once.

    ``counted`` has the identities of runs that were counted before; those of this experiment are
    added. Runs whose times are the result are done even if another experiment has them.
    """
    counted = None if experiment.timed else counted
    plan = dataclasses.replace(experiment, seeds=experiment.seeds[:1]).plan()
    works = [
        (identity, work)
        for run in plan
        for work in [count_run(run)]
        for identity in identify_seeds(run, experiment.seeds)
    ]
    return _estimate(experiment.recipe.run.device, works, counted)


def estimate_runs(runs: Sequence[Recipe]) -> ExperimentCost:
    """Count the work of runs, each once."""
    works = [(identify(run), count_run(run)) for run in runs]
    return _estimate(runs[0].run.device if runs else "auto", works)


def _estimate(
    device: str, works: Sequence[tuple[str, float | None]], counted: set[str] | None = None
) -> ExperimentCost:
    """Return the cost of runs, given by identity and work."""
    counted = set() if counted is None else counted
    new = []
    for identity, work in works:
        if identity not in counted:
            counted.add(identity)
            new.append(work)
    known = [work for _, work in works if work is not None]
    longest = max(known, default=0.0) if len(known) == len(works) else None
    return ExperimentCost(device, len(works), len(new), _add(new), longest)


def _add(works: Sequence[float | None]) -> float | None:
    """Return the sum; None if a summand is unknown."""
    known = [work for work in works if work is not None]
    return sum(known) if len(known) == len(works) else None


def count_run(recipe: Recipe) -> float | None:
    """Return the multiply-adds of a whole run; None where they depend on data not at hand."""
    counts = count_images(recipe.data)
    step = None if counts is None else count_step(recipe.model, counts)
    if counts is None or step is None:
        return None
    train, test = step
    views = VIEWS * counts.test * test if recipe.data.test_views else 0.0
    return recipe.schedule.epochs * (counts.train * train + counts.test * test) + views


def count_step(model: ModelFields, counts: ImageCounts) -> tuple[float, float] | None:
    """Return the multiply-adds of one image in training and in testing; None if not countable."""
    arguments = json.dumps(model.arguments, sort_keys=True)
    forward = _find_count((model.name, arguments, counts.classes, counts.size))
    return None if forward is None else (3 * forward[0], forward[1])


@cache
def _find_count(key: ModelKey) -> tuple[float, float] | None:
    """Return the multiply-adds of a forward in training and in testing, from a table or counted."""
    return read_counts().get(key) or count_model(key)


def count_model(key: ModelKey) -> tuple[float, float] | None:
    """Count a forward of one image in training and in testing; None if not countable."""
    import torch

    from trainact.lab.cost.multiply_adds import count_detector, count_forward
    from trainact.lab.models.build import build_model
    from trainact.lab.models.detection.faster_rcnn import DETECTOR
    from trainact.lab.models.networks import NETWORKS
    from trainact.lab.models.zoos import build_on_meta

    name, arguments, classes, size = key
    known = NETWORKS.get(name.removeprefix("lab:"))
    if known and (arguments, classes, size) == ("{}", 100, 32):
        return known.multiply_adds, known.multiply_adds
    fields = ModelFields(name, json.loads(arguments))
    if name == DETECTOR:
        return count_detector(fields.arguments, classes, size)
    model = build_on_meta(lambda: build_model(fields, classes, CHANNELS, size)).eval()
    forward = count_forward(model, torch.zeros(1, CHANNELS, size, size, device="meta"))
    return None if forward is None else (forward, forward)


@cache
def read_counts() -> dict[ModelKey, tuple[float, float]]:
    """Return the table of multiply-adds: a forward in training and in testing, by model."""
    counts = {}
    for row in _read_table("multiply_adds.toml")["models"]:
        arguments = json.dumps(row["arguments"], sort_keys=True)
        counts[row["name"], arguments, row["classes"], row["size"]] = row["train"], row["test"]
    return counts


@cache
def read_listing() -> tuple[ListedRecipe, ...]:
    """Return what `list_costs` returns for all recipes, from the table."""
    return tuple(
        ListedRecipe(row.pop("name"), row.pop("title"), row.pop("paper"), ExperimentCost(**row))
        for row in _read_table("recipes.toml")["recipes"]
    )


@cache
def read_throughputs() -> tuple[Throughput, ...]:
    """Return the known speeds: of a CPU, then of a GPU."""
    rows = _read_table("throughput.toml")["throughputs"]
    return tuple(Throughput(**row) for row in rows)


def format_work(multiply_adds: float | None) -> str:
    """Return multiply-adds with a unit prefix.

    >>> format_work(2.5e15), format_work(None)
    ('2.5 P', '-')
    """
    if multiply_adds is None:
        return "-"
    for unit, size in (("E", 1e18), ("P", 1e15), ("T", 1e12), ("G", 1e9)):
        if multiply_adds >= size:
            return f"{multiply_adds / size:.3g} {unit}"
    return f"{multiply_adds:.3g}"


def _read_table(name: str) -> dict[str, Any]:
    return tomllib.loads((resources.files(__package__) / name).read_text(encoding="utf-8"))
