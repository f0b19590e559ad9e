"""The operations of AutoAugment equal torchvision's, image by image, and so does the policy."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from conftest import read_cifar_images
from trainact.lab.augment.autoaugment import CIFAR10_POLICY, OPERATIONS
from trainact.lab.augment.batch import Draws, augment, draw_augmentation
from trainact.lab.recipes.recipe import DataFields
from trainact.lab.torchvision_import import import_torchvision

POLICY_ONLY = DataFields(crop="none", flip=False, policy="autoaugment-cifar10")
EXACT = ["shear x", "shear y", "translate x", "translate y", "rotate"]
EXACT += ["posterize", "solarize", "autocontrast", "equalize", "invert"]
MIXTURES = ["brightness", "colour", "contrast", "sharpness"]
THEIR_NAMES = {"autocontrast": "AutoContrast", "colour": "Color"}
TIED_SHEARS = (2, 6)
"""Steps at which some rows move by exactly half a pixel more: neither neighbour is nearer."""


@pytest.fixture(scope="module")
def images(samples: Path) -> Tensor:
    """256 test images of CIFAR-10, uint8."""
    return read_cifar_images(samples, 256).byte()


def steps_of(name: str) -> list[int]:
    steps = range(-9 if OPERATIONS[name].has_direction else 0, 10)
    return [step for step in steps if "shear" not in name or abs(step) not in TIED_SHEARS]


def operate_one_by_one(images: Any, name: str, step: int) -> list[Any]:
    """Apply torchvision's function to each image, a tensor or a PIL image."""
    import_torchvision()
    from torchvision.transforms.v2 import functional as twin

    share = step / 9
    slope = math.degrees(math.atan(0.3 * share))
    shift = int(150 / 331 * 32 * share)
    still = {"angle": 0.0, "scale": 1.0}
    function, options = {
        "shear x": (
            twin.affine,
            still | {"translate": [0, 0], "shear": [slope, 0.0], "center": [0, 0]},
        ),
        "shear y": (
            twin.affine,
            still | {"translate": [0, 0], "shear": [0.0, slope], "center": [0, 0]},
        ),
        "translate x": (twin.affine, still | {"translate": [shift, 0], "shear": [0.0, 0.0]}),
        "translate y": (twin.affine, still | {"translate": [0, shift], "shear": [0.0, 0.0]}),
        "rotate": (twin.rotate, {"angle": 30 * share}),
        "brightness": (twin.adjust_brightness, {"brightness_factor": 1 + 0.9 * share}),
        "colour": (twin.adjust_saturation, {"saturation_factor": 1 + 0.9 * share}),
        "contrast": (twin.adjust_contrast, {"contrast_factor": 1 + 0.9 * share}),
        "sharpness": (twin.adjust_sharpness, {"sharpness_factor": 1 + 0.9 * share}),
        "posterize": (twin.posterize, {"bits": 8 - round(4 * share)}),
        "solarize": (twin.solarize, {"threshold": 255 * (9 - step) / 9}),
        "autocontrast": (twin.autocontrast, {}),
        "equalize": (twin.equalize, {}),
        "invert": (twin.invert, {}),
    }[name]
    return [function(image, **options) for image in images]


def test_every_operation_has_its_test() -> None:
    assert sorted(OPERATIONS) == sorted(EXACT + MIXTURES)


@pytest.mark.parametrize("name", EXACT)
def test_an_operation_gives_the_bytes_of_torchvision(images: Tensor, name: str) -> None:
    images = images[:24]
    for step in steps_of(name):
        ours = OPERATIONS[name].apply(images, torch.full((24,), step))
        assert torch.equal(ours, torch.stack(operate_one_by_one(images, name, step))), step


@pytest.mark.parametrize("name", MIXTURES)
def test_a_mixture_is_within_one_grey_level_of_torchvisions(images: Tensor, name: str) -> None:
    """They mix in float32, where a whole number may come out just below itself and be cut."""
    images = images[:24]
    for step in steps_of(name):
        ours = OPERATIONS[name].apply(images, torch.full((24,), step)).int()
        theirs = torch.stack(operate_one_by_one(images, name, step)).int()
        assert int((ours - theirs).abs().max()) <= 1, step
        assert float((ours != theirs).double().mean()) < 0.25, step


