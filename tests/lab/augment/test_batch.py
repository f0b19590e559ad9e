"""Batches in memory are augmented as torchvision augments one image after another."""

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import Tensor

from conftest import read_cifar_images
from trainact.errors import TrActTypeError, TrActValueError
from trainact.lab.augment.autoaugment import CIFAR10_POLICY
from trainact.lab.augment.batch import (
    Draws,
    alternate_flips,
    augment,
    draw_augmentation,
    draw_mirrored,
)
from trainact.lab.augment.warp import rotate, shear_x, shear_y, translate_x, translate_y
from trainact.lab.recipes.recipe import DataFields
from trainact.lab.torchvision_import import import_torchvision

PLAIN = DataFields(crop="none", flip=False)
CROPPED = DataFields()
REFLECTED = DataFields(crop_fill="reflect")
ROTATED = DataFields(rotation=15.0)
AUTOAUGMENT = DataFields(policy="autoaugment-cifar10")
EVERYTHING = DataFields(policy="autoaugment-cifar10", rotation=15.0)


@pytest.fixture(scope="module")
def images(samples: Path) -> Tensor:
    """128 test images of CIFAR-10, uint8."""
    return read_cifar_images(samples, 128).byte()


def draw(count: int, fields: DataFields, seed: int = 0) -> Draws:
    return draw_augmentation(count, fields, torch.Generator().manual_seed(seed))


def share_of_different_pixels(ours: Tensor, theirs: Tensor) -> float:
    return float((ours != theirs).any(1).double().mean())


def augment_one_by_one(images: Tensor, draws: Draws) -> Tensor:
    """Do to each image what torchvision's own transforms do for the same choices."""
    import_torchvision()
    from torchvision.transforms.v2 import functional as twin

    result = []
    for i, image in enumerate(images):
        mode = "reflect" if draws.reflect else "constant"
        image = twin.pad(image, [draws.padding] * 4, padding_mode=mode)
        image = twin.crop(image, int(draws.top[i]), int(draws.left[i]), *images.shape[-2:])
        if draws.flip[i]:
            image = twin.horizontal_flip(image)
        result.append(twin.rotate(image, float(draws.angle[i])))
    return torch.stack(result)


@pytest.mark.parametrize("padding", [1, 2, 4, 31])
@pytest.mark.parametrize("fields", [CROPPED, REFLECTED], ids=["black", "reflect"])
def test_crop_and_flip_equal_torchvisions(images: Tensor, fields: DataFields, padding: int) -> None:
    draws = draw(128, dataclasses.replace(fields, crop_padding=padding))
    assert torch.equal(augment(images, draws), augment_one_by_one(images, draws))


def test_reflected_crops_equal_torchs_padding_of_numbers() -> None:
    images = torch.randint(256, (6, 2, 5, 7), dtype=torch.uint8)
    draws = draw(6, dataclasses.replace(REFLECTED, crop_padding=3, flip=False))
    padded = torch.nn.functional.pad(images.float(), (3,) * 4, mode="reflect").byte()
    for image, whole, top, left in zip(
        augment(images, draws), padded, draws.top.tolist(), draws.left.tolist(), strict=True
    ):
        assert torch.equal(image, whole[:, top : top + 5, left : left + 7])


def test_an_image_that_is_too_small_is_not_reflected() -> None:
    images = torch.zeros(2, 3, 8, 4, dtype=torch.uint8)
    with pytest.raises(TrActValueError, match="8 x 4 pixels cannot be reflected by 4; set a sm"):
        augment(images, draw(2, REFLECTED))


def test_rotation_equals_torchvisions_but_for_rounding(images: Tensor) -> None:
    """Torchvision finds source pixels in float32, so a few on the border between two may differ."""
    draws = draw(128, ROTATED)
    twin = augment_one_by_one(images, draws)
    assert share_of_different_pixels(augment(images, draws), twin) < 1e-3


def test_rotation_equals_that_of_pil_images_but_for_rounding(images: Tensor) -> None:
    import_torchvision()
    from torchvision.transforms.v2 import functional as twin

    angle = draw(128, ROTATED).angle
    pictures = [
        twin.rotate(twin.to_pil_image(image), float(degrees))
        for image, degrees in zip(images, angle, strict=True)
    ]
    theirs = torch.stack([twin.pil_to_tensor(picture) for picture in pictures])
    assert share_of_different_pixels(rotate(images, angle), theirs) < 1e-3


