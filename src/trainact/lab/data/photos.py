"""Crops of eight photographs, to be classified by photograph; needs no download.

The photographs are part of scikit-image. Each is divided into cells of 64 x 64 pixels: a quarter of
the cells, drawn at random, is for test images, an eighth for held-out images, and the others are
for training. A crop of 32 x 32 pixels is inside one cell, so two parts never share a pixel. No crop
is drawn twice, and crops of almost constant grey (the black around the retina, the clear sky above
the rocket) are never drawn: their photograph could not be recognised.
"""

import importlib.resources
import importlib.util

import torch
from torch import Tensor

from trainact.lab.data.decoding import open_picture, picture_to_tensor
from trainact.lab.data.images import DataError, ImageTensor
from trainact.lab.data.names import CLASSES, FILES, TEST_CROPS, TRAIN_CROPS

__all__ = ["CLASSES", "TEST_CROPS", "TRAIN_CROPS", "draw_crops"]

PARTS = ("train", "test", "held-out")
CELL = 64
CROP = 32
LEAST_DEVIATION = 2  # of the grey values of a crop, in [0, 255]
SEED = 2410


def draw_crops(train: int, test: int, held_out: int = 0) -> dict[str, ImageTensor]:
    """Return the given number of crops for each of ``PARTS``, always the same ones.

    The classes alternate, so they are equally frequent. A smaller number gives the first crops of a
    larger one.

    Raises:
        DataError: a photograph has too few crops, or scikit-image is not installed.
    """
    counts = dict(zip(PARTS, (train, test, held_out), strict=True))
    crops: dict[str, list[Tensor]] = {part: [] for part in PARTS}
    for label, name in enumerate(FILES):
        photo = _read_photo(name)
        roles = _assign_cells(photo, SEED + label)
        rough = _find_rough_corners(photo)
        for number, part in enumerate(PARTS):
            corners = _shuffle_corners(rough & _find_corners_within(roles == number), SEED + label)
            share = (counts[part] - label + len(FILES) - 1) // len(FILES)
            if share > len(corners):
                raise DataError(
                    f"photos: {name} has {len(corners)} {part} crops, but {counts[part]} {part} "
                    f"images of {len(FILES)} classes need {share}. Use fewer."
                )
            crops[part].append(_cut(photo, corners[:share]))
    return {part: _alternate(crops[part]) for part in PARTS}


def _read_photo(name: str) -> Tensor:
    """Return a photograph of the installed package, uint8 [3, H, W]."""
    if importlib.util.find_spec("skimage") is None:
        raise DataError(
            "the data set 'photos' consists of photographs in scikit-image, which is not "
            "installed: pip install scikit-image"
        )
    file = importlib.resources.files("skimage") / "data" / name
    if not file.is_file():
        raise DataError(f"photos: this scikit-image lacks {name}; version 0.26 has it.")
    return picture_to_tensor(open_picture(file.read_bytes(), name))


def _assign_cells(photo: Tensor, seed: int) -> Tensor:
    """Return the index of the part of each cell, int64 [H // CELL, W // CELL]."""
    rows, columns = (side // CELL for side in photo.shape[1:])
    order = torch.randperm(rows * columns, generator=torch.Generator().manual_seed(seed))
    num_test, num_held_out = len(order) // 4, len(order) // 8
    roles = torch.zeros_like(order)
    roles[order[:num_test]] = PARTS.index("test")
    roles[order[num_test : num_test + num_held_out]] = PARTS.index("held-out")
    return roles.reshape(rows, columns)


def _find_rough_corners(photo: Tensor) -> Tensor:
    """Return where the crop with this upper left corner varies enough, bool [rows, columns].

    Rows and columns cover all cells; corners of crops that leave the photograph are False. Sums
    over crops are differences of cumulative sums of integers, hence exact.
    """
    grey = photo.long().sum(dim=0)  # three times the grey value
    sums, squares = _sum_crops(grey), _sum_crops(grey**2)
    deviant = CROP**2 * squares - sums**2 >= (3 * LEAST_DEVIATION * CROP**2) ** 2
    rows, columns = (side // CELL for side in grey.shape)
    corners = torch.zeros(rows * CELL, columns * CELL, dtype=torch.bool)
    inside = deviant[: rows * CELL, : columns * CELL]
    corners[: inside.shape[0], : inside.shape[1]] = inside
    return corners


def _sum_crops(values: Tensor) -> Tensor:
    """Return the sum of each crop's values, [H - CROP + 1, W - CROP + 1] from [H, W]."""
    cumulative = torch.nn.functional.pad(values.cumsum(0).cumsum(1), (1, 0, 1, 0))
    high, low = cumulative[CROP:], cumulative[:-CROP]
    return high[:, CROP:] - high[:, :-CROP] - low[:, CROP:] + low[:, :-CROP]


def _find_corners_within(chosen: Tensor) -> Tensor:
    """Return the corners of crops inside one chosen cell, bool [rows * CELL, columns * CELL]."""
    cell = torch.zeros(CELL, CELL, dtype=torch.long)
    cell[: CELL - CROP + 1, : CELL - CROP + 1] = 1
    return torch.kron(chosen.long(), cell).bool()


def _shuffle_corners(allowed: Tensor, seed: int) -> Tensor:
    """Return the positions where ``allowed`` is True, int64 [N, 2], shuffled by the seed."""
    corners = torch.nonzero(allowed)
    return corners[torch.randperm(len(corners), generator=torch.Generator().manual_seed(seed))]


def _cut(photo: Tensor, corners: Tensor) -> Tensor:
    """Return the crops at ``corners`` [N, 2], uint8 [N, 3, CROP, CROP]."""
    windows = photo.unfold(1, CROP, 1).unfold(2, CROP, 1)
    return windows[:, corners[:, 0], corners[:, 1]].transpose(0, 1).contiguous()


def _alternate(crops: list[Tensor]) -> ImageTensor:
    """Return the crops of all classes: the first of each class, then the second of each, ..."""
    labels = torch.cat([torch.full((len(c),), label) for label, c in enumerate(crops)])
    turns = torch.cat([torch.arange(len(c)) for c in crops])
    order = torch.argsort(turns * len(crops) + labels)
    return ImageTensor(torch.cat(crops)[order], labels[order])
