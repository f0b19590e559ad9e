"""``trainact figure1``: how far the step of z is from the wanted one, measured and drawn.

The paper's Figure 1 with numbers. A language model's embedding layer moves its outputs z exactly
along their gradient; the first layer of a vision model does not; with TrAct it nearly does, as far
as a linear map of pixels can.
"""

import argparse
import dataclasses
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainact import diagnose, find_first_layers
from trainact.errors import TrActValueError
from trainact.lab.commands.request import parse_settings
from trainact.lab.data import ImageData, ImageTensor, load_data
from trainact.lab.data.cache import cache_file
from trainact.lab.environment import describe_environment
from trainact.lab.files import write_atomically
from trainact.lab.models.build import build_model
from trainact.lab.randomness import seed_everything
from trainact.lab.recipes.recipe import DataFields, ModelFields, Recipe, change_recipe
from trainact.lab.report.curves import export_picture
from trainact.lab.report.figure1_picture import Steps, compute_cosine, draw_figure1
from trainact.lab.schema import parse_whole_numbers
from trainact.lab.training.batches import EvaluationBatches, Place, measure_standard
from trainact.options import DEFAULT_LAM

__all__ = ["Rows", "add_arguments", "make_examples", "measure_figure1", "run"]

FORMAT = 1
NETWORK = ModelFields("lab:vit-cifar", {"width": 64, "depth": 4, "heads": 4})
"""Patches of 4 x 4 pixels, so n = 48 inputs, and m = 64 outputs."""
IMAGES = 128
CHANNELS = 3
ROWS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
SHOWN = 12
"""Tokens, or patches, in the small example that is drawn as matrices."""
TINY = 1e-9
"""λ that leaves the least-squares step: the nearest that any change of the weights can give."""


class Rows(NamedTuple):
    """Inputs of the first layer and the gradient of its outputs, as the network had them."""

    x: Tensor  # [b, n]
    grad_z: Tensor  # [b, m]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    add = parser.add_argument
    add("--out", type=Path, default=Path("figure1"), help="folder (default %(default)s)")
    add("--data", help="as for trainact compare; without it cifar10 if it is cached, else photos")
    add("--lam", type=float, default=DEFAULT_LAM, metavar="λ", help="(default %(default)s)")
    add("--seeds", default="0-4", help="of the network and of the patches (default 0-4)")
    add("settings", nargs="*", metavar="data.FIELD=VALUE", help="any other field of the data")


def run(arguments: argparse.Namespace) -> int:
    """Measure, draw, and write figure1.png and figure1.json."""
    name = arguments.data or ("cifar10" if cache_file("cifar10").exists() else "photos")
    given = {"data.name": name, **parse_settings(arguments.settings)}
    fields = change_recipe(Recipe(), given).data
    seeds = parse_whole_numbers(arguments.seeds, "--seeds")
    record, examples = measure_figure1(fields, arguments.lam, seeds)
    text = json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    write_atomically(arguments.out / "figure1.json", text.encode())
    picture = export_picture(draw_figure1(record, examples), "png")
    write_atomically(arguments.out / "figure1.png", picture)
    print(record["caption"])
    print("\n".join(f"wrote {arguments.out / f'figure1.{kind}'}" for kind in ("png", "json")))
    return 0


