"""Complete CIFAR data sets: their checks and their order."""

import torch

from trainact.lab.data.cifar_facts import SETS, CifarSet
from trainact.lab.data.images import DataError, ImageTensor, hash_tensor
from trainact.lab.data.selection import Parts

__all__ = ["SETS", "CifarSet", "Pair", "is_whole", "verify_set"]

Pair = tuple[ImageTensor, ImageTensor]  # training and test images


def is_whole(name: str, parts: Parts) -> bool:
    """Return whether there are as many images as in the complete data set."""
    known = SETS[name]
    return (len(parts.train), len(parts.test)) == (known.num_train, known.num_test)


def verify_set(name: str, pair: Pair, source: str) -> Pair:
    """Return the complete data set in its authors' order.

    Raises:
        DataError: the data set is incomplete, or a checksum differs.
    """
    known = SETS[name]
    train, test = pair
    if (len(train), len(test)) != (known.num_train, known.num_test):
        raise DataError(
            f"{source} has {len(train)} training and {len(test)} test images; {name} has "
            f"{known.num_train} and {known.num_test}"
        )
    for part in (train, test):
        each = torch.arange(len(known.classes)).repeat_interleave(len(part) // len(known.classes))
        if part.images.shape[1:] != (3, 32, 32) or not part.labels.sort().values.equal(each):
            raise DataError(
                f"{source} must have equally many 32 x 32 images of each class of {name}"
            )
    train = _reorder(train, known.batches)
    found = [_hash_pixels(train), _hash_pixels(test)]
    found += [hash_tensor(part.labels.to(torch.uint8)) for part in (train, test)]
    kinds = ("training images", "test images", "training labels", "test labels")
    for kind, want, have in zip(kinds, known.sums, found, strict=bool(known.sums)):
        if want != have:
            raise DataError(
                f"the {kind} of {source} are not those of {name} (SHA-256 {have}, expected "
                f"{want}); they are damaged, altered or in another order"
            )
    return train, test


def _reorder(train: ImageTensor, batches: tuple[str, ...]) -> ImageTensor:
    """Return the images with their batches in the known order; unchanged if one is unknown."""
    if not batches:
        return train
    parts = torch.arange(len(train)).chunk(len(batches))
    places = {_hash_pixels(train.select(part)): part for part in parts}
    if set(places) != set(batches) or list(places) == list(batches):
        return train
    return train.select(torch.cat([places[batch] for batch in batches]))


def _hash_pixels(images: ImageTensor) -> str:
    """Return the SHA-256 of images in the order [N, H, W, C]."""
    return hash_tensor(images.images.permute(0, 2, 3, 1))
