"""README's first picture and its numbers: accuracy over epochs, plain and with TrAct."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tools.evidence import NO_RECORD, Evidence, hash_records, is_current
from trainact.lab.analysis.answers import Answers, Difference
from trainact.lab.analysis.runs import FinishedRun
from trainact.lab.files import write_atomically
from trainact.lab.recipes.arms import BASELINE
from trainact.lab.report.curves import COLOURS, STYLE, export_picture
from trainact.lab.report.experiment_page import ExperimentPage
from trainact.lab.report.tables import describe_data, join_distinct
from trainact.lab.report.wording import format_difference
from trainact.lab.text import count, count_epochs
from trainact.options import DEFAULT_LAM

__all__ = ["FILE", "SHOWN", "draw_opening", "list_stale_opening", "write_opening"]

FILE = "opening.png"
SHOWN = {
    "cifar10-cpu-resnet-sgd": "narrow ResNet-18, SGD",
    "cifar10-cpu-vit-sgd": "small ViT, SGD",
    "cifar10-cpu-vit-adam": "small ViT, Adam",
}
"""The recipes of the picture and the titles of its panels."""
ON_GITHUB = "https://github.com/trainact/trainact/raw/main/docs/pictures"
"""The folder of the picture, for README on PyPI."""
TRACT = f"tract-{DEFAULT_LAM:g}"
WORDS = {TRACT: "TrAct", f"eigen+{TRACT}": "TrAct from a whitened start"}
"""The arms of the picture beside plain training, and what they are called."""


def write_opening(evidence: Evidence) -> dict[str, str]:
    """Return the text of the marked places of README and of the site's first page."""
    pages = _select(evidence)
    sentence = _describe(pages) if pages else ""
    places = {"opening": ON_GITHUB, "opening-here": "pictures"}
    title = "Test accuracy after each epoch, plain and with TrAct"
    return {
        name: f"![{title}]({folder}/{FILE})\n\n{sentence}" if pages else NO_RECORD
        for name, folder in places.items()
    }


def list_stale_opening(evidence: Evidence, folder: Path) -> list[str]:
    """Return the picture's name if it is missing or was drawn from other records."""
    pages = _select(evidence)
    return [FILE] if pages and not is_current(folder / FILE, _hash(pages)) else []


def draw_opening(evidence: Evidence, folder: Path) -> None:
    """Draw a panel for each recipe: means as lines, the range of the seeds as a band."""
    pages = _select(evidence)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(3.0 * len(pages), 3.0), layout="constrained")
        axes = figure.subplots(1, len(pages), squeeze=False)[0]
        for axis, (name, page) in zip(axes, pages.items(), strict=True):
            _draw_panel(axis, page)
            axis.set_title(SHOWN[name], fontsize=11)
        axes[0].set_ylabel("test accuracy, %")
        arms = axes[0].get_legend_handles_labels()
        figure.legend(*arms, loc="outside lower center", ncols=3, frameon=False)
    write_atomically(folder / FILE, export_picture(figure, "png", _hash(pages)))


def _select(evidence: Evidence) -> dict[str, ExperimentPage]:
    """Return the pages of the shown recipes that have a difference between the two arms."""
    pages = {name: evidence.get(name) for name in SHOWN}
    return {
        name: page
        for name, page in pages.items()
        if page is not None and page.answers is not None and _find_differences(page.answers)
    }


def _find_differences(answers: Answers) -> list[Difference]:
    return [difference for difference in answers.differences if difference.arm.name == TRACT]


def _read(page: ExperimentPage) -> dict[str, Difference]:
    """Return the differences to plain at TrAct's largest budget, by arm, of the same seeds."""
    assert page.answers is not None
    tract = max(_find_differences(page.answers), key=lambda found: found.budget)
    found = {d.arm.name: d for d in page.answers.differences if d.budget == tract.budget}
    return {name: found[name] for name in WORDS if name in found and found[name].n == tract.n}


def _draw_panel(axis: Axes, page: ExperimentPage) -> None:
    differences = _read(page)
    seeds = {seed for seed, _ in differences[TRACT].per_seed}
    styles: dict[str, dict[str, Any]] = {
        BASELINE: {"color": "#333333", "linestyle": "--", "label": "plain"}
    }
    for colour, name in zip(COLOURS, differences, strict=False):
        styles[name] = {"color": colour, "label": WORDS[name]}
    assert page.answers is not None
    for name, style in styles.items():
        runs = [
            run
            for run in page.answers.runs
            if (run.arm.name, run.budget) == (name, differences[TRACT].budget) and run.seed in seeds
        ]
        _draw_arm(axis, runs, style)
    axis.set_xlabel("epoch")
    axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axis.grid(alpha=0.3)


def _draw_arm(axis: Axes, runs: Sequence[FinishedRun], style: dict[str, Any]) -> None:
    columns = list(zip(*(run.accuracies for run in runs), strict=True))
    epochs = runs[0].epochs
    band = {"color": style["color"], "alpha": 0.15, "linewidth": 0}
    axis.fill_between(epochs, list(map(min, columns)), list(map(max, columns)), **band)
    means = [sum(column) / len(column) for column in columns]
    axis.plot(epochs, means, linewidth=2, marker="o", markersize=3, **style)


def _describe(pages: dict[str, ExperimentPage]) -> str:
    """Return data, seeds and differences in a few sentences."""
    found = {name: _read(page) for name, page in pages.items()}
    data = join_distinct(
        [describe_data(record["data"]) for page in pages.values() for record in page.study.records]
    )
    seeds = join_distinct([count(arms[TRACT].n, "seed") for arms in found.values()])
    results = "\n".join(
        f"- {SHOWN[name]}, {count_epochs(arms[TRACT].budget)}: "
        + ", ".join(f"{WORDS[arm]} {format_difference(arms[arm])}" for arm in arms)
        for name, arms in found.items()
    )
    return (
        f"Test accuracy on {data}, {seeds}; lines are means, bands the range of the seeds. "
        "Networks and budgets are small enough for a CPU, and the learning rate is tuned for plain "
        "training. Difference to plain training in percentage points [95 % interval]:\n\n"
        f"{results}"
    )


def _hash(pages: dict[str, ExperimentPage]) -> str:
    return "-".join(hash_records(page)[:16] for page in pages.values())