def measure_figure1(
    fields: DataFields, lam: float, seeds: Sequence[int]
) -> tuple[dict[str, Any], dict[str, Steps]]:
    """Return the record of all numbers, and the small examples that are drawn as matrices.

    Raises:
        TrActValueError: the images are not in memory, or not what they should be.
    """
    data = load_data(fields)
    if not isinstance(data.train, ImageTensor) or data.train.images.shape[1] != CHANNELS:
        raise TrActValueError(f"{data.name} has no colour images in memory; try another --data.")
    by_rows: dict[int, list[dict[str, float]]] = {}
    examples: dict[str, Steps] = {}
    for seed in seeds:
        rows = _collect_rows(data, fields, seed)
        for count in [count for count in ROWS if count <= len(rows.x)]:
            by_rows.setdefault(count, []).append(_compare(_sample(rows, count, seed), lam))
        if not examples:
            examples = make_examples(_sample(rows, SHOWN, seed), lam)
    language = _measure_language(SHOWN)
    vision = [{"rows": count, **_summarise(found)} for count, found in by_rows.items()]
    record = {
        "format": FORMAT,
        "kind": "figure1",
        "data": {"name": data.name, "fingerprint": data.fingerprint, "images": IMAGES},
        "network": dataclasses.asdict(NETWORK),
        "inputs": rows.x.shape[1],
        "outputs": rows.grad_z.shape[1],
        "lam": lam,
        "seeds": list(seeds),
        "language": language,
        "example": {name: compute_cosine(steps) for name, steps in examples.items()},
        "vision": vision,
        "environment": describe_environment(),
    }
    return {**record, "caption": _write_caption(record)}, examples


def _collect_rows(data: ImageData, fields: DataFields, seed: int) -> Rows:
    """Return the first layer's inputs and ∇z of a batch of images, at the start of training."""
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


def _sample(rows: Rows, count: int, seed: int) -> Rows:
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(rows.x), generator=generator)[:count]
    return Rows(rows.x[chosen], rows.grad_z[chosen])


def _compare(rows: Rows, lam: float) -> dict[str, float]:
    """Return the cosine to the wanted step: plain, TrAct, and the best that weights can give."""
    layer = nn.Linear(rows.x.shape[1], rows.grad_z.shape[1], device="meta")
    found = diagnose(layer, rows.x, rows.grad_z, lam)
    best = diagnose(layer, rows.x, rows.grad_z, TINY)
    return {"plain": found.cosine_plain, "tract": found.cosine_tract, "best": best.cosine_tract}


def _measure_language(tokens: int) -> dict[str, float]:
    """Return the cosine of an embedding layer: each row of its input names one token."""
    generator = torch.Generator().manual_seed(0)
    grad_z = torch.randn(tokens, NETWORK.arguments["width"], generator=generator)
    layer = nn.Linear(tokens, grad_z.shape[1], device="meta")
    return {"tokens": tokens, "cosine": diagnose(layer, torch.eye(tokens), grad_z).cosine_plain}


def make_examples(rows: Rows, lam: float) -> dict[str, Steps]:
    """Return the steps of z of a few patches, and of as many tokens with the same gradients."""
    x, grad_z = rows.x.double(), rows.grad_z.double()
    tokens = torch.eye(len(x), dtype=torch.float64)
    moment = x.mT @ x / len(x) + lam * torch.eye(x.shape[1], dtype=torch.float64)
    gradient = grad_z.mT @ x
    return {
        "language": Steps(grad_z, tokens @ (grad_z.mT @ tokens).mT),
        "vision": Steps(grad_z, x @ gradient.mT),
        "tract": Steps(grad_z, x @ torch.linalg.solve(moment, gradient.mT)),
    }


def _summarise(found: Sequence[dict[str, float]]) -> dict[str, dict[str, float]]:
    return {
        name: {
            "mean": statistics.fmean(row[name] for row in found),
            "low": min(row[name] for row in found),
            "high": max(row[name] for row in found),
        }
        for name in found[0]
    }


def _write_caption(record: dict[str, Any]) -> str:
    few, many = record["vision"][0], record["vision"][-1]
    shown = [few["rows"], few["plain"]["mean"], few["tract"]["mean"]]
    shown += [many["rows"], many["plain"]["mean"], many["tract"]["mean"], many["best"]["mean"]]
    return (
        "Cosine between the step of z that its gradient asks for and the one that a step of the "
        f"weights gives. Embedding layer: {record['language']['cosine']:.3f}. First layer of a ViT "
        f"({record['inputs']} inputs, {record['outputs']} outputs) on {record['data']['name']}, "
        "{} patches: plain {:.3f}, TrAct {:.3f}; {} patches: plain {:.3f}, TrAct {:.3f}, where no "
        "change of the weights gives more than {:.3f}.".format(*shown)
    )
