"""The paper's Figure 1 with numbers: the change of z that a weight step causes, against ∇z.

A language model's embedding layer changes its outputs z exactly along their gradient. The first
layer of a vision model does not; with TrAct it nearly does, as far as a linear map of pixels can.
"""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib as mpl
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

from trainact import diagnose, find_first_layers
from trainact.errors import TrActValueError
from trainact.lab.data import ImageData, ImageTensor, load_data
from trainact.lab.environment import describe_environment
from trainact.lab.models.build import build_model
from trainact.lab.randomness import seed_everything
from trainact.lab.recipes.recipe import DataFields, ModelFields
from trainact.lab.report.curves import COLOURS, STYLE
from trainact.lab.training.batches import EvaluationBatches, Place, measure_standard

__all__ = ["Rows", "Steps", "compute_cosine", "draw_figure1", "make_examples", "measure_figure1"]

FORMAT = 1
NETWORK = ModelFields("lab:vit-cifar", {"width": 64, "depth": 4, "heads": 4})
"""Patches of 4 x 4 pixels: n = 48 inputs and m = 64 outputs."""
IMAGES = 128
CHANNELS = 3
ROWS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
EXAMPLE_ROWS, EXAMPLE_OUTPUTS = 12, 12
"""Tokens or patches, and outputs of them, in the matrices of the picture."""
TINY = 1e-9
"""A λ for the least-squares step, the closest that any change of the weights can get."""
BLUE, GREEN = COLOURS[0], COLOURS[2]


class Rows(NamedTuple):
    """Inputs of the first layer and the gradient of its outputs."""

    x: Tensor  # [b, n]
    grad_z: Tensor  # [b, m]


class Steps(NamedTuple):
    """The gradient of z, and the change of z that a weight step causes, both [b, m]."""

    wanted: Tensor
    caused: Tensor


def compute_cosine(steps: Steps) -> float:
    """Return the cosine between the two."""
    return F.cosine_similarity(steps.wanted.flatten(), steps.caused.flatten(), dim=0).item()


def measure_figure1(
    fields: DataFields, lam: float, seeds: Sequence[int]
) -> tuple[dict[str, Any], dict[str, Steps]]:
    """Return the record with all numbers, and the small examples drawn as matrices.

    Raises:
        TrActValueError: the data cannot be loaded, or are not colour images in memory.
    """
    data = load_data(fields)
    if not isinstance(data.train, ImageTensor) or data.train.images.shape[1] != CHANNELS:
        raise TrActValueError(f"{data.name} has no colour images in memory; try another --data.")
    by_rows: dict[int, list[dict[str, float]]] = {}
    examples: dict[str, Steps] = {}
    for seed in seeds:
        rows = _collect_rows(data, fields, seed)
        for size in [size for size in ROWS if size <= len(rows.x)]:
            by_rows.setdefault(size, []).append(_compare(_sample(rows, size, seed), lam))
        if not examples:
            examples = make_examples(_sample(rows, EXAMPLE_ROWS, seed), lam)
    record = {
        "format": FORMAT,
        "kind": "figure1",
        "data": {"name": data.name, "fingerprint": data.fingerprint, "images": IMAGES},
        "network": dataclasses.asdict(NETWORK),
        "inputs": rows.x.shape[1],
        "outputs": rows.grad_z.shape[1],
        "lam": lam,
        "seeds": list(seeds),
        "language": _measure_language(EXAMPLE_ROWS),
        "example": {name: compute_cosine(steps) for name, steps in examples.items()},
        "vision": [{"rows": size, **_summarise(found)} for size, found in by_rows.items()],
        "environment": describe_environment(),
    }
    return {**record, "caption": _write_caption(record)}, examples


def make_examples(rows: Rows, lam: float) -> dict[str, Steps]:
    """Return the changes of z for a few patches, and for as many tokens with the same ∇z."""
    x, grad_z = rows.x.double(), rows.grad_z.double()
    tokens = torch.eye(len(x), dtype=torch.float64)
    moment = x.mT @ x / len(x) + lam * torch.eye(x.shape[1], dtype=torch.float64)
    gradient = grad_z.mT @ x
    return {
        "language": Steps(grad_z, tokens @ (grad_z.mT @ tokens).mT),
        "vision": Steps(grad_z, x @ gradient.mT),
        "tract": Steps(grad_z, x @ torch.linalg.solve(moment, gradient.mT)),
    }


def draw_figure1(record: Mapping[str, Any], examples: Mapping[str, Steps]) -> Figure:
    """Draw three pairs of matrices above the cosine by number of patches."""
    titles = {
        "language": "Language: embedding layer",
        "vision": "Vision: plain gradient",
        "tract": f"Vision: TrAct, λ = {record['lam']:g}",
    }
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9.0, 6.6), layout="constrained")
        halves: Any = figure.subfigures(2, 1, height_ratios=(1.15, 1.0))
        top, bottom = halves
        for part, (name, title) in zip(top.subfigures(1, 3), titles.items(), strict=True):
            cosine = record["example"][name]
            part.suptitle(f"{title}\ncosine {cosine:.3f}", fontsize=11, fontweight="bold")
            _draw_steps(part, examples[name], "tokens" if name == "language" else "patches")
        _draw_cosines(bottom.subplots(), record)
    return figure


