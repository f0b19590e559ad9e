"""Pictures of a comparison: accuracy and gradient norm per epoch, final accuracy by budget and λ.

Each arm has its own colour; arms with TrAct are solid, the others dashed, and dots in the lines
tell arms apart that have the same colour. Thin lines are runs, thick lines their mean; a cross
marks where a run diverged. A panel is narrow enough for a phone.
"""

import io
import math
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator

from trainact.lab.analysis.answers import Answers
from trainact.lab.analysis.runs import FinishedRun
from trainact.lab.recipes.arms import PLAIN, Arm
from trainact.lab.report.chapters import Picture
from trainact.lab.report.wording import SMOKE_WARNING, format_reach
from trainact.lab.text import count_epochs

__all__ = [
    *("CURVES", "draw_accuracy", "draw_budgets", "draw_gradients", "draw_lams", "draw_top5"),
    *("draw_pictures", "export_picture"),
]

COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7"),
    *("#E69F00", "#56B4E9", "#882255", "#999933"),
)
"""Safe for colour-blind readers (Okabe and Ito, then Tol); plain is dark grey."""
SOLID: Any = ("-", (0, (8, 1, 1, 1)), (0, (8, 1, 1, 1, 1, 1)))
DASHED: Any = ("--", (0, (3, 1, 1, 1)), (0, (3, 1, 1, 1, 1, 1)))
"""Line styles of arms with and without TrAct; the next is taken when all colours are used."""
MARKERS = "osD^vPX*<"
WIDTH, HEIGHT = 4.0, 2.9
TITLE_WIDTH = 40
"""Characters of a bold title that fit the width."""
DIVERGED = "diverged"
TWO_COLUMNS = 26
"""The legend has two columns if no label has more characters than this."""
LEGEND: Any = {"frameon": False, "columnspacing": 1.2, "handlelength": 1.8}
STYLE: Any = {"font.size": 10, "svg.fonttype": "path", "svg.hashsalt": "trainact"}


def draw_accuracy(answers: Answers, budgets: Sequence[int] | None = None) -> Figure:
    """Draw test accuracy per epoch, one panel for each budget, with a shared scale of accuracy."""
    return _draw_percents(answers, budgets, lambda run: list(run.accuracies), "test accuracy, %")


def draw_top5(answers: Answers, budgets: Sequence[int] | None = None) -> Figure:
    """Draw top-5 test accuracy per epoch, in the same way as accuracy."""
    return _draw_percents(answers, budgets, lambda run: list(run.top5), "top-5 test accuracy, %")


def _draw_percents(
    answers: Answers,
    budgets: Sequence[int] | None,
    read: Callable[[FinishedRun], list[float | None]],
    label: str,
) -> Figure:
    figure = _draw_panels(
        answers,
        answers.budgets if budgets is None else budgets,
        read,
        lambda values: sum(values) / len(values),
        label,
    )
    heights = [value for run in answers.runs for value in read(run) if value is not None]
    if heights and max(heights) > min(heights):
        margin = 0.05 * (max(heights) - min(heights))
        for axis in figure.axes:
            axis.set_ylim(min(heights) - margin, max(heights) + margin)
    return figure


def draw_gradients(answers: Answers, budgets: Sequence[int] | None = None) -> Figure:
    """Draw the norm of the first layer's gradient per epoch, on a log scale."""
    figure = _draw_panels(
        answers,
        answers.budgets if budgets is None else budgets,
        lambda run: [_positive(norm) for norm in run.gradient_norms],
        lambda values: math.exp(sum(map(math.log, values)) / len(values)),
        "first layer's gradient norm",
    )
    for axis in figure.axes:
        if axis.lines:
            axis.set_yscale("log")
            axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.yaxis.set_major_formatter(lambda norm, _: f"{norm:g}")
            axis.tick_params("y", which="minor", left=False, labelleft=False)
    return figure


CURVES = {
    Picture.ACCURACY: draw_accuracy,
    Picture.TOP5: draw_top5,
    Picture.GRADIENTS: draw_gradients,
}
"""Pictures per epoch, with a panel for each budget."""


