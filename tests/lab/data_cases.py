"""Small data sets in the layouts of the real ones."""

import io
import json
import pickle
import struct
import tarfile
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import torch
from PIL import Image

from trainact.lab.data import ImageTensor


def make_images(count: int, seed: int = 0, size: int = 32, classes: int = 10) -> ImageTensor:
    """Random images of classes that take turns."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8, generator=generator)
    return ImageTensor(images, torch.arange(count) % classes)


def to_pixels(images: torch.Tensor) -> np.ndarray:
    """uint8 [N, 3, H, W] as an array [N, H, W, 3]."""
    return images.permute(0, 2, 3, 1).contiguous().numpy()


def encode(picture: Image.Image, kind: str = "png", **options) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def write_package(folder: Path, train: ImageTensor, test: ImageTensor) -> Path:
    """The layout of the npm package: five pictures and one, an image a row; labels in JSON."""
    folder.mkdir(parents=True)
    rows = {f"data_batch_{i + 1}": part for i, part in enumerate(train.images.chunk(5))}
    for name, images in {**rows, "test_batch": test.images}.items():
        Image.fromarray(to_pixels(images).reshape(-1, 1024, 3)).save(folder / f"{name}.png")
    (folder / "train_lables.json").write_text(json.dumps(train.labels.tolist()))
    (folder / "test_lables.json").write_text(json.dumps(test.labels.tolist()))
    return folder


def pack(folder: Path, archive: Path) -> Path:
    with tarfile.open(archive, "w:gz") as opened:
        opened.add(folder, arcname="package")
    return archive


def write_batches(folder: Path, name: str, train: ImageTensor, test: ImageTensor) -> Path:
    """The layout of the authors' archives, pickled as Python 2 did it."""
    folder.mkdir(parents=True)
    ten = name == "cifar10"
    parts = {"train": train, "test": test}
    if ten:
        parts = {
            f"data_batch_{i + 1}": train.select(part)
            for i, part in enumerate(torch.arange(len(train)).chunk(5))
        }
        parts["test_batch"] = test
    for file, part in parts.items():
        (folder / file).write_bytes(pickle_as_python_2(part, "labels" if ten else "fine_labels"))
    return folder


def pickle_as_python_2(part: ImageTensor, key: str) -> bytes:
    """A dictionary of ``data`` and labels in protocol 2, with the byte strings of Python 2."""

    def text(value: bytes) -> bytes:
        return b"T" + struct.pack("<i", len(value)) + value

    def number(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    minus = number(-1)
    dtype = (
        b"cnumpy\ndtype\n" + text(b"u1") + number(0) + number(1) + b"\x87R"
        b"(" + number(3) + text(b"|") + b"NNN" + minus + minus + number(0) + b"tb"
    )
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n"
        + number(0)
        + b"\x85"
        + text(b"b")
        + b"\x87R("
        + number(1)
        + number(len(part))
        + number(3072)
        + b"\x86"
        + dtype
        + b"\x89"
        + text(part.images.numpy().tobytes())
        + b"tb"
    )
    labels = b"](" + b"".join(number(label) for label in part.labels.tolist()) + b"e"
    content = b"\x80\x02}(" + text(b"data") + array + text(key.encode()) + labels + b"u."
    assert set(pickle.loads(content, encoding="latin1")) == {"data", key}
    return content


def make_table(
    images: ImageTensor, label: str = "label", names: list[str] | None = None
) -> pyarrow.Table:
    rows = [
        {"bytes": encode(Image.fromarray(pixels)), "path": f"{at}.png"}
        for at, pixels in enumerate(to_pixels(images.images))
    ]
    table = pyarrow.table({"img": rows, label: images.labels.tolist()})
    if names is not None:
        feature = {"names": names, "_type": "ClassLabel"}
        info = {"info": {"features": {"img": {"_type": "Image"}, label: feature}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(info)})
    return table


def write_parquet(folder: Path, tables: dict[str, pyarrow.Table]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        pyarrow.parquet.write_table(table, folder / f"{name}.parquet")
    return folder


def write_folder(root: Path, counts: dict[str, int], size: int = 8, kind: str = "png") -> Path:
    """Images of their own colours in ``root/KEY`` for each key, so many each."""
    for at, (name, count) in enumerate(counts.items()):
        (root / name).mkdir(parents=True)
        for number in range(count):
            colour = (at * 20 % 256, number % 256, 255 - number % 256)
            Image.new("RGB", (size, size), colour).save(root / name / f"{number:03}.{kind}")
    return root


def write_npz(file: Path, train: ImageTensor, test: ImageTensor) -> Path:
    np.savez(
        file,
        train_images=to_pixels(train.images),
        train_labels=train.labels.numpy(),
        test_images=to_pixels(test.images),
        test_labels=test.labels.numpy(),
    )
    return file
