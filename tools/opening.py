"""README's first picture and its numbers: final accuracy by epochs, plain and with TrAct."""

import statistics
from collections.abc import Mapping
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tools.evidence import NO_RECORD, Evidence, hash_records, is_current
from trainact.lab.analysis.answers import Answers, Difference
from trainact.lab.analysis.speedups import SpeedUp
from trainact.lab.cost.bench import Row, read_bench
from trainact.lab.cost.cases import FAST_NETWORK
from trainact.lab.files import write_atomically
from trainact.lab.recipes.arms import BASELINE
from trainact.lab.recipes.experiment import find_experiment
from trainact.lab.report.curves import COLOURS, STYLE, export_picture
from trainact.lab.report.experiment_page import ExperimentPage
from trainact.lab.report.grid import Grid, render_markdown
from trainact.lab.report.tables import describe_data, join_distinct
from trainact.lab.report.wording import format_difference, format_number, format_speed_up
from trainact.options import DEFAULT_LAM

__all__ = [
    *("ARM", "FILE", "RIVAL", "SHOWN", "STEP"),
    *("draw_opening", "list_stale_opening", "read_step", "write_opening"),
]

FILE = "opening.png"
SHOWN = {
    "cifar10-speed": "fast network",
    "cifar10-speed93": "wider fast network",
    "cifar10-speed-vit": "ViT with 4x4 patches",
}
"""The recipes of the picture and the titles of its panels."""
STEP = Path("bench", "fast", "bench.json")
"""Below the results: ``trainact bench --sections step --only "fast recipe" --out ...``."""
ON_GITHUB = "https://github.com/trainact/trainact/raw/main/docs/pictures"
"""The folder of the picture, for README on PyPI."""
ARM = f"eigen+tract-{DEFAULT_LAM:g}"
"""The arm that the picture is about."""
RIVAL = "eigen+frozen"
"""The strongest rival that is known."""
WORDS = {
    f"tract-{DEFAULT_LAM:g}": "TrAct",
    RIVAL: "frozen whitened start",
    ARM: "TrAct from a whitened start",
}
"""The arms of the picture beside plain training, and what they are called."""
HEAD = (
    *("network", "epochs", "n", "plain, %", *WORDS.values()),
    *("against the frozen start", "speed-up over plain", "over the frozen start"),
)


def read_step(results: Path) -> Row | None:
    """Return the row of the fast recipe's network in its record of ``trainact bench``."""
    record = read_bench(results / STEP) or {}
    return next((row for row in record.get("step", []) if row["name"] == FAST_NETWORK), None)


def write_opening(evidence: Evidence, step: Row | None) -> dict[str, str]:
    """Return the text of the marked places of README and of the site's first page.

    ``step`` is the cost of TrAct for the network of the first recipe.
    """
    pages = _select(evidence)
    sentences = _describe(pages, step) if pages else ""
    places = {"opening": ON_GITHUB, "opening-here": "pictures"}
    title = "Final test accuracy of runs with few and with many epochs, plain and with TrAct"
    return {
        name: f"![{title}]({folder}/{FILE})\n\n{sentences}" if pages else NO_RECORD
        for name, folder in places.items()
    }


def list_stale_opening(evidence: Evidence, folder: Path) -> list[str]:
    """Return the picture's name if it is missing or was drawn from other records."""
    pages = _select(evidence)
    return [FILE] if pages and not is_current(folder / FILE, _hash(pages)) else []


def draw_opening(evidence: Evidence, folder: Path) -> None:
    """Draw a panel for each recipe: means as dots, the range of the seeds as bars."""
    pages = _select(evidence)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(max(6.0, 4.0 * len(pages)), 3.6), layout="constrained")
        axes = figure.subplots(1, len(pages), squeeze=False)[0]
        for axis, (name, page) in zip(axes, pages.items(), strict=True):
            _draw_panel(axis, page)
            axis.set_title(SHOWN[name], fontsize=11)
        axes[0].set_ylabel("test accuracy, %")
        arms = axes[0].get_legend_handles_labels()
        figure.legend(*arms, loc="outside lower center", ncols=2, frameon=False)
    write_atomically(folder / FILE, export_picture(figure, "png", _hash(pages)))


def _select(evidence: Evidence) -> dict[str, ExperimentPage]:
    """Return the pages of the shown recipes with an interval for the arm."""
    pages = {name: evidence.get(name) for name in SHOWN}
    return {name: page for name, page in pages.items() if page is not None and _find_budgets(page)}


def _get_answers(page: ExperimentPage) -> Answers:
    assert page.answers is not None
    return page.answers


def _find_budgets(page: ExperimentPage) -> list[int]:
    """Return the budgets at which the arm has two or more seeds."""
    differences = page.answers.differences if page.answers else ()
    return [found.budget for found in differences if found.arm.name == ARM and found.n > 1]


def _read(page: ExperimentPage) -> dict[str, Difference]:
    """Return the differences to plain at the largest budget, by arm, of the same seeds."""
    budget = max(_find_budgets(page))
    found = {d.arm.name: d for d in _get_answers(page).differences if d.budget == budget}
    return {n: found[n] for n in WORDS if n in found and found[n].seeds == found[ARM].seeds}


