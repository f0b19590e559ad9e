"""Mean average precision of a detector on test images."""

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import nn

from trainact.lab.data.objects import AnnotatedImage
from trainact.lab.training.detection.average_precision import Detections, average_over_classes
from trainact.lab.training.detection.batches import SceneDataset, read_scenes

__all__ = ["evaluate_detector"]

IMAGES_AT_A_TIME = 4


@torch.no_grad()
def evaluate_detector(
    network: nn.Module,
    images: tuple[AnnotatedImage, ...],
    num_classes: int,
    accelerator: Accelerator,
    workers: int,
) -> dict[str, float]:
    """Return the mean average precision by both rules, in [0, 1], and how many images were seen.

    Every rank looks at its share of the images and learns what all have found.
    """
    was_training = network.training
    network.eval()
    ranks, rank = accelerator.num_processes, accelerator.process_index
    mine = torch.arange(len(images)).tensor_split(ranks)[rank].tolist()
    places = [(0, i, i) for i in mine]
    step = IMAGES_AT_A_TIME
    batches = [places[i : i + step] for i in range(0, len(places), step)]
    found: list[Detections] = []
    scenes = SceneDataset(images, train=False, flip=False, seed=0)
    with accelerator.autocast():
        for batch in read_scenes(scenes, batches, workers):
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
