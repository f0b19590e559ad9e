"""Annotations of PASCAL VOC: one XML file an image."""

import math
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import NamedTuple

import torch

from trainact.lab.data.images import DataError
from trainact.lab.data.objects import Objects
from trainact.lab.schema import name_nearest

__all__ = ["CLASSES", "Annotation", "parse_annotation", "read_annotation"]

CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
    "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train",
    "tvmonitor",
)  # fmt: skip
"""The twenty classes of VOC2007, in the order of their labels."""

SIDES = ("xmin", "ymin", "xmax", "ymax")


class Annotation(NamedTuple):
    """Size of an image in pixels, and its objects."""

    width: int
    height: int
    objects: Objects


def read_annotation(file: Path) -> Annotation:
    """Return the annotation of a file.

    Raises:
        DataError: there is no such file, or it is not what it should be.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise DataError(f"the annotation {file} is missing.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"the annotation {file} cannot be read: {error}.") from error
    return parse_annotation(text, str(file))


def parse_annotation(text: str, name: str) -> Annotation:
    """Return the annotation of an XML text.

    VOC counts pixels from 1 and includes both ends: a box that covers the whole of an image 500
    wide goes from 1 to 500. Here it goes from 0 to 500. Then the overlap of two boxes is that of
    VOC's own evaluation. What sticks out of the image is cut off.

    Args:
        text: the XML; without a document type, so that it cannot define entities.
        name: what an error calls it.

    Raises:
        DataError: it is no annotation, or names an unknown class, or a box that is empty or lies
            outside the image.
    """
    if "<!DOCTYPE" in text:
        raise DataError(f"{name} has a document type, which no annotation of VOC has.")
    try:
        root = ET.fromstring(text)
    except ET.ParseError as error:
        raise DataError(f"{name} is not XML ({error}). It may be cut short.") from error
    width, height = (int(_read_number(root, f"size/{side}", name)) for side in ("width", "height"))
    if width < 1 or height < 1:
        raise DataError(f"{name}: the image's size is {width} x {height} pixels.")
    boxes, labels, difficult = [], [], []
    for item in root.iterfind("object"):
        label = (item.findtext("name") or "").strip()
        if label not in CLASSES:
            raise DataError(f"{name}: {name_nearest(label, CLASSES, 'class')}")
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
            f"{name}: a {label} lies outside the image of {width} x {height} pixels ({shown})."
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