def _draw_panel(axis: Axes, page: ExperimentPage) -> None:
    """Draw the final accuracy of the arms at each budget, of the seeds that the arm has there."""
    budgets = sorted(_find_budgets(page))
    words = {BASELINE: "plain"} | WORDS
    colours = ("#333333", *COLOURS)
    for place, (name, word) in enumerate(words.items()):
        ends = {budget: _list_final(page, name, budget) for budget in budgets}
        ends = {budget: values for budget, values in ends.items() if values}
        means = [statistics.fmean(values) for values in ends.values()]
        bars = [
            [mean - min(values) for mean, values in zip(means, ends.values(), strict=True)],
            [max(values) - mean for mean, values in zip(means, ends.values(), strict=True)],
        ]
        axis.errorbar(
            [budget * 1.012 ** (place - 1.5) for budget in ends],  # side by side
            means,
            bars,
            label=word,
            color=colours[place],
            linestyle="--" if name == BASELINE else "-",
            marker="o",
            markersize=4,
            capsize=3,
        )
    axis.set_xscale("log")
    axis.set_xticks(budgets, [str(budget) for budget in budgets], minor=False)
    axis.set_xticks([], minor=True)
    axis.set_xlabel("epochs of the whole run")
    axis.grid(alpha=0.3)


def _list_final(page: ExperimentPage, name: str, budget: int) -> list[float]:
    """Return an arm's final accuracies for the seeds of the picture's arm, if it has them all."""
    answers = _get_answers(page)
    (shown,) = (d for d in answers.differences if (d.arm.name, d.budget) == (ARM, budget))
    ends = [
        run.accuracies[-1]
        for run in answers.runs
        if run.complete and (run.arm.name, run.budget) == (name, budget) and run.seed in shown.seeds
    ]
    return ends if len(ends) == shown.n else []


def _describe(pages: Mapping[str, ExperimentPage], step: Row | None) -> str:
    """Return data, a table of the results, missing controls and the cost of a step."""
    data = join_distinct(
        [describe_data(record["data"]) for page in pages.values() for record in page.study.records]
    )
    blocks = [
        f"Final test accuracy on {data}, with networks and budgets for two cores of a CPU. Dots "
        "are means over seeds, bars their range; each dot has runs of its own, with a whole "
        "learning-rate schedule. The table has the largest budget: differences in percentage "
        "points, and speed-ups in epochs of TrAct from a whitened start. Brackets are 95 % "
        "intervals over seeds; for a speed-up with two or three seeds they are little more than "
        "the range of the seeds.",
        render_markdown(Grid("", HEAD, tuple(_make_row(name, pages[name]) for name in pages))),
    ]
    notes = [
        f"Not run yet on the {SHOWN[name]}: the control, {', '.join(absent)}."
        for name, page in pages.items()
        if (absent := _list_absent_controls(page))
    ]
    notes += [] if step is None else [_describe_step(step)]
    return "\n\n".join([*blocks, " ".join(notes)]).rstrip()


def _make_row(name: str, page: ExperimentPage) -> tuple[str, ...]:
    """Return plain's accuracy, the arms' differences to it and to the rival, and the speed-ups."""
    answers, found = _get_answers(page), _read(page)
    budget, seeds = found[ARM].budget, found[ARM].seeds
    plain = statistics.fmean(_list_final(page, BASELINE, budget))
    others = [d for d in answers.others if (d.arm.name, d.budget) == (ARM, budget)]
    rival = next((d for d in others if d.against.name == RIVAL and d.seeds == seeds), None)
    speed_ups = {
        one.against.name: _format_speed_up(one)
        for one in (*answers.other_speed_ups, *answers.speed_ups)
        if (one.arm.name, one.budget) == (ARM, budget) and set(one.seeds) == seeds
    }
    return (
        *(SHOWN[name], str(budget), str(len(seeds)), format_number(plain)),
        *(format_difference(found.get(arm)) for arm in WORDS),
        format_difference(rival),
        *(speed_ups.get(other, "-") for other in (BASELINE, RIVAL)),
    )


def _format_speed_up(found: SpeedUp) -> str:
    """Return a speed-up; none if the arm never reaches the other's accuracy."""
    return "none" if found.reach.kind == "below" else format_speed_up(found)


def _list_absent_controls(page: ExperimentPage) -> list[str]:
    """Return the recipe's arms with another first-layer learning rate that have no record."""
    arms = find_experiment(page.study.name).arms
    done = {record["arm"] for record in page.study.records}
    return [arm.title for arm in arms if arm.kind == "lr" and arm.name not in done]


def _describe_step(step: Row) -> str:
    """Return TrAct's own work, which is timed alone, as a share of a plain step."""
    median, low, high = (
        f"{100 * step['extra_over_plain'][key]:.2f}" for key in ("median", "low", "high")
    )
    return (
        f"TrAct's own work, timed alone, takes {median} % [{low}, {high}] of a plain training step "
        f"of the {SHOWN['cifar10-speed']}."
    )


def _hash(pages: Mapping[str, ExperimentPage]) -> str:
    return "-".join(hash_records(page)[:16] for page in pages.values())