def draw_budgets(answers: Answers) -> Figure:
    """Draw final accuracy by epochs, with an arrow for each speed-up at plain's largest budget.

    The arrow starts at plain's accuracy and ends where the arm reaches the same accuracy.
    """
    with mpl.rc_context(STYLE):
        figure = _make_figure(answers, 1)
        axis = figure.subplots()
        for arm in answers.arms:
            points = [s for s in answers.summaries if s.arm == arm and s.mean is not None]
            if points:
                axis.errorbar(
                    [summary.budget for summary in points],
                    [summary.mean or 0.0 for summary in points],
                    yerr=[summary.std or 0.0 for summary in points],
                    capsize=3,
                    marker=MARKERS[answers.arms.index(arm) % len(MARKERS)],
                    markersize=5,
                    label=_label(arm),
                    **_style(answers, arm),
                )
        _draw_arrows(axis, answers)
        if answers.budgets:
            axis.set_xscale("log")
            axis.set_xticks(answers.budgets, [str(budget) for budget in answers.budgets])
            axis.minorticks_off()
        axis.set(xlabel="epochs of the whole run", ylabel="final test accuracy, %")
        axis.grid(alpha=0.3)
        _add_legend(figure, axis)
    return figure


def draw_lams(answers: Answers) -> Figure:
    """Draw final accuracy by λ on a log scale, a line for each budget; plain is a level.

    Bars and the band around plain are standard deviations over seeds.
    """
    with mpl.rc_context(STYLE):
        figure = _make_figure(answers, 1, labels=2 * len(answers.budgets))
        axis = figure.subplots()
        for number, budget in enumerate(answers.budgets):
            colour = COLOURS[number % len(COLOURS)]
            known = [s for s in answers.summaries if s.budget == budget and s.mean is not None]
            points = [(s.arm.lam or 0.0, s) for s in known if s.arm.kind == "tract"]
            if points:
                axis.errorbar(
                    [lam for lam, _ in points],
                    [summary.mean or 0.0 for _, summary in points],
                    yerr=[summary.std or 0.0 for _, summary in points],
                    capsize=3,
                    marker=MARKERS[number % len(MARKERS)],
                    markersize=5,
                    color=colour,
                    label=f"TrAct, {count_epochs(budget)}",
                )
            for plain in (summary for summary in known if summary.arm == PLAIN):
                level, spread = plain.mean or 0.0, plain.std or 0.0
                axis.axhspan(level - spread, level + spread, color=colour, alpha=0.15, linewidth=0)
                label = f"plain, {count_epochs(budget)}"
                axis.axhline(level, color=colour, linestyle="--", label=label)
        lams = sorted({arm.lam for arm in answers.arms if arm.kind == "tract" and arm.lam})
        if lams:
            axis.set_xscale("log")
            axis.set_xticks(lams, [f"{lam:g}" for lam in lams], rotation=45)
            axis.minorticks_off()
        axis.set(xlabel="λ", ylabel="final test accuracy, %")
        axis.grid(alpha=0.3)
        _add_legend(figure, axis)
    return figure


def _draw_arrows(axis: Axes, answers: Answers) -> None:
    """Draw the arrow of each speed-up at plain's largest budget, with its factor below the tip."""
    largest = max((found.budget for found in answers.speed_ups), default=None)
    shown = [
        (found, found.epochs)
        for found in answers.speed_ups
        if found.budget == largest and found.epochs is not None and found.epochs != found.budget
    ]
    for row, (found, epochs) in enumerate(sorted(shown, key=lambda pair: pair[1])):
        colour = _style(answers, found.arm)["color"]
        arrow = {"arrowstyle": "->", "color": colour, "linewidth": 1.6}
        start, end = (found.budget, found.target), (epochs, found.target)
        axis.annotate("", end, xytext=start, arrowprops=arrow)
        axis.annotate(
            format_reach(found.reach),
            end,
            xytext=(0, -13 - 12 * row),
            textcoords="offset points",
            ha="center",
            color=colour,
            fontweight="bold",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.8},
        )


def draw_pictures(
    answers: Answers, pictures: Iterable[Picture], source: str = ""
) -> dict[str, bytes]:
    """Return PNG files by name; ``source`` is metadata of each, such as a hash of the records."""
    draw: dict[Picture, Callable[[Answers], Figure]]
    draw = {**CURVES, Picture.BUDGETS: draw_budgets, Picture.LAMS: draw_lams}
    return {p.file: export_picture(draw[p](answers), "png", source) for p in pictures}


