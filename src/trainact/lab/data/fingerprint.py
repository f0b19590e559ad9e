"""One number for what a data set holds."""

import hashlib
from typing import Any

from torch import Tensor

from trainact.lab.data.images import Images, ImageTensor

__all__ = ["compute_fingerprint", "hash_tensor"]


def compute_fingerprint(train: Images, test: Images) -> str:
    """Return the hexadecimal SHA-256 of both parts: images, labels and order.

    Images in memory count with all their bytes; a stream counts with the name and the encoded size
    of each image, since reading them all would take as long as an epoch.
    """
    total = hashlib.sha256()
    for images in (train, test):
        if isinstance(images, ImageTensor):
            total.update(repr(tuple(images.images.shape)).encode())
            total.update(hash_tensor(images.images).encode())
        else:
            for item in images.items:
                total.update(repr(_describe(images.read, item)).encode())
        total.update(hash_tensor(images.labels).encode())
    return total.hexdigest()


def hash_tensor(values: Tensor) -> str:
    """Return the hexadecimal SHA-256 of a tensor's bytes, in the order of its indices."""
    return hashlib.sha256(values.contiguous().numpy().data).hexdigest()


def _describe(read: Any, item: Any) -> tuple[str, int]:
    """Return the name and the size in bytes of a stream's image."""
    return read.describe(item)
