"""``trainact inspect MODEL``: show the first layers of a model and TrAct's estimated cost."""

import argparse
import dataclasses
import json
from typing import TYPE_CHECKING

from trainact.errors import TrActValueError
from trainact.lab.cost.defaults import BATCH

if TYPE_CHECKING:
    from trainact.lab.cost.multiply_adds import ModelCost
    from trainact.lab.models.zoos import NamedModel

__all__ = ["add_arguments", "run"]

CODE = "trainact.apply_tract(model)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = parser.add_argument
    add("model", metavar="MODEL", help="timm:NAME, torchvision:NAME, hf:NAME (a model type such as "
        "vit, or a model class), lab:NAME, or a name in timm or torchvision; no weights are loaded"
    )  # fmt: skip
    add("--image-size", type=int, metavar="PIXELS",
        help="height and width of the images (default: the model's)")  # fmt: skip
    add("--batch", type=int, default=BATCH, metavar="N",
        help="images in a training step (default: %(default)s)")  # fmt: skip
    add("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Build the model on the meta device, find its first layers and print them with the cost."""
    for option in ("image_size", "batch"):
        value = getattr(arguments, option)
        if value is not None and value < 1:
            raise TrActValueError(
                f"--{option.replace('_', '-')} takes a positive number; got {value}."
            )

    from trainact.lab.cost.multiply_adds import estimate_cost
    from trainact.lab.models.zoos import build_meta_model

    named = build_meta_model(arguments.model, arguments.image_size)
    cost = estimate_cost(named.model, batch=arguments.batch)
    print(_format_json(named, cost) if arguments.json else _format_text(named, cost))
    return 0


def _format_text(named: "NamedModel", cost: "ModelCost") -> str:
    lines = [f"{named.source}:{named.name}"]
    for layer in cost.layers:
        lines += [
            f"first layer      {layer.name}",
            f"                 {layer.layer}",
            f"inputs per row   n = {layer.num_inputs}",
            f"rows per image   {layer.rows_per_image}",
        ]
    bound = "" if cost.complete else " (upper bound: the meta device cannot run the whole model)"
    lines += [
        f"estimated cost   {cost} of a step's multiply-adds at batch {cost.batch}{bound}",
        f"code             {CODE}",
    ]
    return "\n".join(lines)


def _format_json(named: "NamedModel", cost: "ModelCost") -> str:
    shown = {
        "model": f"{named.source}:{named.name}",
        **dataclasses.asdict(cost),
        "ratio": cost.ratio,
        "to_write": CODE,
    }
    return json.dumps(shown, indent=2)
