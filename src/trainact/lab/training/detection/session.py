"""A run that trains a detector."""

from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from trainact import find_first_layers
from trainact.errors import TrActValueError
from trainact.lab.data.images import Standard
from trainact.lab.data.objects import DetectionData
from trainact.lab.metric import MEAN_AVERAGE_PRECISION
from trainact.lab.models.build import add_tract
from trainact.lab.models.detection.faster_rcnn import (
    DETECTOR,
    describe_vgg_weights,
    make_faster_rcnn,
)
from trainact.lab.models.pretrained import LoadedWeights
from trainact.lab.recipes.recipe import Recipe
from trainact.lab.training.batches import Batches
from trainact.lab.training.detection.batches import DetectionBatches, DetectionShare
from trainact.lab.training.detection.evaluate import evaluate_detector
from trainact.lab.training.session import Session

__all__ = ["DetectionSession"]

ONLY = {
    "model.name": DETECTOR,
    "data.crop": "none",
    "data.rotation": 0.0,
    "data.policy": "none",
    "data.values": "standard",
    "data.colour_jitter": 0.0,
    "data.mixup": 0.0,
    "data.cutmix": 0.0,
    "optimizer.loss": "cross-entropy",
    "optimizer.label_smoothing": 0.0,
    "run.compile": False,
    "run.precision": "no",  # boxes of half precision are off by pixels, and suppression by classes
}
"""Fields that detection knows one value of."""


class DetectionSession(Session):
    """A run between two checkpoints, of a detector; losses are means over the images of a batch."""

    metric = MEAN_AVERAGE_PRECISION
    counts = ("seen",)

    def __init__(self, recipe: Recipe, data: DetectionData, accelerator: Accelerator) -> None:
        _check(recipe)
        super().__init__(recipe, data, accelerator)

    @staticmethod
    def build(recipe: Recipe, data: DetectionData) -> tuple[nn.Module, list[str]]:
        """Return the detector and the names of its first layers, TrAct in them where it is on."""
        _check(recipe)
        size, standard = recipe.data.image_size, Standard(recipe.data.mean, recipe.data.std)
        network = make_faster_rcnn(len(data.classes), size, standard, recipe.model.arguments)
        backbone = network.get_submodule("backbone")
        found = find_first_layers(backbone, torch.zeros(1, 3, size, size))
        names = list(recipe.tract.layers) or [f"backbone.{name}" for name in found]
        add_tract(network, names, recipe.tract)
        return network, names

    def load_weights(self) -> LoadedWeights | None:
        """Return the file that the detector was built with."""
        return describe_vgg_weights(self.recipe.model.arguments["weights"])

    def open_batches(self) -> Batches:
        """Return the batches to train on."""
        recipe = self.recipe
        return DetectionBatches(self.data.train, recipe.data, recipe.run.seed, self.place)

    def split(self, share: Any) -> list[Any]:
        """Return the micro-batches of a share."""
        parts = torch.arange(len(share.images)).tensor_split(self.recipe.run.accumulation)
        return [
            DetectionShare(*([column[i] for i in part.tolist()] for column in share))
            for part in parts
        ]

    def measure(self, part: Any) -> tuple[Tensor, Tensor]:
        """Return the sum over images of the four losses; nothing is counted as correct."""
        losses = self.model(part.images, part.targets)
        whole = torch.stack(list(losses.values())).sum() * len(part.images)
        return whole, torch.zeros((), device=self.place.device)

    def evaluate(self) -> dict[str, float]:
        """Return the mean average precision on the test images."""
        more = (self.data.test, len(self.data.classes), self.accelerator, self.recipe.data.workers)
        tested = evaluate_detector(self.network, *more)
        if self.average is not None:
            tested["ema_map"] = evaluate_detector(self.average.module, *more)["map"]
        return tested


def _check(recipe: Recipe) -> None:
    for dotted, known in ONLY.items():
        table, key = dotted.split(".")
        value = getattr(getattr(recipe, table), key)
        if value != known:
            raise TrActValueError(f"{dotted} must be {known!r} in detection; got {value!r}.")
    if recipe.data.image_size < 1:
        raise TrActValueError("data.image_size is 0: set it to the pixels of the short side.")
    if len(recipe.data.mean) != 3:
        raise TrActValueError(
            "detection takes data.mean and data.std of three channels, those that the backbone was "
            f"trained with; got {recipe.data.mean}."
        )
