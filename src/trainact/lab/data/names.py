"""The named data sets, and the photographs of ``photos``; nothing here needs torch."""

__all__ = [
    *("CLASSES", "COLLECTIONS", "DETECTION", "FILES", "NAMES", "PLACED"),
    *("TEST_CROPS", "TRAIN_CROPS"),
]

COLLECTIONS = ("imagenet", "imagenette", "flowers102", "stanford_cars")
"""Data sets of the recipes that users provide themselves, in any layout."""
PLACED = ("cifar10", "cifar100", *COLLECTIONS)
"""Classification data sets whose path is given as ``data.folder``."""
DETECTION = "voc2007"
"""The data set for detection; its path is ``data.folder`` too."""
NAMES = ("photos", *PLACED, DETECTION)

FILES = (
    *("astronaut.png", "chelsea.png", "coffee.png", "hubble_deep_field.jpg"),
    *("ihc.png", "motorcycle_left.png", "retina.jpg", "rocket.jpg"),
)
CLASSES = tuple(name.split(".")[0] for name in FILES)
TRAIN_CROPS = 6000
TEST_CROPS = 2000
