"""CIFAR-10 and CIFAR-100 as published by their authors: batches pickled by Python 2.

Only numpy arrays and plain data are unpickled; no other code is run.
"""

import pickle
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch import Tensor

from trainact.lab.data.images import DataError, ImageTensor
from trainact.lab.data.selection import MOST_CLASSES

__all__ = ["find_batches", "read_batches"]

FILES = {
    "cifar10": (tuple(f"data_batch_{number}" for number in range(1, 6)), ("test_batch",)),
    "cifar100": (("train",), ("test",)),
}
FOLDERS = {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python"}
ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
}


def find_batches(name: str, folder: Path) -> Path | None:
    """Return the folder of the batches: this one, or the one with the usual name in it."""
    for place in (folder, folder / FOLDERS[name]):
        if (place / FILES[name][0][0]).is_file():
            return place
    return None


def read_batches(name: str, folder: Path) -> tuple[ImageTensor, ImageTensor]:
    """Return the training and the test images, in the order of the files.

    Raises:
        DataError: a batch is missing or damaged, or contains other objects.
    """
    train, test = (_read_files([folder / file for file in files]) for files in FILES[name])
    return train, test


def _read_batch(file: Path) -> tuple[Tensor, Tensor]:
    """Return the images and labels of a file whose ``data`` are rows of 3 x 32 x 32 values."""
    if not file.is_file():
        raise DataError(f"{file} is missing. Unpack the whole archive there.")
    content = _read_pickle(file)
    labels = content.get("labels", content.get("fine_labels"))
    data = content.get("data")
    kind = getattr(data, "shape", None), str(getattr(data, "dtype", None))
    if not _are_labels(labels) or kind != ((len(labels), 3072), "uint8"):
        raise DataError(
            f"{file} is not a batch of images: it must hold uint8 data [N, 3072] and as many "
            f"labels or fine_labels, whole numbers; it holds {', '.join(content)}."
        )
    return torch.tensor(data).reshape(-1, 3, 32, 32), torch.tensor(labels)


def _are_labels(values: Any) -> TypeGuard[list[int]]:
    return isinstance(values, list) and all(
        type(value) is int and 0 <= value < MOST_CLASSES for value in values
    )


def _read_files(files: list[Path]) -> ImageTensor:
    images, labels = zip(*map(_read_batch, files), strict=True)
    return ImageTensor(torch.cat(images), torch.cat(labels))


def _read_pickle(file: Path) -> dict[str, Any]:
    """Return the dictionary of a pickle that holds only plain data and numpy arrays."""
    try:
        with file.open("rb") as opened:
            content = _ArrayUnpickler(opened, encoding="latin1").load()
    except DataError as error:
        raise DataError(f"{file} is refused: {error}") from error
    except Exception as error:  # unpickling damaged bytes raises almost anything
        raise DataError(
            f"{file} cannot be unpickled ({type(error).__name__}: {error}). It may be truncated; "
            "download it again."
        ) from error
    if not isinstance(content, dict):
        raise DataError(f"{file} holds a {type(content).__name__}, not the dictionary of a batch.")
    return {
        k.decode(errors="replace") if isinstance(k, bytes) else str(k): v
        for k, v in content.items()
    }


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        import numpy as np

        if (module, name) not in ALLOWED:
            raise DataError(
                f"it refers to {module}.{name}, and unpickling that may run any code; only numpy "
                "arrays are accepted. Download the original file."
            )
        if name == "_reconstruct":
            return np.empty(0).__reduce__()[0]  # its module depends on the version of numpy
        return getattr(np, name)
