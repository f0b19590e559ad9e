"""Pictures of records."""

from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt

from trainact.lab.environment import count_threads

__all__ = ["plot_growth"]

matplotlib.use("Agg")

STYLES = {
    "plain": {"color": "0.45", "linestyle": "--", "marker": "o", "label": "plain layer"},
    "trainact": {"color": "tab:blue", "linestyle": "-", "marker": "o", "label": "trainact"},
    "torch_tract": {"color": "tab:orange", "linestyle": "-", "marker": "s", "label": "torch_tract"},
}
AXES = {
    "batch": "images in the batch (7x7 stride 2 at 224 pixels)",
    "pixels": "pixels of a side (7x7 stride 2, batch 8)",
    "kernel": "kernel size (stride 2 at 112 pixels, batch 8)",
}


def plot_growth(record: dict[str, Any], folder: Path) -> list[Path]:
    """Draw time and peak memory of forward and backward as each size grows, log-log."""
    growth = {size: rows for size, rows in record["growth"].items() if rows}
    quantities = (
        ("ms", "milliseconds, forward + backward", lambda row, name: row[f"{name}_ms"]["median"]),
        ("memory", "peak MB, forward + backward", lambda row, name: row[f"{name}_bytes"] / 1e6),
    )
    paths = []
    for key, label, read in quantities:
        size_in_inches = (4.6 * len(growth), 3.8)
        figure, grid = plt.subplots(1, len(growth), figsize=size_in_inches, squeeze=False)
        axes = grid[0]
        for axis, (size, rows) in zip(axes, growth.items(), strict=True):
            for name, style in STYLES.items():
                points = [(row[size], read(row, name)) for row in rows if f"{name}_ms" in row]
                if points:
                    axis.plot(*zip(*points, strict=True), **style)
            axis.set(xscale="log", yscale="log", xlabel=AXES[size])
            ticks = [row[size] for row in rows]
            axis.set_xticks(ticks, [str(tick) for tick in ticks])
            axis.minorticks_off()
            axis.grid(alpha=0.3)
        axes[0].set_ylabel(label)
        axes[0].legend(frameon=False)
        figure.suptitle(_describe(record["environment"]), fontsize=9)
        figure.tight_layout()
        path = folder / f"growth-{key}.png"
        figure.savefig(path, dpi=110)
        plt.close(figure)
        paths.append(path)
    return paths


def _describe(environment: dict[str, Any]) -> str:
    hardware = environment["accelerator"] or environment["processor"]
    torch_version = environment["packages"]["torch"]
    return f"{hardware}, {count_threads(environment)}, torch {torch_version}"
