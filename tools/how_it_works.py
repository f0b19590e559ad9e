"""Draw ``docs/pictures/how-it-works.png``: one step of three first layers, as matrices.

After the paper's Figure 1: two inputs of four numbers, three outputs. Every number is computed by
the formulas of the step; only the inputs, the weights and ∇z are made up.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from tools.evidence import is_current
from trainact.lab.files import write_atomically
from trainact.lab.report.curves import STYLE, export_picture
from trainact.options import DEFAULT_LAM

__all__ = ["FILE", "Step", "draw_steps", "list_stale_steps", "make_steps", "write_steps"]

Matrix = NDArray[np.float64]
Labelled = tuple[str, Matrix]
FILE = "how-it-works.png"
TOKENS: Matrix = np.array([[0.0, 1, 0, 0], [0, 0, 0, 1]])
PATCHES: Matrix = np.array([[1.5, 0.8, 1.3, 0.7], [1.0, 1.4, 0.2, 1.1]])
WEIGHT: Matrix = np.array([[0.5, -0.2, 0.1], [-0.4, 0.3, 0.6], [0.2, 0.7, -0.3], [-0.1, -0.5, 0.4]])
GRADIENT: Matrix = np.array([[0.6, -0.4, 0.3], [-0.5, 0.3, 0.4]])
ORANGE = "#D55E00"
GAP = 1.4
"""Between two matrices, in cells."""
WIDTH, HEIGHT = 42.5, 7.0
"""Of a row, in cells of a quarter inch."""


@dataclass(frozen=True)
class Step:
    """A step of the first layer, in the paper's symbols; the learning rate is left out."""

    title: str
    x: Matrix  # [b, n]
    inverse: Matrix | None  # (xᵀx/b + λI)⁻¹, [n, n]; None for the plain gradient

    @property
    def change_of_weight(self) -> Matrix:
        """Return ΔWᵀ, [n, m], scaled so that Δz is as long as ∇z."""
        change = self.x.T @ GRADIENT
        if self.inverse is not None:
            change = self.inverse @ change
        return change * np.linalg.norm(GRADIENT) / np.linalg.norm(self.x @ change)

    @property
    def change_of_z(self) -> Matrix:
        """Return Δz = x ΔWᵀ, [b, m]."""
        return self.x @ self.change_of_weight

    @property
    def cosine(self) -> float:
        """Return the cosine between Δz and ∇z."""
        return float(np.sum(self.change_of_z * GRADIENT) / np.sum(GRADIENT**2))

    @property
    def relation(self) -> str:
        """Return the sign between Δz and ∇z."""
        if math.isclose(self.cosine, 1):
            return "="
        return "≈" if self.cosine > 0.95 else "≠"


def make_steps() -> tuple[Step, ...]:
    """Return the three steps: language, vision, and vision with TrAct."""
    rows, inputs = PATCHES.shape
    moment = PATCHES.T @ PATCHES / rows + DEFAULT_LAM * np.eye(inputs)
    return (
        Step("Language: an embedding", TOKENS, None),
        Step("Vision: plain gradient", PATCHES, None),
        Step("Vision: TrAct", PATCHES, np.linalg.inv(moment)),
    )


def write_steps() -> dict[str, str]:
    """Return the text of the marked place below the picture."""
    language, plain, tract = (f"{step.cosine:.3f}" for step in make_steps())
    return {
        "how-cosines": f"Cosine between Δz and ∇z: {language} for the embedding, {plain} for the "
        f"plain gradient, {tract} for TrAct with λ = {DEFAULT_LAM:g}."
    }


def list_stale_steps(folder: Path) -> list[str]:
    """Return the picture's name if it is missing or was drawn by another version of this file."""
    return [] if is_current(folder / FILE, _hash()) else [FILE]


def draw_steps(folder: Path) -> None:
    """Draw a row for each step: the forward pass, the weight step, and what it does to z."""
    steps = make_steps()
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH / 4, HEIGHT * len(steps) / 4))
        axis = figure.add_axes((0, 0, 1, 1))
        axis.set(xlim=(-0.5, WIDTH - 0.5), ylim=(HEIGHT * len(steps) - 1.5, -1.5))
        axis.axis("off")
        for number, step in enumerate(steps):
            _draw_step(axis, HEIGHT * number + 1, step)
    write_atomically(folder / FILE, export_picture(figure, "png", _hash()))


def _draw_step(axis: Axes, top: float, step: Step) -> None:
    axis.text(0, top - 1.5, step.title, fontsize=13, fontweight="bold", va="center")
    _draw_product(axis, 0, top, [("x", step.x), "·", ("Wᵀ", WEIGHT), "=", ("z", step.x @ WEIGHT)])
    factors: list[str | Labelled] = [("xᵀ", step.x.T), "·", ("∇z", GRADIENT), "∝"]
    if step.inverse is not None:
        factors = [("(xᵀx/b + λI)⁻¹", step.inverse), "·", *factors]
    _draw_product(axis, 15, top, [*factors, ("ΔWᵀ", step.change_of_weight)])
    effect = ("x ΔWᵀ = Δz", step.change_of_z)
    _draw_product(axis, 34, top, [effect, step.relation, ("∇z", GRADIENT)])


def _draw_product(axis: Axes, left: float, top: float, parts: Sequence[str | Labelled]) -> None:
    """Draw matrices with their labels, and the signs between them, from left to right."""
    for part in parts:
        if isinstance(part, str):
            _write(axis, left + GAP / 2, top + 2, part, size=15)
            left += GAP
        else:
            label, matrix = part
            _draw_matrix(axis, left, top, label, matrix)
            left += matrix.shape[1]


def _draw_matrix(axis: Axes, left: float, top: float, label: str, matrix: Matrix) -> None:
    """Draw cells in the colours of their values, centred in a row of four cells."""
    rows, columns = matrix.shape
    top += (4 - rows) / 2
    most = float(np.abs(matrix).max())
    colours = mpl.colormaps["RdBu_r"]
    for row in range(rows):
        for column in range(columns):
            value = float(matrix[row, column])
            cell = Rectangle(
                (left + column, top + row), 1, 1, facecolor=colours(0.5 + 0.35 * value / most)
            )
            cell.set(edgecolor="white", linewidth=1)
            axis.add_patch(cell)
            _write(
                axis, left + column + 0.5, top + row + 0.5, f"{value:.1f}".replace("-0.0", "0.0")
            )
    if rows == columns:
        axis.add_patch(
            Rectangle((left, top), columns, rows, fill=False, edgecolor=ORANGE, linewidth=2.5)
        )
    _write(axis, left + columns / 2, top - 0.45, label, size=11)


def _write(axis: Axes, x: float, y: float, text: str, size: float = 7.5) -> None:
    axis.text(x, y, text, ha="center", va="center", fontsize=size)


def _hash() -> str:
    return hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
