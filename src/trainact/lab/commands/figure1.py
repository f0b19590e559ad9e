"""``trainact figure1``: measure and draw the paper's Figure 1."""

import argparse
import dataclasses
import json
from pathlib import Path

from trainact.defaults import DEFAULT_LAM
from trainact.lab.commands.request import parse_settings
from trainact.lab.files import write_atomically
from trainact.lab.recipes.recipe import Recipe, change_recipe
from trainact.lab.schema import parse_whole_numbers

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    add = parser.add_argument
    add("--out", type=Path, default=Path("figure1"), metavar="FOLDER",
        help="output folder (default: %(default)s)")  # fmt: skip
    add("--data", metavar="NAME",
        help="as for 'trainact compare' (default: cifar10 if it is cached, else photos)"
    )  # fmt: skip
    add("--lam", type=float, default=DEFAULT_LAM, metavar="λ",
        help="λ of TrAct (default: %(default)s)")  # fmt: skip
    add("--seeds", default="0-4",
        help="seeds of the weights and of the patches (default: %(default)s)")  # fmt: skip
    add("settings", nargs="*", metavar="data.FIELD=VALUE", help="set other fields of the data")


def run(arguments: argparse.Namespace) -> int:
    """Measure, draw, and write figure1.png and figure1.json."""
    given = parse_settings(arguments.settings)
    fields = change_recipe(Recipe(), {"data.name": arguments.data or "photos", **given}).data
    seeds = parse_whole_numbers(arguments.seeds, "--seeds")

    from trainact.lab.data.cache import cache_file
    from trainact.lab.report.curves import export_picture
    from trainact.lab.report.figure1 import draw_figure1, measure_figure1

    if not arguments.data and "data.name" not in given and cache_file("cifar10").exists():
        fields = dataclasses.replace(fields, name="cifar10")
    record, examples = measure_figure1(fields, arguments.lam, seeds)
    text = json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    write_atomically(arguments.out / "figure1.json", text.encode())
    picture = export_picture(draw_figure1(record, examples), "png")
    write_atomically(arguments.out / "figure1.png", picture)
    print(record["caption"])
    print("\n".join(f"wrote {arguments.out / f'figure1.{kind}'}" for kind in ("png", "json")))
    return 0