def test_a_quarter_turn_is_exact(images: Tensor) -> None:
    turned = rotate(images, torch.full((128,), 90.0))
    assert torch.equal(turned, images.rot90(1, (2, 3)))


@pytest.mark.parametrize("name", ["shear_x", "shear_y", "translate_x", "translate_y"])
def test_shear_and_translation_equal_torchvisions(images: Tensor, name: str) -> None:
    import_torchvision()
    from torchvision.transforms.v2 import functional as twin

    amount = torch.linspace(-0.3, 0.3, 128) * (50 if "translate" in name else 1)
    theirs = []
    for image, value in zip(images, amount.tolist(), strict=True):
        slope = torch.rad2deg(torch.tensor(value, dtype=torch.float64).atan()).item()
        options = {
            "shear_x": {"translate": [0, 0], "shear": [slope, 0.0], "center": [0, 0]},
            "shear_y": {"translate": [0, 0], "shear": [0.0, slope], "center": [0, 0]},
            "translate_x": {"translate": [int(value), 0], "shear": [0.0, 0.0]},
            "translate_y": {"translate": [0, int(value)], "shear": [0.0, 0.0]},
        }[name]
        theirs.append(twin.affine(image, angle=0.0, scale=1.0, **options))
    move = {f.__name__: f for f in (shear_x, shear_y, translate_x, translate_y)}[name]
    assert torch.equal(move(images, amount), torch.stack(theirs))


@pytest.mark.parametrize("shape", [(5, 1, 28, 28), (5, 3, 20, 31), (5, 4, 33, 8)])
def test_any_shape_is_augmented_as_torchvision_does(shape: tuple[int, ...]) -> None:
    images = torch.randint(256, shape, dtype=torch.uint8)
    draws = draw(5, ROTATED)
    twin = augment_one_by_one(images, draws)
    assert share_of_different_pixels(augment(images, draws), twin) < 1e-3


@pytest.mark.parametrize("fields", [PLAIN, CROPPED, REFLECTED, ROTATED, AUTOAUGMENT, EVERYTHING])
def test_a_part_of_the_batch_is_augmented_as_in_the_whole(
    images: Tensor, fields: DataFields
) -> None:
    draws = draw(128, fields)
    whole = augment(images, draws)
    for part in (slice(0, 1), slice(40, 104), torch.tensor([7, 3, 100]), torch.tensor([5])):
        assert torch.equal(augment(images[part], draws.select(part)), whole[part])


def test_nothing_is_done_where_nothing_is_asked_for(images: Tensor) -> None:
    assert torch.equal(augment(images, draw(128, PLAIN)), images)


def test_the_batch_itself_is_not_changed(images: Tensor) -> None:
    before = images.clone()
    augment(images, draw(128, EVERYTHING))
    assert torch.equal(images, before)


def test_any_memory_layout_gives_the_same_images(images: Tensor) -> None:
    draws = draw(128, EVERYTHING)
    other = images.contiguous(memory_format=torch.channels_last)
    assert torch.equal(augment(other, draws), augment(images, draws))


def test_the_same_seed_gives_the_same_draws_and_another_seed_others() -> None:
    one, same, other = draw(64, EVERYTHING), draw(64, EVERYTHING), draw(64, EVERYTHING, seed=1)
    for name in ("top", "left", "flip", "angle", "pair", "applied", "negative"):
        assert torch.equal(getattr(one, name), getattr(same, name))
        assert not torch.equal(getattr(one, name), getattr(other, name))


def test_the_global_generator_is_left_alone(images: Tensor) -> None:
    before = torch.get_rng_state()
    augment(images, draw(128, EVERYTHING))
    assert torch.equal(torch.get_rng_state(), before)


def test_one_choice_does_not_move_the_others() -> None:
    """Recipes that differ in one field see the same crops, also in later batches."""
    first, second = torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
    for _ in range(2):
        plain = draw_augmentation(50, dataclasses.replace(CROPPED, flip=False), first)
        other = draw_augmentation(50, EVERYTHING, second)
        assert torch.equal(plain.top, other.top)
        assert torch.equal(plain.left, other.left)


