"""Published numbers of images and classes of the named data sets."""

from dataclasses import dataclass

from trainact.lab.data.cifar_facts import SETS
from trainact.lab.data.names import CLASSES, TEST_CROPS, TRAIN_CROPS
from trainact.lab.recipes.recipe import DataFields

__all__ = ["PROVIDED", "ImageCounts", "compare_counts", "count_images", "find_published"]


@dataclass(frozen=True)
class ImageCounts:
    """Numbers of images and classes that a run uses, and the image size."""

    train: int
    test: int
    classes: int
    size: int  # pixels per side


PROVIDED = {
    "imagenet": ImageCounts(1_281_167, 50_000, 1000, 224),
    "imagenette": ImageCounts(9469, 3925, 10, 160),
    "flowers102": ImageCounts(2040, 6149, 102, 224),
    "stanford_cars": ImageCounts(8144, 8041, 196, 224),
    "voc2007": ImageCounts(5011, 4952, 20, 600),
}
"""Data sets that users provide themselves (Flowers-102: trained on its training and validation
images)."""


def count_images(fields: DataFields) -> ImageCounts | None:
    """Return how many images a recipe uses; None for a data set of unknown size.

    >>> count_images(DataFields("cifar10", train_images=20000))
    ImageCounts(train=20000, test=10000, classes=10, size=32)
    """
    whole = _list_known().get(fields.name)
    if whole is None:
        return None
    test = fields.held_out if fields.evaluate_on == "held-out" else fields.test_images
    held_out = 0 if fields.name == "photos" else fields.held_out
    return ImageCounts(
        fields.train_images or whole.train - held_out,
        test or whole.test,
        whole.classes,
        fields.image_size or whole.size,
    )


def find_published(name: str) -> ImageCounts | None:
    """Return the numbers of the whole data set; None if its name is not that of a published one.

    ``photos`` is not: its crops are drawn, in any number.
    """
    return None if name == "photos" else _list_known().get(name)


def compare_counts(name: str, train: int, test: int, classes: int) -> str:
    """Return how numbers of images and classes differ from the published ones; empty if not.

    >>> compare_counts("flowers102", train=1020, test=6149, classes=102)
    '1,020 training images (published: 2,040)'
    """
    published = find_published(name)
    if published is None:
        return ""
    rows = (
        ("training images", train, published.train),
        ("test images", test, published.test),
        ("classes", classes, published.classes),
    )
    return ", ".join(
        f"{here:,} {what} (published: {there:,})" for what, here, there in rows if here != there
    )


def _list_known() -> dict[str, ImageCounts]:
    known = {
        name: ImageCounts(data.num_train, data.num_test, len(data.classes), 32)
        for name, data in SETS.items()
    }
    return PROVIDED | known | {"photos": ImageCounts(TRAIN_CROPS, TEST_CROPS, len(CLASSES), 32)}