def export_picture(figure: Figure, kind: str, source: str = "") -> bytes:
    """Return the figure as ``png`` or ``svg``; the same figure gives the same bytes."""
    buffer = io.BytesIO()
    with mpl.rc_context(STYLE):
        metadata: dict[str, Any] = {"Date": None} if kind == "svg" else {"Software": None}
        if source:
            metadata["Source"] = source
        figure.savefig(buffer, format=kind, dpi=150, metadata=metadata)
    return buffer.getvalue()


def _draw_panels(
    answers: Answers,
    budgets: Sequence[int],
    read: Callable[[FinishedRun], list[Any]],
    average: Callable[[list[float]], float],
    label: str,
) -> Figure:
    with mpl.rc_context(STYLE):
        figure = _make_figure(answers, max(1, len(budgets)))
        axes = figure.subplots(max(1, len(budgets)), 1, squeeze=False)[:, 0]
        for axis, budget in zip(axes, budgets, strict=False):
            for arm in answers.arms:
                runs = [o for o in answers.runs if (o.arm, o.budget) == (arm, budget)]
                _draw_runs(axis, runs, read, average, _label(arm), _style(answers, arm))
            axis.set(title=count_epochs(budget), xlabel="epoch", ylabel=label)
            if budget == 1:
                axis.set_xlim(0, 2)
            axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
            axis.grid(alpha=0.3)
        _add_legend(figure, *axes)
    return figure


def _draw_runs(
    axis: Axes,
    runs: Sequence[FinishedRun],
    read: Callable[[FinishedRun], list[Any]],
    average: Callable[[list[float]], float],
    label: str,
    style: dict[str, Any],
) -> None:
    by_epoch: dict[int, list[float]] = {}
    for run in runs:
        points = [p for p in zip(run.epochs, read(run), strict=True) if p[1] is not None]
        if len(runs) > 1 or not run.complete:
            thin = {"linewidth": 0.7, "alpha": 0.45, "marker": "." if len(points) == 1 else None}
            axis.plot(*zip(*points, strict=True), **style | thin)
        if points and not run.complete:
            cross = {"marker": "x", "markersize": 9, "markeredgewidth": 2.5, "zorder": 5}
            axis.plot(*points[-1], **style | cross | {"linestyle": "none"}, label=DIVERGED)
        for epoch, value in points if run.complete else ():
            by_epoch.setdefault(epoch, []).append(value)
    if runs:
        means = [average(values) for values in by_epoch.values()]
        marker = "o" if len(means) == 1 else None
        axis.plot(list(by_epoch), means, label=label, marker=marker, linewidth=2, **style)


def _label(arm: Arm) -> str:
    return arm.title.replace("$", r"\$")


def _style(answers: Answers, arm: Arm) -> dict[str, Any]:
    """Return colour and line style of an arm, the same in all pictures of a comparison."""
    if arm == PLAIN:
        return {"color": "#333333", "linestyle": "--"}
    others = [other for other in answers.arms if other != PLAIN]
    repeats, number = divmod(others.index(arm), len(COLOURS))
    styles = SOLID if arm.tract else DASHED
    return {"color": COLOURS[number], "linestyle": styles[repeats % len(styles)]}


def _make_figure(answers: Answers, panels: int, labels: int | None = None) -> Figure:
    """Return a figure with room for a legend of so many labels; by default one for each arm."""
    extra = 0.24 * (len(answers.arms) if labels is None else labels)
    figure = Figure(figsize=(WIDTH, HEIGHT * panels + extra), layout="constrained")
    if answers.kind == "smoke":
        warning = textwrap.fill(SMOKE_WARNING, TITLE_WIDTH)
        figure.suptitle(warning, color="#B00020", fontsize=10, fontweight="bold")
    return figure


def _add_legend(figure: Figure, *axes: Axes) -> None:
    """Put one legend below all panels, or a note in the first if there are no runs."""
    entries: dict[str, Any] = {}
    for axis in reversed(axes):  # prefer the handles of longer runs: lines, not points
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    if DIVERGED in entries:
        entries[DIVERGED] = entries.pop(DIVERGED)  # last
    if entries:
        columns = 2 if max(map(len, entries)) <= TWO_COLUMNS else 1
        handles = list(entries.values())
        figure.legend(handles, list(entries), loc="outside lower center", ncols=columns, **LEGEND)
    else:
        axes[0].text(0.5, 0.5, "no runs", ha="center", transform=axes[0].transAxes)


def _positive(norm: float | None) -> float | None:
    return norm if norm is not None and math.isfinite(norm) and norm > 0 else None
