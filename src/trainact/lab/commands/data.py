"""``trainact data``: check a data set, or the weights of VGG-16, before GPU hours are spent."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from trainact.errors import TrActValueError
from trainact.lab.data.names import DETECTION, PLACED
from trainact.lab.data.published import find_published
from trainact.lab.recipes.experiment import find_experiment, list_experiments
from trainact.lab.report.grid import Grid, render_text
from trainact.lab.text import describe_unknown

if TYPE_CHECKING:
    from trainact.lab.data.checks import DataCheck

__all__ = ["add_arguments", "list_sets", "run"]

WEIGHTS = "vgg16"
"""The name of the detector's initial weights."""
NAMES = (*PLACED, DETECTION)
DECODED = 100
SHOWN = 5
"""Damaged images that are printed."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = parser.add_argument
    add("name", nargs="?", help=f"{', '.join(NAMES)}; {WEIGHTS}, the detector's initial weights; "
        "or a recipe, for its data set (default: list them)")  # fmt: skip
    add("--data", default="", metavar="PATH", help="where it is; CIFAR is downloaded without it")
    add(
        "--images",
        type=int,
        default=DECODED,
        metavar="N",
        help="images to decode of the training and of the test images (default: %(default)s)",
    )
    add("--all-images", action="store_true", help="decode every image")  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Print what was found; return 1 if it is not as published."""
    if arguments.name is None:
        print(render_text(list_sets()))
        print("Check one with 'trainact data NAME --data PATH'; docs/data.md says how to get them.")
        return 0
    name = arguments.name
    if name in list_experiments():
        name = find_experiment(name).recipe.data.name
    if name == WEIGHTS:
        return _check_weights(arguments.data)
    if name not in NAMES:
        raise TrActValueError(describe_unknown(name, (*NAMES, WEIGHTS), "data set"))
    if arguments.images < 0:
        raise TrActValueError(f"--images takes a number from 0; got {arguments.images}.")

    from trainact.lab.data.checks import check_data_set

    images = None if arguments.all_images else arguments.images
    check = check_data_set(name, arguments.data, images, _print_note)
    _print(check, arguments.data)
    return 0 if check.is_right else 1


def _print_note(text: str) -> None:
    print(text, file=sys.stderr)


def list_sets() -> Grid:
    """Return the published data sets with their numbers and the recipes that use them."""
    used: dict[str, int] = {}
    for name in list_experiments():
        data = find_experiment(name).recipe.data.name
        used[data] = used.get(data, 0) + 1
    rows = []
    for name in NAMES:
        counts = find_published(name)
        assert counts is not None
        numbers = (counts.train, counts.test, counts.classes, used.get(name, 0))
        rows.append((name, *(f"{number:,}" for number in numbers)))
    head = ("data set", "training images", "test images", "classes", "recipes")
    return Grid("Data sets of the recipes, as published", head, tuple(rows))


def _print(check: "DataCheck", place: str) -> None:
    """Print the numbers beside the published ones, and the damaged images."""
    published = check.published
    numbers = (
        ("training images", check.train.images, published.train),
        ("test images", check.test.images, published.test),
        ("classes", check.classes, published.classes),
    )
    rows = tuple(
        (what, f"{here:,}", f"{there:,}", "" if here == there else "differs")
        for what, here, there in numbers
    )
    where = f" in {place}" if place else ""
    print(render_text(Grid(f"{check.name}{where}", ("", "here", "published", ""), rows)))
    unit = "objects in an image" if check.name == DETECTION else "images of a class"
    for part in (check.train, check.test):
        least, most = part.per_class
        print(f"{part.name}: {least:,} to {most:,} {unit}; {part.decoded:,} images decoded, "
              f"{len(part.damaged)} damaged")  # fmt: skip
    damaged = [*check.train.damaged, *check.test.damaged]
    for text in damaged[:SHOWN]:
        print(f"damaged: {text}")
    if len(damaged) > SHOWN:
        print(f"and {len(damaged) - SHOWN} more damaged images")
    if check.is_right:
        print(f"{check.name} is as published.")
    elif check.difference:
        print(f"{check.name} is not as published: {check.difference}; see docs/data.md.")


def _check_weights(place: str) -> int:
    """Print whether a file holds the weights of torchvision's VGG-16."""
    from trainact.lab.models.detection.faster_rcnn import VGG_FILE, check_vgg_weights

    if not place:
        raise TrActValueError(f"give the file of the weights, --data {VGG_FILE}.")
    check = check_vgg_weights(Path(place).expanduser())
    print(f"{place} holds the 13 convolutions of torchvision's vgg16"
          + (" and its two hidden linear layers." if check.has_head else "."))  # fmt: skip
    if not check.has_head:
        print("It lacks the linear layers (classifier.0 and classifier.3): the detector's box head "
              "would start from random weights.")  # fmt: skip
    if not check.is_original:
        print(f"Its SHA-256 begins with {check.sha256[:8]}; it is not torchvision's own file "
              f"{VGG_FILE}, or was saved again.")  # fmt: skip
    return 0 if check.has_head else 1
