"""Published numbers of images and classes of the named data sets."""

from dataclasses import dataclass

from trainact.lab.data.cifar_sets import SETS
from trainact.lab.data.photos import CLASSES, TEST_CROPS, TRAIN_CROPS
from trainact.lab.recipes.recipe import DataFields

__all__ = ["ImageCounts", "count_images"]


@dataclass(frozen=True)
class ImageCounts:
    """Numbers of images and classes that a run uses, and the image size."""

    train: int
    test: int
    classes: int
    size: int  # pixels per side


PUBLISHED = {
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


def _list_known() -> dict[str, ImageCounts]:
    known = {
        name: ImageCounts(data.num_train, data.num_test, len(data.classes), 32)
        for name, data in SETS.items()
    }
    return PUBLISHED | known | {"photos": ImageCounts(TRAIN_CROPS, TEST_CROPS, len(CLASSES), 32)}
