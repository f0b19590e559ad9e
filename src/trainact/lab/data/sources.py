"""From the name of a data set to its images."""

from trainact.errors import TrActValueError
from trainact.lab.data import photos
from trainact.lab.data.fingerprint import compute_fingerprint
from trainact.lab.data.images import DataError, ImageData
from trainact.lab.fields import name_nearest
from trainact.lab.recipe import DataFields

__all__ = ["NAMES", "load_data"]

NAMES = ("photos", "cifar10", "cifar100")


def load_data(fields: DataFields) -> ImageData:
    """Return the data set that ``fields`` name, its images selected and stored as they say.

    Raises:
        DataError: images are missing, damaged, or not what they should be.
        TrActValueError: there is no such data set.
    """
    if fields.name == "photos":
        return _load_photos(fields)
    raise TrActValueError(name_nearest(fields.name, NAMES, "data set"))


def _load_photos(fields: DataFields) -> ImageData:
    """Draw the crops that are asked for; unlike elsewhere there are always more."""
    train = fields.train_images or photos.TRAIN_CROPS - fields.held_out
    if train < 1:
        raise DataError(
            f"data.held_out is {fields.held_out}, but photos has {photos.TRAIN_CROPS} training "
            "images. Hold out fewer, or set data.train_images: more crops are drawn then."
        )
    crops = photos.draw_crops(train, fields.test_images or photos.TEST_CROPS, fields.held_out)
    test = crops[fields.evaluate_on]
    fingerprint = compute_fingerprint(crops["train"], test)
    return ImageData("photos", crops["train"], test, photos.CLASSES, fingerprint)
