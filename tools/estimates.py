"""Write the tables behind ``trainact ls``: ``python -m tools.estimates`` (``--check`` to compare).

``multiply_adds.toml`` holds a count for every network of the recipes; ``throughput.toml`` the
training speed of a CPU and a GPU, from the runs under ``results/`` or from the paper's times;
``recipes.toml`` the runs and the work of every recipe.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from trainact.errors import TrActValueError
from trainact.lab.cost import estimates
from trainact.lab.cost.estimates import ModelKey, Throughput, count_run, count_step
from trainact.lab.data.published import ImageCounts, count_images
from trainact.lab.environment import describe_hardware
from trainact.lab.paper.tables import read_times
from trainact.lab.recipes.experiment import find_experiment, list_experiments
from trainact.lab.recipes.recipe import make_recipe
from trainact.lab.records.record import Record
from trainact.lab.records.results import find_runs
from trainact.lab.text import count

__all__ = ["list_models", "main", "measure_throughputs"]

RESULTS = Path(__file__).parents[1] / "results"
FOLDER = Path(estimates.__file__).parent
HEAD = "# Written by `python -m tools.estimates`. {}\n"


def list_models() -> list[ModelKey]:
    """Return every model of the recipes."""
    keys = set()
    for name in list_experiments():
        for recipe in find_experiment(name).plan():
            counts = count_images(recipe.data)
            if counts is not None:
                arguments = json.dumps(recipe.model.arguments, sort_keys=True)
                keys.add((recipe.model.name, arguments, counts.classes, counts.size))
    return sorted(keys)


def measure_throughputs(results: Path) -> list[Throughput]:
    """Return the speed of the CPU and of the GPU with most runs; of the paper's GPU without any.

    Runs on other devices, such as ``mps`` and ``xpu``, are not counted.

    Raises:
        TrActValueError: there is no full run on a CPU.
    """
    rates: dict[str, dict[str, list[float]]] = {"cpu": {}, "cuda": {}}
    for run in find_runs([results]):
        rate = _measure_rate(run.record) if run.record and not run.smoke else None
        if run.record and rate is not None:
            environment = run.record["environment"]
            device = torch.device(environment["device"]).type
            if device in rates:
                rates[device].setdefault(describe_hardware(environment), []).append(rate)
    if not rates["cpu"]:
        raise TrActValueError(f"{results} holds no full run on a CPU; add the records of one.")
    return [
        _summarize(device, measured) if measured else _read_gpu_of_paper()
        for device, measured in rates.items()
    ]


def _summarize(device: str, rates: dict[str, list[float]]) -> Throughput:
    hardware = max(rates, key=lambda name: len(rates[name]))
    source = f"median of {count(len(rates[hardware]), 'run')} under results/"
    return Throughput(device, hardware, round(statistics.median(rates[hardware])), source)


def _read_gpu_of_paper() -> Throughput:
    time = read_times()[0]
    plan = find_experiment(time.recipe).plan()
    run = next(r for r in plan if (r.run.arm, r.schedule.epochs) == (time.arm, time.budget))
    work, seconds = count_run(run), 3600 * time.hours
    assert work is not None
    source = f"the paper's {seconds:.0f} s for {time.budget} epochs of {time.recipe}; no run yet"
    return Throughput("cuda", time.gpu, round(work / seconds), source)


def _measure_rate(record: Record) -> float | None:
    """Return the multiply-adds per second of a run's training, without its first epoch."""
    recipe = make_recipe(record["recipe"])
    known = count_images(recipe.data)
    size = recipe.data.image_size or (known.size if known else 0)
    epochs = record["epochs"][1:] or record["epochs"]
    if not size or not epochs:
        return None
    step = count_step(recipe.model, ImageCounts(0, 0, record["data"]["classes"], size))
    if step is None:
        return None
    return statistics.median(step[0] * e["train_seen"] / e["train_seconds"] for e in epochs)


def write_counts() -> str:
    """Return the content of ``multiply_adds.toml``."""
    rows = []
    for key in list_models():
        forward = estimates.count_model(key)
        if forward is not None:
            name, arguments, classes, size = key
            train, test = map(round, forward)
            row = {"name": name, "arguments": json.loads(arguments), "classes": classes}
            rows.append(_write_row(row | {"size": size, "train": train, "test": test}))
    head = HEAD.format("Multiply-adds of one image's forward, in training and in testing.")
    return f"{head}models = [\n" + "".join(f"  {row},\n" for row in rows) + "]\n"


def write_throughputs(results: Path) -> str:
    """Return the content of ``throughput.toml``."""
    rows = "".join(f"  {_write_row(vars(row))},\n" for row in measure_throughputs(results))
    head = HEAD.format("Multiply-adds per second of training.")
    return f"{head}throughputs = [\n{rows}]\n"


def write_recipes() -> str:
    """Return the content of ``recipes.toml``; a field without a value is left out."""
    rows = []
    for recipe in estimates.list_costs([find_experiment(name) for name in list_experiments()]):
        fields = {"name": recipe.name, "title": recipe.title, "paper": recipe.paper}
        fields |= {name: value for name, value in vars(recipe.cost).items() if value is not None}
        rows.append(f"  {_write_row(fields)},\n")
    head = HEAD.format("Runs and multiply-adds of every recipe.")
    return f"{head}recipes = [\n{''.join(rows)}]\n"


def _write_row(row: dict[str, Any]) -> str:
    """Return an inline table of numbers, text and such tables.

    >>> _write_row({"name": "a", "arguments": {"width": 16}})
    '{name = "a", arguments = {width = 16}}'
    """
    cells = (
        f"{key} = {_write_row(value) if isinstance(value, dict) else json.dumps(value)}"
        for key, value in row.items()
    )
    return f"{{{', '.join(cells)}}}"


def main(argv: Sequence[str] | None = None) -> int:
    """Write the tables; with ``--check`` write nothing and return 1 if one is out of date."""
    parser = argparse.ArgumentParser("python -m tools.estimates", description=__doc__)
    parser.add_argument("--check", action="store_true", help="only report stale tables")
    check = parser.parse_args(argv).check
    tables = {
        "multiply_adds.toml": write_counts(),
        "throughput.toml": write_throughputs(RESULTS),
        "recipes.toml": write_recipes(),
    }
    stale = [name for name, text in tables.items() if _read(FOLDER / name) != text]
    for name in stale if not check else ():
        (FOLDER / name).write_text(tables[name], encoding="utf-8")
    print(f"{'out of date' if check else 'written'}: {', '.join(stale) or 'nothing'}")
    return int(check and bool(stale))


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


if __name__ == "__main__":
    sys.exit(main())
