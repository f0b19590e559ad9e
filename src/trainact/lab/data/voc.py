"""PASCAL VOC2007 as it comes: ``VOCdevkit/VOC2007`` with images, XML and lists."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import torch

from trainact.lab.data.annotation import CLASSES, read_annotation
from trainact.lab.data.images import DataError
from trainact.lab.data.objects import AnnotatedImage, DetectionData
from trainact.lab.randomness import make_generator
from trainact.lab.recipes.recipe import DataFields

__all__ = ["load_voc"]

NAME = "voc2007"
PLACES = ("VOCdevkit/VOC2007", "VOC2007", ".")
"""Where the set may lie below the folder that is named."""

Item = TypeVar("Item")


def load_voc(fields: DataFields) -> DetectionData:
    """Return VOC2007 trainval to train on and test to test on, or the parts that ``fields`` name.

    Fewer images are the first of one shuffle, the same for every run; images that are held out
    stand before them and are never trained on.

    Raises:
        DataError: a file or an image is missing, damaged, or not what it should be.
    """
    root = _find_root(fields.folder)
    trainval, test = (_read_list(root, part) for part in ("trainval", "test"))
    both = sorted(set(trainval) & set(test))
    if both:
        raise DataError(
            f"{root} lists {len(both)} images both to train on and to test on ({both[0]} first)."
        )
    held_out, rest = _cut(_shuffle(trainval), fields.held_out, "data.held_out")
    chosen, _ = _cut(rest, fields.train_images or len(rest), "data.train_images")
    tested, _ = _cut(_shuffle(test), fields.test_images or len(test), "data.test_images")
    if fields.evaluate_on == "held-out":
        tested = held_out
    if not chosen:
        raise DataError(f"data.held_out is {fields.held_out}: nothing is left to train on.")
    train, evaluated = (
        tuple(_read_image(root, name) for name in sorted(part)) for part in (chosen, tested)
    )
    return DetectionData(NAME, train, evaluated, CLASSES, _compute_fingerprint(train, evaluated))


def _find_root(folder: str) -> Path:
    """Return the folder ``VOC2007``, given itself or one that it lies in."""
    if not folder:
        raise DataError(
            "data.folder is empty: give the folder that VOCdevkit/VOC2007 lies in, with the "
            "archives VOCtrainval_06-Nov-2007 and VOCtest_06-Nov-2007 unpacked there."
        )
    start = Path(folder).expanduser()
    for place in PLACES:
        if (start / place / "ImageSets" / "Main").is_dir():
            return start / place
    raise DataError(f"{start} holds no VOCdevkit/VOC2007/ImageSets/Main.")


def _read_list(root: Path, part: str) -> list[str]:
    file = root / "ImageSets" / "Main" / f"{part}.txt"
    try:
        names = file.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"the list {file} cannot be read: {error}. Trainval and test come in two archives."
        ) from error
    if not names:
        raise DataError(f"the list {file} names no image.")
    for name in names:
        if name in (".", "..") or "/" in name or "\\" in name:
            raise DataError(f"the list {file} names {name!r}, which is not the name of an image.")
    if len(set(names)) < len(names):
        raise DataError(f"the list {file} names an image twice.")
    return names


def _shuffle(names: Sequence[Item]) -> list[Item]:
    order = torch.randperm(len(names), generator=make_generator("voc2007"))
    return [names[i] for i in order.tolist()]


def _cut(names: Sequence[Item], count: int, field: str) -> tuple[list[Item], list[Item]]:
    if count > len(names):
        raise DataError(
            f"{field} is {count}, but voc2007 has {len(names)} such images here. Ask for at most "
            f"{len(names)}, or 0 for all."
        )
    return list(names[:count]), list(names[count:])


def _read_image(root: Path, name: str) -> AnnotatedImage:
    file = root / "JPEGImages" / f"{name}.jpg"
    if not file.is_file():
        raise DataError(f"the image {file} is missing.")
    annotation = read_annotation(root / "Annotations" / f"{name}.xml")
    return AnnotatedImage(name, file, *annotation)


def _compute_fingerprint(*parts: Sequence[AnnotatedImage]) -> str:
    total = hashlib.sha256()
    for images in parts:
        total.update(f"{len(images)} images\n".encode())
        for image in images:
            shape = f"{image.name} {image.file.stat().st_size} {image.width} {image.height}\n"
            total.update(shape.encode())
            objects = image.objects
            for values in (objects.boxes, objects.labels, objects.difficult):
                total.update(values.contiguous().numpy().tobytes())
    return total.hexdigest()
