"""One number for what a data set holds."""

import hashlib

from torch import Tensor

from trainact.lab.data.images import Images, ImageTensor

__all__ = ["compute_fingerprint", "hash_tensor"]


def compute_fingerprint(train: Images, test: Images) -> str:
    """Return the hexadecimal SHA-256 of both parts: images, labels and order.

    Images in memory count with all their bytes; a stream counts with the name and the encoded size
    of each image, which its reader's ``describe`` tells: reading all would take as long as an
    epoch.
    """
    total = hashlib.sha256()
    for images in (train, test):
        if isinstance(images, ImageTensor):
            total.update(repr(tuple(images.images.shape)).encode())
            total.update(hash_tensor(images.images).encode())
        else:
            for item in images.items:
                name, size = images.read.describe(item)  # type: ignore[attr-defined]
                total.update(f"{name!r} {size}\n".encode())
        total.update(hash_tensor(images.labels).encode())
    return total.hexdigest()


def hash_tensor(values: Tensor) -> str:
    """Return the hexadecimal SHA-256 of a tensor's bytes, in the order of its indices."""
    return hashlib.sha256(values.contiguous().numpy().data).hexdigest()
