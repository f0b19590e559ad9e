"""README's first picture and its numbers: final accuracy by epochs, plain and with TrAct."""

import statistics
from collections.abc import Mapping
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tools.evidence import NO_RECORD, Evidence, hash_records, is_current
from trainact.lab.analysis.answers import ENOUGH_SEEDS, Answers, answer
from trainact.lab.analysis.speedups import SpeedUp
from trainact.lab.cost.bench import Row, read_bench
from trainact.lab.cost.cases import FAST_NETWORK
from trainact.lab.files import write_atomically
from trainact.lab.metric import SIX_VIEWS, read_percent
from trainact.lab.recipes.arms import BASELINE
from trainact.lab.recipes.experiment import find_experiment
from trainact.lab.report.curves import COLOURS, STYLE, export_picture
from trainact.lab.report.experiment_page import ExperimentPage, count_planned
from trainact.lab.report.grid import Grid, render_markdown
from trainact.lab.report.tables import describe_data, join_distinct
from trainact.lab.report.wording import format_accuracy, format_difference, format_speed_up
from trainact.options import DEFAULT_LAM

__all__ = [
    *("ARM", "FILE", "ON_GITHUB", "RIVAL", "SHOWN", "STEP", "WORDS"),
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
    ARM: "TrAct from a whitened start",
    RIVAL: "frozen whitened start",
}
"""The arms of the picture beside plain training, and what they are called."""
PUBLISHED, PUBLISHED_ACCURACY = "cifar10-speed93", 93.0
"""The recipe whose ``RIVAL`` was published with six views of each test image, and its result there:
the mean of 50 runs (cifar10-airbench, Jordan, 2024)."""
ABSENT = "-"
"""A cell without a number."""
NOT_REACHED = "not reached"
"""A speed-up below 1 with its whole interval."""


def read_step(results: Path) -> Row | None:
    """Return the row of the fast recipe's network in its record of ``trainact bench``."""
    record = read_bench(results / STEP) or {}
    return next((row for row in record.get("step", []) if row["name"] == FAST_NETWORK), None)


