"""CIFAR-10 and CIFAR-100 as their authors give them: batches pickled in Python 2."""

from pathlib import Path

import torch

from trainact.lab.data.images import DataError, ImageTensor
from trainact.lab.data.pickles import read_pickle

__all__ = ["find_batches", "read_batches"]

FILES = {
    "cifar10": (tuple(f"data_batch_{number}" for number in range(1, 6)), ("test_batch",)),
    "cifar100": (("train",), ("test",)),
}
FOLDERS = {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python"}


def find_batches(name: str, folder: Path) -> Path | None:
    """Return the folder that holds the batches: this one, or that of the usual name in it."""
    for place in (folder, folder / FOLDERS[name]):
        if (place / FILES[name][0][0]).is_file():
            return place
    return None


def read_batches(name: str, folder: Path) -> tuple[ImageTensor, ImageTensor]:
    """Return the training and the test images, in their order.

    Raises:
        DataError: a batch is missing, damaged, or holds more than numbers.
    """
    train, test = ([_read_batch(folder / file) for file in files] for files in FILES[name])
    return _join(train), _join(test)


def _read_batch(file: Path) -> ImageTensor:
    """Return the images of a file whose ``data`` are rows of 3 x 32 x 32 values."""
    if not file.is_file():
        raise DataError(f"{file} is missing. Unpack the whole archive there.")
    content = read_pickle(file)
    labels = content.get("labels", content.get("fine_labels"))
    data = content.get("data")
    kind = getattr(data, "shape", None), str(getattr(data, "dtype", None))
    if labels is None or kind != ((len(labels), 3072), "uint8"):
        raise DataError(
            f"{file} is no batch of images: it must hold uint8 data [N, 3072] and as many labels "
            f"or fine_labels; it holds {', '.join(content)}."
        )
    return ImageTensor(torch.tensor(data).reshape(-1, 3, 32, 32), torch.tensor(labels))


def _join(batches: list[ImageTensor]) -> ImageTensor:
    return ImageTensor(
        torch.cat([batch.images for batch in batches]),
        torch.cat([batch.labels for batch in batches]),
    )
