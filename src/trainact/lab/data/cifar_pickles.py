"""CIFAR-10 and CIFAR-100 as their authors give them: batches pickled in Python 2."""

import pickle
from pathlib import Path
from typing import Any

import torch

from trainact.lab.data.images import DataError, ImageTensor

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
    content = _read_pickle(file)
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


def _read_pickle(file: Path) -> dict[str, Any]:
    """Return the dictionary in a pickle of Python 2 or 3 that holds nothing but plain data.

    Raises:
        DataError: it holds anything besides numbers, text, lists, dictionaries and numpy arrays, or
            is damaged.
    """
    try:
        with file.open("rb") as opened:
            content = _ArrayUnpickler(opened, encoding="latin1").load()
    except DataError as error:
        raise DataError(f"{file} is not read: {error}") from error
    except Exception as error:  # unpickling damaged bytes raises almost anything
        raise DataError(
            f"{file} is no pickle that can be read ({type(error).__name__}: {error}). It may be "
            "cut short; obtain it again."
        ) from error
    if not isinstance(content, dict):
        raise DataError(f"{file} holds {type(content).__name__}, not the dictionary of a batch.")
    return {k.decode() if isinstance(k, bytes) else str(k): v for k, v in content.items()}


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        import numpy as np

        if (module, name) not in ALLOWED:
            raise DataError(
                f"it asks for {module}.{name}, and a pickle may run anything; only numpy arrays "
                "are accepted. Obtain the original file."
            )
        if name == "_reconstruct":
            return np.empty(0).__reduce__()[0]  # wherever this numpy keeps it
        return getattr(np, name)
