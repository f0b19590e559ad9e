"""Select the images of a run: subsets of a data set, and images held out of training."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trainact.lab.data.images import DataError, Images, Note
from trainact.lab.recipes.recipe import DataFields

__all__ = ["Parts", "name_by_number", "order_by_class", "select_images", "note_unused"]

MOST_CLASSES = 1_000_000
SEED = 0  # not the run's seed: all runs of a comparison use the same images


@dataclass(frozen=True, eq=False)
class Parts:
    """All images of a data set, before a selection, in memory or as streams."""

    name: str
    train: Images
    test: Images
    classes: tuple[str, ...]


def name_by_number(labels: Tensor, origin: object) -> tuple[str, ...]:
    """Return the numbers from 0 to the largest label [N] as names of classes.

    >>> name_by_number(torch.tensor([0, 2]), "a set")
    ('0', '1', '2')

    Raises:
        DataError: the largest label is too large for the number of a class.
    """
    largest = int(labels.max()) if len(labels) else -1
    if largest >= MOST_CLASSES:
        raise DataError(
            f"{origin} has the label {largest}; classes are numbered from 0 to at most "
            f"{MOST_CLASSES - 1}."
        )
    return tuple(map(str, range(largest + 1)))


def note_unused(splits: Sequence[str], origin: object, note: Note) -> None:
    """Report the splits of a data set that are used neither for training nor for testing."""
    if splits:
        note(
            f"{origin}: {' and '.join(splits)} {'is' if len(splits) == 1 else 'are'} not used; to "
            "train on these images too, move them to train."
        )


def select_images(parts: Parts, fields: DataFields) -> tuple[Images, Images]:
    """Return the training and the test images.

    Held-out images are selected before the training images, so ``train_images`` never adds one of
    them. A smaller selection is a subset of a larger one, and classes keep their proportions.

    Raises:
        DataError: there are fewer images than selected.
    """
    name, num_held_out = parts.name, fields.held_out
    order = order_by_class(parts.train.labels)
    if num_held_out >= len(order):
        raise DataError(
            f"data.held_out is {num_held_out}, but {name} has {len(order)} training images. Hold "
            "out fewer."
        )
    rest = order[num_held_out:]
    _check_count("data.train_images", fields.train_images, len(rest), name, num_held_out)
    train = _take(parts.train, rest[: fields.train_images or None])
    if fields.evaluate_on == "held-out":
        return train, _take(parts.train, order[:num_held_out])
    _check_count("data.test_images", fields.test_images, len(parts.test), name, 0)
    test_order = order_by_class(parts.test.labels)
    return train, _take(parts.test, test_order[: fields.test_images or None])


def order_by_class(labels: Tensor) -> Tensor:
    """Return shuffled indices [N], every prefix of which keeps the proportions of the classes.

    Each class is shuffled and spread evenly: the k-th of its n images has the position
    (k + 1/2) / n. Classes of equal size thus alternate.
    """
    generator = torch.Generator().manual_seed(SEED)
    places = torch.empty(len(labels), dtype=torch.float64)
    for label in labels.unique().tolist():
        members = torch.nonzero(labels == label).flatten()
        members = members[torch.randperm(len(members), generator=generator)]
        steps = torch.arange(len(members), dtype=torch.float64)
        places[members] = (steps + 0.5) / len(members)
    by_label = torch.argsort(labels, stable=True)
    return by_label[torch.argsort(places[by_label], stable=True)]


def _take(images: Images, indices: Tensor) -> Images:
    """Return the images at ``indices``, in the order of the data set."""
    if len(indices) == len(images):
        return images
    return images.select(indices.sort().values)


def _check_count(field: str, wanted: int, present: int, name: str, held_out: int) -> None:
    if wanted <= present:
        return
    part = field.removeprefix("data.").removesuffix("_images").replace("train", "training")
    left = f" that are not held out (data.held_out is {held_out})" if held_out else ""
    raise DataError(
        f"{field} is {wanted}, but {name} has {present} {part} images{left}. Use at most "
        f"{present}, or 0 for all."
    )
