"""Cubic shears and the value of uncovered pixels, against PIL."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from conftest import read_cifar_images
from trainact.lab.augment import warp

GREY = 128
MOVES = {
    "rotate": (warp.rotate, 20.0),
    "shear_x": (warp.shear_x, 0.2),
    "shear_y": (warp.shear_y, -0.2),
    "shear_x_cubic": (warp.shear_x_cubic, -0.2),
    "shear_y_cubic": (warp.shear_y_cubic, 0.2),
    "translate_x": (warp.translate_x, 5.0),
    "translate_y": (warp.translate_y, -5.0),
}


@pytest.fixture(scope="module")
def images(samples: Path) -> Tensor:
    """60 test images of CIFAR-10, uint8."""
    return read_cifar_images(samples, 60).byte()


def shear_with_pil(images: Tensor, slopes: Tensor, name: str, fill: int) -> Tensor:
    import numpy as np
    from PIL import Image

    sheared = []
    for image, slope in zip(images, slopes.tolist(), strict=True):
        picture = Image.fromarray(image.permute(1, 2, 0).numpy())
        coefficients = (1, slope, 0, 0, 1, 0) if name == "shear_x" else (1, 0, 0, slope, 1, 0)
        picture = picture.transform(
            picture.size,
            Image.Transform.AFFINE,
            coefficients,
            Image.Resampling.BICUBIC,
            fillcolor=(fill,) * 3,
        )
        sheared.append(torch.from_numpy(np.array(picture)).permute(2, 0, 1))
    return torch.stack(sheared)


@pytest.mark.parametrize("name", ["shear_x", "shear_y"])
def test_cubic_shears_are_those_of_pil_but_for_rounding(images: Tensor, name: str) -> None:
    """Our weights have 22 bits, PIL's 53, so that a few values are truncated differently."""
    slopes = torch.linspace(-0.3, 0.3, 60, dtype=torch.float64)
    shear = {"shear_x": warp.shear_x_cubic, "shear_y": warp.shear_y_cubic}[name]
    ours = shear(images, slopes, GREY).int()
    theirs = shear_with_pil(images, slopes, name, GREY).int()
    assert int((ours - theirs).abs().max()) <= 1
    assert float((ours != theirs).double().mean()) < 1e-3


def test_a_cubic_shear_by_whole_pixels_copies_them() -> None:
    """A slope of 2 moves column i by 2 i + 1 pixels."""
    images = torch.randint(256, (3, 2, 9, 4), dtype=torch.uint8)
    slopes = torch.tensor([2.0, -2.0, 0.0])
    assert torch.equal(warp.shear_y_cubic(images, slopes, 7), warp.shear_y(images, slopes, 7))


def test_a_cubic_shear_overshoots_and_stays_in_range() -> None:
    images = torch.zeros(1, 1, 8, 8, dtype=torch.uint8)
    images[:, :, 4:] = 255
    sheared = warp.shear_y_cubic(images, torch.tensor([0.3]))
    assert int(sheared.max()) == 255
    assert sheared.unique().numel() > 2  # values between the two, where nearest pixels have none
    assert warp.shear_y(images, torch.tensor([0.3])).unique().numel() == 2


@pytest.mark.parametrize("name", MOVES)
def test_uncovered_pixels_have_the_given_value_and_the_others_do_not_change(name: str) -> None:
    move, amount = MOVES[name]
    images = torch.randint(1, 100, (4, 3, 16, 16), dtype=torch.uint8)
    amounts = torch.full((4,), amount)
    black, grey = move(images, amounts), move(images, amounts, GREY)
    filled = grey != black
    assert 0.02 < float(filled.double().mean()) < 0.5
    assert (grey[filled] == GREY).all()
    assert not black[filled].any()


@pytest.mark.parametrize("name", MOVES)
def test_each_image_has_its_own_amount(name: str) -> None:
    move, largest = MOVES[name]
    images = torch.randint(256, (5, 3, 12, 17), dtype=torch.uint8)
    amounts = torch.linspace(-1, 1, 5) * largest
    together = move(images, amounts, GREY)
    for i in range(5):
        alone = move(images[i : i + 1], amounts[i : i + 1], GREY)
        assert torch.equal(together[i : i + 1], alone)
