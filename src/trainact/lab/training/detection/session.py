"""Training and evaluating an object detector."""

from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor, nn

from trainact import find_first_layers
from trainact.errors import TrActValueError
from trainact.lab.data.images import Standard
from trainact.lab.data.objects import AnnotatedImage, DetectionData
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
from trainact.lab.training.detection.average_precision import Detections, average_over_classes
from trainact.lab.training.detection.scenes import DetectionBatches, DetectionShare, SceneDataset
from trainact.lab.training.session import Session
from trainact.lab.training.stream import make_loader

__all__ = ["DetectionSession", "evaluate_detector"]

TEST_BATCH = 4
"""Test images per forward pass."""
ONLY = {
    "model.name": DETECTOR,
    "model.weights": "",  # the detector's own are in model.arguments.weights
    "model.pretraining": "",
    "data.crop": "none",
    "data.crop_fill": "black",
    "data.interpolation": "bilinear",
    "data.test_crop": 0.0,
    "data.rotation": 0.0,
    "data.policy": "none",
    "data.values": "standard",
    "data.colour_jitter": 0.0,
    "data.mixup": 0.0,
    "data.cutmix": 0.0,
    "data.flip_order": "random",
    "data.test_views": False,
    "optimizer.loss": "cross-entropy",
    "optimizer.label_smoothing": 0.0,
    "optimizer.first_layer_rule": "none",  # MAC reads images, not scenes
    "optimizer.body": "same",  # which layers are classifiers is not known
    "run.compile": False,
    "run.precision": "no",  # half precision moves boxes and breaks box suppression
}
"""Fields that have only one valid value in detection."""


class DetectionSession(Session):
    """Trains and evaluates a detector; the loss is the mean over the images of a batch."""

    metric = MEAN_AVERAGE_PRECISION
    counts = ("seen",)

    def __init__(
        self, recipe: Recipe, data: DetectionData, accelerator: Accelerator, resumed: bool = False
    ) -> None:
        _check(recipe)
        super().__init__(recipe, data, accelerator, resumed)

    @staticmethod
    def build(recipe: Recipe, data: DetectionData) -> tuple[nn.Module, list[str]]:
        """Return the detector, with TrAct if it is enabled, and the names of its first layers."""
        _check(recipe)
        size, standard = recipe.data.image_size, Standard(recipe.data.mean, recipe.data.std)
        network = make_faster_rcnn(len(data.classes), size, standard, recipe.model.arguments)
        backbone = network.get_submodule("backbone")
        found = find_first_layers(backbone, torch.zeros(1, 3, size, size))
        names = list(recipe.tract.layers) or [f"backbone.{name}" for name in found]
        add_tract(network, names, recipe.tract)
        return network, names

    def load_weights(self) -> LoadedWeights | None:
        """Return the weights that the detector was built with."""
        return describe_vgg_weights(self.recipe.model.arguments["weights"])

    def open_batches(self) -> Batches:
        """Return the training batches."""
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
        """Return the sum of the four losses over the images; no image counts as correct."""
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


@torch.no_grad()
def evaluate_detector(
    network: nn.Module,
    images: tuple[AnnotatedImage, ...],
    num_classes: int,
    accelerator: Accelerator,
    workers: int,
) -> dict[str, float]:
    """Return the mean average precision by both rules, in [0, 1], and the number of images.

    Every rank evaluates its share of the images; all ranks receive all detections.
    """
    was_training = network.training
    network.eval()
    ranks, rank = accelerator.num_processes, accelerator.process_index
    mine = torch.arange(len(images)).tensor_split(ranks)[rank].tolist()
    positions = [(0, i, i) for i in mine]
    batches = [positions[i : i + TEST_BATCH] for i in range(0, len(positions), TEST_BATCH)]
    found: list[Detections] = []
    scenes = SceneDataset(images, train=False, flip=False, seed=0)
    with accelerator.autocast():
        for batch in make_loader(scenes, batches, workers):
            pixels = [image.to(accelerator.device).float() / 255 for image, _ in batch]
            for output in network(pixels):
                boxes, scores = (output[key].float().cpu() for key in ("boxes", "scores"))
                found.append(Detections(boxes, output["labels"].cpu() - 1, scores))
    network.train(was_training)
    if ranks > 1:
        found = gather_object(found)
    true = [image.objects for image in images]
    return {
        "map": average_over_classes(found, true, num_classes, "11-point"),
        "map_all": average_over_classes(found, true, num_classes, "all-point"),
        "test_seen": len(found),
    }


def _check(recipe: Recipe) -> None:
    for dotted, known in ONLY.items():
        table, key = dotted.split(".")
        value = getattr(getattr(recipe, table), key)
        if value != known:
            raise TrActValueError(f"{dotted} must be {known!r} in detection; got {value!r}.")
    if recipe.model.start != "default":
        raise TrActValueError(
            f"model.start='{recipe.model.start}' does not apply to detection: the backbone starts "
            "from trained weights; leave it at 'default'."
        )
    if recipe.data.image_size < 1:
        raise TrActValueError(
            f"data.image_size is {recipe.data.image_size}: set it to the pixels of the short side."
        )
    if len(recipe.data.mean) != 3:
        raise TrActValueError(
            "detection needs data.mean and data.std of three channels, those that the backbone was "
            f"trained with; got {recipe.data.mean}."
        )
