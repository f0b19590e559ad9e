"""Crops of the photographs in scikit-image's wheel, in the layouts of the real image samples.

They stand in where ``TRAINACT_SAMPLES`` is not set, so that a newcomer tests on natural images too.
"""

import importlib.resources
import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import PIL.Image

PHOTOS = (
    *("astronaut.png", "chelsea.png", "coffee.png", "hubble_deep_field.jpg"),
    *("ihc.png", "motorcycle_left.png", "retina.jpg", "rocket.jpg"),
)
FOLDERS = {"imagenette": "n{:08}", "flowers102": "{}", "stanford_cars": "Car No. {}"}
"""Data sets of folders, and the names of their classes."""
CLASSES = 10
CIFAR_IMAGES = 2000


def write_samples(root: Path) -> Path:
    """Write ``cifar10/test.parquet`` and small folders of images below ``root``."""
    import pyarrow
    import pyarrow.parquet

    (root / "cifar10").mkdir(parents=True)
    rows = [
        {"img": {"bytes": encode(crop, "png"), "path": None}, "label": i % CLASSES}
        for i, crop in enumerate(draw_crops(CIFAR_IMAGES, 32))
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), root / "cifar10" / "test.parquet")
    for name, pattern in FOLDERS.items():
        for i, crop in enumerate(draw_crops(24 * CLASSES, 160)):
            part = "train" if i < 16 * CLASSES else "val"
            folder = root / name / part / pattern.format(i % CLASSES)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{i:04}.jpg").write_bytes(encode(crop, "jpeg"))
    return root


def draw_crops(count: int, size: int) -> "Iterator[PIL.Image.Image]":
    """Yield random squares of the photographs, resized to ``size`` pixels a side."""
    import numpy as np
    import PIL.Image

    source = importlib.resources.files("skimage") / "data"
    photos = []
    for name in PHOTOS:
        with importlib.resources.as_file(source / name) as path:
            photos.append(PIL.Image.open(path).convert("RGB"))
    random = np.random.default_rng(2410)
    for i in range(count):
        photo = photos[i % len(photos)]
        side = int(random.integers(64, min(photo.size)))
        left, top = (int(random.integers(0, length - side + 1)) for length in photo.size)
        yield photo.resize((size, size), box=(left, top, left + side, top + side))


def encode(picture: "PIL.Image.Image", kind: str) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind)
    return file.getvalue()
