"""``trainact inspect MODEL``: where TrAct would go in a named model, and what it would cost."""

import argparse
import dataclasses
import json

from trainact.errors import TrActValueError
from trainact.lab.cost.multiply_adds import BATCH, Cost, estimate_cost
from trainact.lab.models.zoos import NamedModel, build_model

__all__ = ["add_arguments", "run"]

ONE_LINE = "trainact.apply_tract(model)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="timm:NAME, torchvision:NAME, hf:NAME (a model type such as vit, or a model class), "
        "or a bare name, looked up in timm and then in torchvision; no weights are loaded",
    )
    parser.add_argument("--image-size", type=int, metavar="PIXELS", help="side of the images")
    parser.add_argument(
        "--batch", type=int, default=BATCH, help=f"images in a step (default {BATCH})"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Build the model without values, look for its first layers and print what was found."""
    for option in ("image_size", "batch"):
        value = getattr(arguments, option)
        if value is not None and value < 1:
            raise TrActValueError(
                f"--{option.replace('_', '-')} takes a positive number; got {value}."
            )
    named = build_model(arguments.model, arguments.image_size)
    cost = estimate_cost(named.model, batch=arguments.batch)
    print(_as_json(named, cost) if arguments.json else _as_text(named, cost))
    return 0


def _as_text(named: NamedModel, cost: Cost) -> str:
    lines = [f"{named.source}:{named.name}"]
    for layer in cost.layers:
        lines += [
            f"first layer      {layer.name}",
            f"                 {layer.layer}",
            f"inputs per row   n = {layer.num_inputs}",
            f"rows per image   {layer.rows_per_image}",
        ]
    bound = "" if cost.complete else " (of the part of the forward that runs on shapes alone)"
    lines += [
        f"estimated cost   {cost} of a step's multiply-adds at batch {cost.batch}{bound}",
        f"to write         {ONE_LINE}",
    ]
    return "\n".join(lines)


def _as_json(named: NamedModel, cost: Cost) -> str:
    shown = {
        "model": f"{named.source}:{named.name}",
        **dataclasses.asdict(cost),
        "ratio": cost.ratio,
        "to_write": ONE_LINE,
    }
    return json.dumps(shown, indent=2)