@pytest.mark.parametrize("name", [*MIXTURES, "autocontrast", "equalize", "posterize", "solarize"])
def test_an_operation_is_within_one_grey_level_of_that_on_pil_images(
    images: Tensor, name: str
) -> None:
    import_torchvision()
    from torchvision.transforms.v2 import functional as twin

    images = images[:12]
    pictures = [twin.to_pil_image(image) for image in images]
    for step in steps_of(name):
        ours = OPERATIONS[name].apply(images, torch.full((12,), step)).int()
        theirs = [twin.pil_to_tensor(p) for p in operate_one_by_one(pictures, name, step)]
        assert int((ours - torch.stack(theirs).int()).abs().max()) <= 1, step


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("value", [0, 1, 200, 255])
def test_an_operation_takes_images_of_one_value(name: str, value: int) -> None:
    images = torch.full((2, 3, 32, 32), value, dtype=torch.uint8)
    images[1, 1] = 7
    for step in steps_of(name)[::3]:
        ours = OPERATIONS[name].apply(images, torch.full((2,), step)).int()
        theirs = torch.stack(operate_one_by_one(images, name, step)).int()
        assert int((ours - theirs).abs().max()) <= (name in MIXTURES), step


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_takes_grey_images(images: Tensor, name: str) -> None:
    grey = images[:6, :1]
    for step in steps_of(name)[::3]:
        ours = OPERATIONS[name].apply(grey, torch.full((6,), step)).int()
        theirs = torch.stack(operate_one_by_one(grey, name, step)).int()
        assert int((ours - theirs).abs().max()) <= (name in MIXTURES), step


@pytest.mark.parametrize("name", OPERATIONS)
def test_each_image_has_its_own_step(images: Tensor, name: str) -> None:
    steps = torch.tensor(steps_of(name))
    images = images[: len(steps)]
    together = OPERATIONS[name].apply(images, steps)
    for i in range(len(steps)):
        alone = OPERATIONS[name].apply(images[i : i + 1], steps[i : i + 1])
        assert torch.equal(together[i : i + 1], alone)


@pytest.mark.parametrize("name", OPERATIONS)
def test_step_zero_of_an_operation_with_a_direction_changes_nothing(
    images: Tensor, name: str
) -> None:
    if OPERATIONS[name].has_direction:
        assert torch.equal(OPERATIONS[name].apply(images, torch.zeros(256).long()), images)


def test_the_sharpness_of_an_image_without_inside_stays() -> None:
    images = torch.randint(256, (2, 3, 2, 9), dtype=torch.uint8)
    assert torch.equal(OPERATIONS["sharpness"].apply(images, torch.tensor([9, -9])), images)


def test_the_table_is_that_of_torchvision() -> None:
    import_torchvision()
    from torchvision.transforms import AutoAugment, AutoAugmentPolicy

    def translate(choice: tuple[str, float, int]) -> tuple[str, float, int | None]:
        name, chance, step = choice
        theirs = THEIR_NAMES.get(name, name.title().replace(" ", ""))
        return theirs, chance, None if name in ("autocontrast", "equalize", "invert") else step

    ours = [(translate(first), translate(second)) for first, second in CIFAR10_POLICY]
    assert ours == AutoAugment(AutoAugmentPolicy.CIFAR10).policies


def test_the_policy_applies_an_images_two_operations_one_after_the_other(images: Tensor) -> None:
    draws = draw_augmentation(256, POLICY_ONLY, torch.Generator().manual_seed(2))
    whole = augment(images, draws)
    assert draws.applied.all(1).any()
    for i in range(256):
        image = images[i : i + 1]
        for half, (name, _, step) in enumerate(CIFAR10_POLICY[int(draws.pair[i])]):
            sign = -1 if draws.negative[i, half] and OPERATIONS[name].has_direction else 1
            if draws.applied[i, half]:
                image = OPERATIONS[name].apply(image, torch.tensor([sign * step]))
        assert torch.equal(whole[i : i + 1], image)


def test_the_policy_agrees_with_torchvisions_for_the_same_choices(images: Tensor) -> None:
    """A grey level before an equalisation or a threshold may be more after it, for a few values."""
    draws = draw_augmentation(256, POLICY_ONLY, torch.Generator().manual_seed(0))
    difference = (augment(images, draws).int() - autoaugment_one_by_one(images, draws).int()).abs()
    assert float((difference > 1).double().mean()) < 0.005
    exact = torch.tensor(
        [
            all(name in EXACT and name != "autocontrast" for name, _, _ in CIFAR10_POLICY[pair])
            for pair in draws.pair.tolist()
        ]
    )
    assert not difference[exact].any()


def autoaugment_one_by_one(images: Tensor, draws: Draws) -> Tensor:
    """Let torchvision's AutoAugment, with our choices in place of its own, do each image."""
    import_torchvision()
    from torchvision.transforms import AutoAugment, AutoAugmentPolicy

    twin = AutoAugment(AutoAugmentPolicy.CIFAR10)
    chances = torch.where(draws.applied, -1.0, 2.0)
    signs = 1 - draws.negative.int()
    result = []
    for image, *choices in zip(images, draws.pair.tolist(), chances, signs, strict=True):
        twin.get_params = lambda _, choices=choices: choices
        result.append(twin(image))
    return torch.stack(result)
