"""Images in the arrays of an ``.npz`` file, the format of MedMNIST and Keras."""

import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainact.lab.data.images import DataError, ImageTensor
from trainact.lab.data.selection import Parts, name_by_number

__all__ = ["read_npz"]

KEYS = {
    "train": (("train_images", "train_labels"), ("x_train", "y_train")),
    "test": (("test_images", "test_labels"), ("x_test", "y_test")),
}


def read_npz(file: Path) -> Parts:
    """Return the images of ``train_images``, ``train_labels``, ``test_images``, ``test_labels``.

    ``x_train, y_train, x_test, y_test`` are accepted too. Images are uint8 [N, H, W] (grey),
    [N, H, W, C] or [N, C, H, W] with C 1 or 3; labels are integers [N] or [N, 1]. Nothing is
    unpickled.

    Raises:
        DataError: an array is missing or has another type or shape, or the file is damaged.
    """
    import numpy as np

    try:
        if not zipfile.is_zipfile(file):
            raise zipfile.BadZipFile("not a complete archive of arrays")
        with np.load(file, allow_pickle=False) as arrays:
            parts = {part: _read_part(file, arrays, part) for part in KEYS}
    except DataError:
        raise
    except Exception as error:  # numpy and zipfile raise almost anything for damaged files
        raise DataError(
            f"{file} cannot be read ({type(error).__name__}: {error}). It must be written by "
            "numpy.savez, with no pickled objects."
        ) from error
    classes = name_by_number(parts["train"].labels, file)
    return Parts(file.stem, parts["train"], parts["test"], classes)


def _read_part(file: Path, arrays: Any, part: str) -> ImageTensor:
    for images, labels in KEYS[part]:
        if images in arrays.files and labels in arrays.files:
            found = _read_images(file, images, arrays), _read_labels(file, labels, arrays)
            if len(found[0]) != len(found[1]):
                raise DataError(f"{file} has {len(found[0])} images with {len(found[1])} labels.")
            return ImageTensor(*found)
    wanted = " or ".join(" and ".join(pair) for pair in KEYS[part])
    raise DataError(f"{file} lacks {wanted}; it holds {', '.join(arrays.files) or 'nothing'}.")


def _read_images(file: Path, key: str, arrays: Any) -> Tensor:
    """Return the array as images, uint8 [N, C, H, W]."""
    values = arrays[key]
    if values.dtype != "uint8":
        raise DataError(
            f"{file}: {key} is {values.dtype}; images must be uint8, 0 to 255. Convert values in "
            "[0, 1] with (255 * x).round().astype('uint8')."
        )
    if 0 in values.shape[1:]:
        raise DataError(f"{file}: {key} has the shape {list(values.shape)}: no pixels.")
    if values.ndim == 3:
        return torch.from_numpy(values).unsqueeze(1)
    if values.ndim == 4 and values.shape[3] in {1, 3}:
        return torch.from_numpy(values).permute(0, 3, 1, 2).contiguous()
    if values.ndim == 4 and values.shape[1] in {1, 3}:
        return torch.from_numpy(values)
    raise DataError(
        f"{file}: {key} has the shape {list(values.shape)}; accepted are [N, H, W], [N, H, W, C] "
        "and [N, C, H, W] with C 1 or 3."
    )


def _read_labels(file: Path, key: str, arrays: Any) -> Tensor:
    """Return the array as labels, int64 [N]."""
    values = arrays[key]
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise DataError(
            f"{file}: {key} is {values.dtype} {list(values.shape)}; labels must be integers [N] "
            "or [N, 1], one class per image."
        )
    return torch.from_numpy(values.astype("int64"))
