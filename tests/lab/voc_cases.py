"""Small artificial VOC2007 data sets: plain squares on grey images."""

from pathlib import Path
from typing import Any

import torch

from trainact.lab.data.decoding import tensor_to_picture
from trainact.lab.recipes.recipe import Recipe, change_recipe

SMALL: dict[str, Any] = {
    "data.name": "voc2007",
    "data.image_size": 48,
    "data.batch_size": 2,
    "data.crop": "none",
    "data.mean": [0.485, 0.456, 0.406],
    "data.std": [0.229, 0.224, 0.225],
    "model.name": "lab:faster-rcnn-vgg16",
    "model.arguments": {
        "weights": "none",
        "width": 8,
        "hidden": 32,
        "longest": 80,
        "anchors": [16, 32],
        "anchors_per_image": 32,
        "regions_per_image": 16,
        "train_proposals": [40, 20],
        "test_proposals": [40, 20],
    },
    "optimizer.lr": 0.01,
    "schedule.epochs": 2,
    "schedule.name": "constant",
    "run.checkpoint_seconds": 1e-6,
    "run.device": "cpu",
}


def make_small(folder: Path, **changes: Any) -> Recipe:
    """Return a recipe that trains a narrow detector in a second; ``run__seed=1`` sets it."""
    given = {key.replace("__", "."): value for key, value in changes.items()}
    return change_recipe(Recipe(), SMALL | {"data.folder": str(folder)} | given)


def write_object(name: str, box: tuple[float, ...], difficult: bool = False) -> str:
    sides = "".join(
        f"<{side}>{value}</{side}>"
        for side, value in zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True)
    )
    return (
        f"<object><name>{name}</name><difficult>{int(difficult)}</difficult>"
        f"<bndbox>{sides}</bndbox></object>"
    )


def write_annotation(*objects: str, width: int = 60, height: int = 48) -> str:
    size = f"<size><width>{width}</width><height>{height}</height><depth>3</depth></size>"
    return f"<annotation>{size}{''.join(objects)}</annotation>"


def make_voc(folder: Path, train: int = 6, test: int = 3) -> Path:
    """Write a set with a bright square (a cat) or a dark one (a dog) in each image."""
    root = folder / "VOCdevkit" / "VOC2007"
    for part in ("ImageSets/Main", "Annotations", "JPEGImages"):
        (root / part).mkdir(parents=True)
    names = [f"{number:06d}" for number in range(train + test)]
    for number, name in enumerate(names):
        left, top = 4 + 5 * (number % 5), 2 + 3 * (number % 4)
        pixels = torch.full((3, 48, 60), 120, dtype=torch.uint8)
        pixels[:, top : top + 30, left : left + 30] = 250 if number % 2 else 5
        tensor_to_picture(pixels).save(root / "JPEGImages" / f"{name}.jpg", quality=95)
        box = (left + 1, top + 1, left + 30, top + 30)
        (root / "Annotations" / f"{name}.xml").write_text(
            write_annotation(write_object("cat" if number % 2 else "dog", box))
        )
    lists = root / "ImageSets" / "Main"
    (lists / "trainval.txt").write_text("\n".join(names[:train]) + "\n")
    (lists / "test.txt").write_text("\n".join(names[train:]) + "\n")
    return root
