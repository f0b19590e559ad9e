"""What runs need and this machine lacks: data sets and files of weights, without reading them."""

import re
from collections.abc import Iterable
from pathlib import Path

from trainact.errors import TrActError
from trainact.lab.data.cache import cache_file
from trainact.lab.data.names import COLLECTIONS, DETECTION
from trainact.lab.data.shards import find_shards
from trainact.lab.data.voc import find_root
from trainact.lab.models.detection.faster_rcnn import DETECTOR
from trainact.lab.models.pretrained import find_weights
from trainact.lab.recipes.recipe import DataFields, Recipe

__all__ = ["list_missing"]

DOWNLOADED = ("cifar10", "cifar100")
"""Data sets that are downloaded if no folder is given."""
HUB_ID = re.compile(r"(hf:)?[\w.-]+/[\w.-]+")
WHERE = "docs/data.md says where it comes from, and 'trainact data {} --data PATH' checks it"


def list_missing(recipes: Iterable[Recipe]) -> list[str]:
    """Return a sentence for each data set or file of weights that is not there, each once.

    A data set that is there may still be incomplete: ``trainact data`` reads it.
    """
    found: list[str] = []
    for recipe in recipes:
        found += _find_data(recipe.data)
        found += _find_weights(recipe)
    return list(dict.fromkeys(found))


def _find_data(fields: DataFields) -> list[str]:
    name, place = fields.name, fields.folder
    where = WHERE.format(name)
    if name == "photos":
        return []
    if name in DOWNLOADED and not place:
        file = cache_file(name)
        text = f"the data set {name} is not in the cache ({file}) and will be downloaded; {where}"
        return [] if file.is_file() else [text]
    if name in (*COLLECTIONS, DETECTION) and not place:
        return [f"the data set {name}: give --data PATH; {where}"]
    target = place or name
    try:
        if name == DETECTION:
            find_root(place)
        elif not (Path(target).expanduser().exists() or find_shards(target)):
            unknown = f"the data set {name}: there is no folder {target}; {where}"
            unknown = unknown if place else f"there is no data set {target}"
            return [] if HUB_ID.fullmatch(target) else [unknown]
    except TrActError as error:
        return [f"the data set {name}: {error}"]
    return []


def _find_weights(recipe: Recipe) -> list[str]:
    fields = recipe.model
    if fields.name == DETECTOR:
        file = str(fields.arguments.get("weights", ""))
        if file == "none" or (file and Path(file).expanduser().is_file()):
            return []
        what = f"there is no file {file}" if file else "give --model.arguments.weights FILE"
        return [f"the weights of VGG-16: {what}; docs/data.md says where they come from"]
    if not fields.weights and (not fields.pretraining or recipe.run.smoke):
        return []
    try:
        find_weights(fields, recipe.run.seed)
    except TrActError as error:
        return [f"initial weights: {error}"]
    return []