def test_crops_are_uniform_and_half_of_the_images_are_mirrored() -> None:
    count = 90_000
    draws = draw(count, DataFields(crop_padding=4))
    for offsets in (draws.top, draws.left):
        counts = torch.bincount(offsets, minlength=9)
        assert len(counts) == 9
        assert ((counts - 10_000).abs() < 500).all()  # five standard deviations
    together = torch.bincount(9 * draws.top + draws.left, minlength=81)
    assert ((together / count - 1 / 81).abs() < 0.002).all()
    assert abs(float(draws.flip.double().mean()) - 0.5) < 0.01


def test_angles_are_uniform_to_both_sides() -> None:
    angle = draw(90_000, ROTATED).angle
    assert float(angle.abs().max()) <= 15.0
    counts = torch.histc(angle, bins=9, min=-15.0, max=15.0)
    assert ((counts - 10_000).abs() < 500).all()


def test_every_pair_of_the_policy_is_as_likely_and_its_operations_as_likely_as_it_says() -> None:
    draws = draw(100_000, AUTOAUGMENT)
    counts = torch.bincount(draws.pair, minlength=25)
    assert len(counts) == 25
    assert ((counts - 4000).abs() < 320).all()  # five standard deviations
    for pair, row in enumerate(CIFAR10_POLICY):
        shares = draws.applied[draws.pair == pair].double().mean(0).tolist()
        assert shares == pytest.approx([chance for _, chance, _ in row], abs=0.04)
        assert draws.negative[draws.pair == pair].double().mean(0).tolist() == pytest.approx(
            [0.5, 0.5], abs=0.04
        )


def test_an_operation_with_probability_zero_never_takes_place() -> None:
    draws = draw(100_000, AUTOAUGMENT)
    assert not draws.applied[draws.pair == 14, 1].any()


def test_without_a_policy_no_operation_takes_place() -> None:
    assert not draw(1000, ROTATED).applied.any()


def test_resized_crops_are_refused_with_the_way_out() -> None:
    with pytest.raises(TrActValueError, match=r"data.storage='stream'"):
        draw(4, DataFields(crop="resized"))


def test_what_is_not_a_batch_of_bytes_is_refused() -> None:
    draws = draw(4, CROPPED)
    with pytest.raises(TrActTypeError, match=r"uint8; got torch.float32"):
        augment(torch.zeros(4, 3, 8, 8), draws)
    with pytest.raises(TrActValueError, match=r"\[4, C, H, W\], one for each draw; got \[5, 3"):
        augment(torch.zeros(5, 3, 8, 8, dtype=torch.uint8), draws)
    with pytest.raises(TrActValueError, match=r"got \[4, 8, 8\]"):
        augment(torch.zeros(4, 8, 8, dtype=torch.uint8), draws)


def test_an_empty_batch_stays_empty() -> None:
    empty = torch.zeros(0, 3, 8, 8, dtype=torch.uint8)
    assert augment(empty, draw(0, EVERYTHING)).shape == empty.shape


def test_the_policy_refuses_images_that_are_neither_grey_nor_in_colour() -> None:
    images = torch.zeros(8, 4, 8, 8, dtype=torch.uint8)
    with pytest.raises(TrActValueError, match=r"1 or 3 channels; got 4: set data.policy='none'"):
        augment(images, draw(8, AUTOAUGMENT))


def test_alternating_flips_are_random_first_and_then_alternate() -> None:
    count = 20_000
    mirrored = draw_mirrored(count, 3)
    assert abs(float(mirrored.double().mean()) - 0.5) < 0.02
    assert torch.equal(mirrored, draw_mirrored(count, 3))
    assert not torch.equal(mirrored, draw_mirrored(count, 4))
    draws = draw(count, CROPPED)
    for epoch in range(5):
        alternating = alternate_flips(draws, mirrored, epoch)
        first = mirrored.tolist()
        assert alternating.flip.tolist() == [bool(m) != (epoch in (1, 3)) for m in first]
        assert torch.equal(alternating.top, draws.top)
