"""The picture of ``trainact figure1``: wanted and given steps of z, and how near they are."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import matplotlib as mpl
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from trainact.lab.report.curves import COLOURS, LOOK

__all__ = ["Steps", "compute_cosine", "draw_figure1"]

OUTPUTS = 12
"""Of all outputs m, those that the matrices show."""
BLUE, GREEN = COLOURS[0], COLOURS[2]


class Steps(NamedTuple):
    """A wanted step of z and the one that a step of the weights gives, [b, m]."""

    wanted: Tensor
    given: Tensor


def compute_cosine(steps: Steps) -> float:
    """Return the cosine between the two steps."""
    return F.cosine_similarity(steps.wanted.flatten(), steps.given.flatten(), dim=0).item()


def draw_figure1(record: Mapping[str, Any], examples: Mapping[str, Steps]) -> Figure:
    """Draw three pairs of matrices above the cosine over the number of patches."""
    titles = {
        "language": "Language: embedding layer",
        "vision": "Vision: plain gradient",
        "tract": f"Vision: TrAct, λ = {record['lam']:g}",
    }
    with mpl.rc_context(LOOK):
        figure = Figure(figsize=(9.0, 6.6), layout="constrained")
        halves: Any = figure.subfigures(2, 1, height_ratios=(1.15, 1.0))
        top, bottom = halves
        for part, (name, title) in zip(top.subfigures(1, 3), titles.items(), strict=True):
            cosine = record["example"][name]
            part.suptitle(f"{title}\ncosine {cosine:.3f}", fontsize=11, fontweight="bold")
            _draw_steps(part, examples[name], "tokens" if name == "language" else "patches")
        _draw_cosines(bottom.subplots(), record)
    return figure


def _draw_steps(figure: Any, steps: Steps, rows: str) -> None:
    """Draw the wanted and the given step beside each other, each on its own scale."""
    axes = figure.subplots(1, 2)
    for axis, step, label in zip(axes, steps, ("wanted: ∇z", "given: Δz"), strict=True):
        shown = step[:, :OUTPUTS]
        most = shown.abs().max().item()
        axis.imshow(shown.numpy(), cmap="RdBu_r", vmin=-most, vmax=most, aspect="auto")
        axis.set_title(label, fontsize=10)
        axis.set(xticks=[], yticks=[])
        axis.set_xlabel(f"{shown.shape[1]} outputs", fontsize=8)
    axes[0].set_ylabel(f"{len(steps.wanted)} {rows}", fontsize=8)


def _draw_cosines(axis: Axes, record: Mapping[str, Any]) -> None:
    rows = [row["rows"] for row in record["vision"]]
    axis.axhline(record["language"]["cosine"], color=GREEN, linewidth=2, label="embedding layer")
    styles: dict[str, tuple[str, Any]] = {
        "best": ("the most that any step of the weights gives", {"color": "0.55", "ls": ":"}),
        "tract": (f"TrAct, λ = {record['lam']:g}", {"color": BLUE, "ls": "-"}),
        "plain": ("plain gradient", {"color": "#333333", "ls": "--"}),
    }
    for name, (label, style) in styles.items():
        spread = [row[name] for row in record["vision"]]
        low, high = ([s[end] for s in spread] for end in ("low", "high"))
        axis.plot(rows, [s["mean"] for s in spread], marker="o", markersize=4, label=label, **style)
        axis.fill_between(rows, low, high, color=style["color"], alpha=0.15, linewidth=0)
    axis.axvline(record["inputs"], color="0.8", linewidth=1)
    axis.annotate(
        f"{record['inputs']} inputs ",
        (record["inputs"], 0.02),
        ha="right",
        color="0.45",
        fontsize=9,
    )
    axis.set_xscale("log", base=2)
    axis.set_xticks(rows, [f"{count:,}" for count in rows])
    axis.minorticks_off()
    axis.set(
        xlabel=f"patches of a step ({record['data']['name']}, ViT at the start of training)",
        ylabel="cosine of Δz and ∇z",
        ylim=(0, 1.06),
    )
    axis.grid(alpha=0.3)
    axis.legend(frameon=False, fontsize=10, loc="upper right", bbox_to_anchor=(1.0, 0.94))