def write_opening(evidence: Evidence, step: Row | None) -> dict[str, str]:
    """Return the text of the marked places of README and of the site's first page.

    ``step`` is the cost of TrAct for the network of the first recipe.
    """
    pages = _select(evidence)
    text = _describe(pages, step) if pages else ""
    places = {"opening": ON_GITHUB, "opening-here": "pictures"}
    title = "Final test accuracy by number of epochs: plain, TrAct and whitened starts"
    return {
        name: f"![{title}]({folder}/{FILE})\n\n{text}" if pages else NO_RECORD
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


def _find_budget(page: ExperimentPage) -> int:
    """Return the budget of the table: the largest of the arm with enough seeds."""
    answers = _get_answers(page)
    return answers.find_budget(next(arm for arm in answers.arms if arm.name == ARM))


def _find_budgets(page: ExperimentPage) -> list[int]:
    """Return the budgets at which the arm has two or more seeds."""
    differences = page.answers.differences if page.answers else ()
    return [found.budget for found in differences if found.arm.name == ARM and found.n > 1]


def _draw_panel(axis: Axes, page: ExperimentPage) -> None:
    """Draw the final accuracy of the arms at each budget."""
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
    axis.set_xlim(budgets[0] / 1.3, budgets[-1] * 1.3)
    axis.set_xticks(budgets, [str(budget) for budget in budgets], minor=False)
    axis.set_xticks([], minor=True)
    axis.set_xlabel("epochs of the whole run")
    axis.grid(alpha=0.3)


def _list_final(page: ExperimentPage, name: str, budget: int) -> list[float]:
    """Return the final accuracies of an arm at a budget."""
    return [
        run.accuracies[-1]
        for run in _get_answers(page).runs
        if run.complete and (run.arm.name, run.budget) == (name, budget)
    ]


def _describe(pages: Mapping[str, ExperimentPage], step: Row | None) -> str:
    """Return the picture's caption, a table of the results, missing arms and the cost of a step."""
    data = join_distinct(
        [describe_data(record["data"]) for page in pages.values() for record in page.study.records]
    )
    caption = (
        f"Final test accuracy on {data}: small networks and few epochs, on a CPU. Each dot is the "
        "mean of runs that were trained for just that many epochs, with a whole learning-rate "
        "schedule; bars span the seeds. The table has the longest runs with "
        f"{ENOUGH_SEEDS} seeds; if there are none, those of most seeds:"
    )
    notes = [
        "± is the standard deviation over seeds. Differences are in percentage points. Brackets "
        "are 95 % intervals over seeds; they do not cover the choice of test images.",
        "A speed-up of 2× means that this arm needs half of the epochs for the accuracy that the "
        "other one has in the end; we interpolate between runs of different lengths, so a network "
        f"with one number of epochs has none. {NOT_REACHED.capitalize()} and < 1.00× mean that its "
        "longest runs end below that accuracy, ≥ that its shortest runs already reach it.",
        "All arms of a network have the same learning rate. For the fast network and the ViT it "
        "was tuned for plain training with 5 epochs; the wider network has the published one, "
        "which was chosen for the frozen start. None was tuned for TrAct.",
        *([_describe_published(pages[PUBLISHED])] if PUBLISHED in pages else []),
        *([] if step is None else [_describe_step(step)]),
        _describe_progress(pages),
    ]
    return "\n\n".join([caption, _render_table(pages), "\n".join(f"- {note}" for note in notes)])


def _render_table(pages: Mapping[str, ExperimentPage]) -> str:
    """Return a column for each network, without the rows that none of them has."""
    columns = [_list_cells(page) for page in pages.values()]
    rows = tuple(
        (title, *(column[title] for column in columns))
        for title in columns[0]
        if any(column[title] != ABSENT for column in columns)
    )
    return render_markdown(Grid("", ("", *(SHOWN[name] for name in pages)), rows))


def _list_cells(page: ExperimentPage) -> dict[str, str]:
    """Return a network's column: accuracies, and differences and speed-ups, the rival's first."""
    budget = _find_budget(page)
    answers = answer(page.study.records, against=dict.fromkeys(set(WORDS) - {RIVAL}, RIVAL))
    summaries = {s.arm.name: s for s in answers.summaries if s.budget == budget}
    seeds = summaries[ARM].n

    def name_seeds(text: str, n: int) -> str:
        return text if n == seeds else f"{text} (n = {n})"

    cells = {"epochs": str(budget), "seeds": str(seeds)}
    for name, word in {BASELINE: "plain", **WORDS}.items():
        summary = summaries.get(name)
        cells[f"{word}, %"] = (
            name_seeds(format_accuracy(summary, summary.diverged), summary.n) if summary else ABSENT
        )
    groups = {
        "the frozen start": (answers.others, answers.other_speed_ups),
        "plain": (answers.differences, answers.speed_ups),
    }
    for other, (differences, _) in groups.items():
        points = {d.arm.name: d for d in differences if d.budget == budget}
        for name, word in WORDS.items():
            found = points.get(name)
            cells[f"{word} minus {other}"] = (
                name_seeds(format_difference(found), found.n) if found else ABSENT
            )
    for other, (_, speed_ups) in groups.items():
        factors = {f.arm.name: f for f in speed_ups if f.budget == budget}
        for name, word in WORDS.items():
            factor = factors.get(name)
            cells[f"{word}, speed-up over {other}"] = (
                name_seeds(_describe_speed_up(factor), len(factor.seeds)) if factor else ABSENT
            )
    return cells


def _describe_speed_up(found: SpeedUp) -> str:
    bounds = [bound for bound in (found.low, found.high) if bound is not None]
    if all(reach.kind == "below" for reach in (found.reach, *bounds)):
        return NOT_REACHED
    return format_speed_up(found)


def _describe_progress(pages: Mapping[str, ExperimentPage]) -> str:
    """Return how many of the planned runs of each network are done."""
    parts = []
    for name, page in pages.items():
        done, planned = count_planned(find_experiment(name), page.study.records)
        parts.append(f"{done} of {planned} ({SHOWN[name]})")
    return f"Planned runs that are done: {', '.join(parts)}."


def _describe_published(page: ExperimentPage) -> str:
    """Return the accuracies of six views, beside the published one.

    They are means over the seeds that all arms completed, at the table's budget.
    """
    budget, words = _find_budget(page), {BASELINE: "plain", **WORDS}
    found: dict[str, dict[int, float]] = {}
    for record in page.study.records:
        if (record["budget"], record["status"]) == (budget, "complete") and record["arm"] in words:
            percent = read_percent(SIX_VIEWS, record["epochs"][-1])
            found.setdefault(record["arm"], {})[record["seed"]] = percent
    seeds = set.intersection(*map(set, found.values()))
    if not seeds:
        return f"No seed of the {SHOWN[PUBLISHED]} was completed by all arms."
    reached = ", ".join(
        f"{statistics.fmean(found[name][seed] for seed in seeds):.2f} % ({word})"
        for name, word in words.items()
        if name in found
    )
    return (
        f"With six views of each test image, the {SHOWN[PUBLISHED]} reaches {reached}. With the "
        f"{WORDS[RIVAL]} it is a published recipe of cifar10-airbench, whose author reports "
        f"{PUBLISHED_ACCURACY:.1f} %."
    )


def _describe_step(step: Row) -> str:
    """Return TrAct's own work as a share of a plain step, and the ratio of whole steps."""
    median, low, high = (
        f"{100 * step['extra_over_plain'][key]:.2f}" for key in ("median", "low", "high")
    )
    whole = step["trainact_over_plain"]
    steps = "whole steps were too noisy to compare"
    if not step["noisy"]:
        interval = f"{whole['median']:.3f} [{whole['low']:.3f}, {whole['high']:.3f}]"
        steps = f"whole steps with TrAct took {interval} times as long as plain ones"
    return (
        f"TrAct's own work, timed alone, takes {median} % [{low}, {high}] of a plain training step "
        f"of the {SHOWN['cifar10-speed']} (interval over repeated timings); {steps}."
    )


def _hash(pages: Mapping[str, ExperimentPage]) -> str:
    return "-".join(hash_records(page)[:16] for page in pages.values())