def _collect_rows(data: ImageData, fields: DataFields, seed: int) -> Rows:
    """Return the first layer's inputs and ∇z of a batch of images, at initialization."""
    seed_everything(seed, "weights")
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(data.train), generator=generator)[:IMAGES]
    place = Place(0, 1, torch.device("cpu"))
    standard = measure_standard(data, fields)
    (batch,) = EvaluationBatches(data.train.select(chosen), fields, standard, place).read()
    size = batch.images.shape[-1]
    network = build_model(NETWORK, len(data.classes), CHANNELS, size)
    (name,) = find_first_layers(network, torch.zeros(2, CHANNELS, size, size))
    seen: list[Tensor] = []

    def keep(layer: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        del layer
        output.retain_grad()
        seen[:] = [args[0], output]

    network.get_submodule(name).register_forward_hook(keep)
    F.cross_entropy(network(batch.images), batch.labels).backward()
    x, z = seen
    assert z.grad is not None
    return Rows(x.detach().flatten(0, -2), z.grad.flatten(0, -2))


def _sample(rows: Rows, size: int, seed: int) -> Rows:
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(rows.x), generator=generator)[:size]
    return Rows(rows.x[chosen], rows.grad_z[chosen])


def _compare(rows: Rows, lam: float) -> dict[str, float]:
    """Return the cosine of Δz and ∇z for plain, for TrAct, and for the best weight step."""
    layer = nn.Linear(rows.x.shape[1], rows.grad_z.shape[1], device="meta")
    found = diagnose(layer, rows.x, rows.grad_z, lam)
    best = diagnose(layer, rows.x, rows.grad_z, TINY)
    return {"plain": found.cosine_plain, "tract": found.cosine_tract, "best": best.cosine_tract}


def _measure_language(tokens: int) -> dict[str, float]:
    """Return the cosine of an embedding layer, whose inputs are one-hot rows."""
    generator = torch.Generator().manual_seed(0)
    grad_z = torch.randn(tokens, NETWORK.arguments["width"], generator=generator)
    layer = nn.Linear(tokens, grad_z.shape[1], device="meta")
    return {"tokens": tokens, "cosine": diagnose(layer, torch.eye(tokens), grad_z).cosine_plain}


def _summarise(found: Sequence[dict[str, float]]) -> dict[str, dict[str, float]]:
    columns = {name: [row[name] for row in found] for name in found[0]}
    return {
        name: {"mean": statistics.fmean(values), "low": min(values), "high": max(values)}
        for name, values in columns.items()
    }


def _write_caption(record: dict[str, Any]) -> str:
    few, many = record["vision"][0], record["vision"][-1]
    numbers = [few["rows"], few["plain"]["mean"], few["tract"]["mean"]]
    numbers += [many["rows"], many["plain"]["mean"], many["tract"]["mean"], many["best"]["mean"]]
    return (
        "Cosine between the gradient of z and the change of z that a weight step causes. Embedding "
        f"layer: {record['language']['cosine']:.3f}. First layer of a ViT "
        f"({record['inputs']} inputs, {record['outputs']} outputs) on {record['data']['name']}, "
        "{} patches: plain {:.3f}, TrAct {:.3f}; {} patches: plain {:.3f}, TrAct {:.3f}, where "
        "{:.3f} is the maximum for any weight step.".format(*numbers)
    )


def _draw_steps(figure: Any, steps: Steps, rows: str) -> None:
    """Draw the two matrices side by side, each with its own scale."""
    axes = figure.subplots(1, 2)
    for axis, step, label in zip(axes, steps, ("gradient ∇z", "change Δz"), strict=True):
        shown = step[:, :EXAMPLE_OUTPUTS]
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
        "best": ("maximum for any weight step", {"color": "0.55", "ls": ":"}),
        "tract": (f"TrAct, λ = {record['lam']:g}", {"color": BLUE, "ls": "-"}),
        "plain": ("plain gradient", {"color": "#333333", "ls": "--"}),
    }
    for name, (label, style) in styles.items():
        spread = [row[name] for row in record["vision"]]
        low, high = ([s[end] for s in spread] for end in ("low", "high"))
        axis.plot(rows, [s["mean"] for s in spread], marker="o", markersize=4, label=label, **style)
        axis.fill_between(rows, low, high, color=style["color"], alpha=0.15, linewidth=0)
    axis.axvline(record["inputs"], color="0.8", linewidth=1)
    start = (record["inputs"], 0.02)
    axis.annotate(f"{record['inputs']} inputs ", start, ha="right", color="0.45", fontsize=9)
    axis.set_xscale("log", base=2)
    axis.set_xticks(rows, [f"{size:,}" for size in rows])
    axis.minorticks_off()
    axis.set(
        xlabel=f"patches per step ({record['data']['name']}, ViT at initialization)",
        ylabel="cosine of Δz and ∇z",
        ylim=(0, 1.06),
    )
    axis.grid(alpha=0.3)
    axis.legend(frameon=False, fontsize=10, loc="upper right", bbox_to_anchor=(1.0, 0.94))
