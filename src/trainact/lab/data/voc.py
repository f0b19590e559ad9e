"""PASCAL VOC2007: ``VOCdevkit/VOC2007`` with images, XML annotations and lists of names."""

import hashlib
import math
import os
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from trainact.lab.data.images import DataError
from trainact.lab.data.objects import AnnotatedImage, DetectionData, Objects
from trainact.lab.data.published import compare_counts
from trainact.lab.randomness import make_generator
from trainact.lab.recipes.recipe import DataFields
from trainact.lab.text import describe_unknown

__all__ = ["CLASSES", "Annotation", "find_root", "load_voc", "parse_annotation"]

NAME = "voc2007"
PLACES = ("VOCdevkit/VOC2007", "VOC2007", ".")
"""Paths of the data set below ``data.folder``."""
CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
    "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train",
    "tvmonitor",
)  # fmt: skip
"""The twenty classes of VOC2007, in the order of their labels."""

LONGEST_SIDE = 65_535
"""Of an image in JPEG format, in pixels."""
SIDES = ("xmin", "ymin", "xmax", "ymax")


class Annotation(NamedTuple):
    """Size of an image in pixels and its objects."""

    width: int
    height: int
    objects: Objects


def load_voc(fields: DataFields) -> DetectionData:
    """Return VOC2007 with trainval as training and test as test images, selected by ``fields``.

    Subsets are the first images of one fixed shuffle. The held-out images come first in the shuffle
    of trainval and are never trained on.

    Raises:
        DataError: a file or an image is missing, damaged or not as expected.
    """
    root = find_root(fields.folder)
    trainval, test = (_read_list(root, part) for part in ("trainval", "test"))
    both = sorted(set(trainval) & set(test))
    if both:
        raise DataError(
            f"{root} lists {len(both)} images, such as {both[0]}, in both trainval and test."
        )
    held_out, rest = _cut(_shuffle(trainval), fields.held_out, "data.held_out")
    chosen, _ = _cut(rest, fields.train_images or len(rest), "data.train_images")
    tested, _ = _cut(_shuffle(test), fields.test_images or len(test), "data.test_images")
    if fields.evaluate_on == "held-out":
        tested = held_out
    if not chosen:
        raise DataError(f"data.held_out is {fields.held_out}: no image is left to train on.")
    train, evaluated = (
        tuple(_read_image(root, name) for name in sorted(part)) for part in (chosen, tested)
    )
    fingerprint = _compute_fingerprint(train, evaluated)
    difference = compare_counts(NAME, len(trainval), len(test), len(CLASSES))
    return DetectionData(NAME, train, evaluated, CLASSES, fingerprint, difference)


def find_root(folder: str) -> Path:
    """Return the folder ``VOC2007``, which is ``folder`` itself or in it."""
    if not folder:
        raise DataError(
            "data.folder is empty: give the folder that contains VOCdevkit/VOC2007, where the "
            "archives VOCtrainval_06-Nov-2007 and VOCtest_06-Nov-2007 were unpacked."
        )
    start = Path(folder).expanduser()
    for place in PLACES:
        if (start / place / "ImageSets" / "Main").is_dir():
            return start / place
    raise DataError(f"{start} contains no VOCdevkit/VOC2007/ImageSets/Main.")


def _read_list(root: Path, part: str) -> list[str]:
    file = root / "ImageSets" / "Main" / f"{part}.txt"
    try:
        names = file.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"the list {file} cannot be read: {error}. Trainval and test are two archives."
        ) from error
    if not names:
        raise DataError(f"the list {file} names no image.")
    for name in names:
        if name in (".", "..") or "/" in name or "\\" in name:
            raise DataError(f"the list {file} names {name!r}, which is not the name of an image.")
    if len(set(names)) < len(names):
        raise DataError(f"the list {file} names an image twice.")
    return names


def _shuffle(names: Sequence[str]) -> list[str]:
    order = torch.randperm(len(names), generator=make_generator("voc2007"))
    return [names[i] for i in order.tolist()]


def _cut(names: Sequence[str], count: int, field: str) -> tuple[list[str], list[str]]:
    if count > len(names):
        raise DataError(
            f"{field} is {count}, but voc2007 has {len(names)} such images here. Use at most "
            f"{len(names)}, or 0 for all."
        )
    return list(names[:count]), list(names[count:])


def _read_image(root: Path, name: str) -> AnnotatedImage:
    file = root / "JPEGImages" / f"{name}.jpg"
    if not os.path.isfile(file):  # also False for a name that is no name of a file
        raise DataError(f"the image {file} is missing.")
    annotation = _read_annotation(root / "Annotations" / f"{name}.xml")
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


def _read_annotation(file: Path) -> Annotation:
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise DataError(f"the annotation {file} is missing.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"the annotation {file} cannot be read: {error}.") from error
    return parse_annotation(text, str(file))


def parse_annotation(text: str, name: str) -> Annotation:
    """Return the annotation of an XML text.

    VOC counts pixels from 1 and includes both ends: a box over the full width of an image of 500
    pixels goes from 1 to 500. Here it goes from 0 to 500, so that the overlap of two boxes is that
    of VOC's own evaluation. Boxes are clipped to the image.

    Raises:
        DataError: it is not an annotation; it has an unknown class, or a box that is empty or
            outside the image; or it has a document type, which could define entities.
    """
    if "<!DOCTYPE" in text:
        raise DataError(f"{name} has a document type; annotations of VOC have none.")
    try:
        root = ET.fromstring(text)
    except ET.ParseError as error:
        raise DataError(f"{name} is not valid XML ({error}). It may be truncated.") from error
    width, height = (int(_read_number(root, f"size/{side}", name)) for side in ("width", "height"))
    if not (1 <= width <= LONGEST_SIDE and 1 <= height <= LONGEST_SIDE):
        raise DataError(f"{name}: the image's size is {width} x {height} pixels.")
    boxes, labels, difficult = [], [], []
    for item in root.iterfind("object"):
        label = (item.findtext("name") or "").strip()
        if label not in CLASSES:
            raise DataError(f"{name}: {describe_unknown(label, CLASSES, 'class')}")
        boxes.append(_read_box(item, label, width, height, name))
        labels.append(CLASSES.index(label))
        difficult.append((item.findtext("difficult") or "0").strip() == "1")
    objects = Objects(
        torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4),
        torch.tensor(labels, dtype=torch.int64),
        torch.tensor(difficult, dtype=torch.bool),
    )
    return Annotation(width, height, objects)


def _read_box(item: ET.Element, label: str, width: int, height: int, name: str) -> list[float]:
    given = [_read_number(item, f"bndbox/{side}", name) for side in SIDES]
    shown = ", ".join(f"{side} {value:g}" for side, value in zip(SIDES, given, strict=True))
    if given[0] > given[2] or given[1] > given[3]:
        raise DataError(f"{name}: a {label} has an empty box ({shown}).")
    left, top = max(given[0] - 1, 0.0), max(given[1] - 1, 0.0)
    right, bottom = min(given[2], float(width)), min(given[3], float(height))
    if left >= right or top >= bottom:
        raise DataError(
            f"{name}: a {label} is outside the image of {width} x {height} pixels ({shown})."
        )
    return [left, top, right, bottom]


def _read_number(element: ET.Element, path: str, name: str) -> float:
    text = element.findtext(path)
    if text is None:
        raise DataError(f"{name} lacks {path} in its {element.tag}.")
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise DataError(f"{name}: {path} is {text!r}, not a number.")
    return number
