"""The operations of AutoAugment equal torchvision's, image by image, and so does the policy.

Those of the repository ViT-CIFAR equal PIL's, on which it applies them.
"""

import dataclasses
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from conftest import read_cifar_images
from trainact.lab.augment.autoaugment import CIFAR10_POLICY, OPERATIONS, UPSTREAM_OPERATIONS
from trainact.lab.augment.batch import Draws, augment, draw_augmentation
from trainact.lab.recipes.experiment import find_experiment
from trainact.lab.recipes.recipe import DataFields
from trainact.lab.torchvision_import import import_torchvision

POLICY_ONLY = DataFields(crop="none", flip=False, policy="autoaugment-cifar10")
UPSTREAM = dataclasses.replace(
    POLICY_ONLY, policy="autoaugment-cifar10-upstream", augment_fill="grey"
)
VIT_RECIPES = ["cifar10-vit", "cifar10-vit-lambda", "cifar10-vit-norms", "cifar10-vit-ranges"]
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


def operate_with_pil(picture: Any, name: str, step: float) -> Any:
    """Do one operation of the repository ViT-CIFAR, with the functions of PIL that it calls."""
    from PIL import Image, ImageEnhance, ImageOps

    share, grey = step / 9, (128, 128, 128)
    width, height = picture.size
    if name in ("brightness", "colour", "contrast", "sharpness"):
        kind = getattr(ImageEnhance, {"colour": "Color"}.get(name, name.title()))
        return kind(picture).enhance(1 + 0.9 * share)
    if name == "rotate":
        return picture.rotate(30 * share, fillcolor=grey)
    if name == "posterize":
        return ImageOps.posterize(picture, round(8 - 4 * share))
    if name == "solarize":
        return ImageOps.solarize(picture, 256 - 256 * share)
    if name in ("autocontrast", "equalize", "invert"):
        return getattr(ImageOps, name)(picture)
    coefficients = {
        "shear x": (1, 0.3 * share, 0, 0, 1, 0),
        "shear y": (1, 0, 0, 0.3 * share, 1, 0),
        "translate x": (1, 0, -150 / 331 * width * share, 0, 1, 0),
        "translate y": (1, 0, 0, 0, 1, -150 / 331 * height * share),
    }[name]
    kinds = Image.Resampling
    kind = kinds.BICUBIC if "shear" in name else kinds.NEAREST
    return picture.transform(
        picture.size, Image.Transform.AFFINE, coefficients, kind, fillcolor=grey
    )


def to_pictures(images: Tensor) -> list[Any]:
    from PIL import Image

    return [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in images]


def to_tensor(pictures: list[Any]) -> Tensor:
    import numpy as np

    return torch.stack([torch.from_numpy(np.array(p)).permute(2, 0, 1) for p in pictures])


@pytest.mark.parametrize("name", UPSTREAM_OPERATIONS)
def test_an_upstream_operation_is_that_on_pil_images(images: Tensor, name: str) -> None:
    """Of the moves, PIL rotates with 16 bits after the point and shears with doubles."""
    images, operation = images[:12], UPSTREAM_OPERATIONS[name]
    pictures, fill = to_pictures(images), (128,) if operation.moves_pixels else ()
    for step in range(-9 if operation.has_direction else 0, 10):
        ours = operation.apply(images, torch.full((12,), step), *fill).int()
        theirs = to_tensor([operate_with_pil(picture, name, step) for picture in pictures]).int()
        different = float((ours != theirs).double().mean())
        if name in ("translate x", "translate y", "posterize", "solarize", "equalize", "invert"):
            assert different == 0, step
        elif name == "rotate":
            assert different < 1e-3, step
        else:
            assert int((ours - theirs).abs().max()) <= 1, step
            if "shear" in name:
                assert different < 0.005, step


def test_upstream_rotates_one_way_only() -> None:
    assert OPERATIONS["rotate"].has_direction
    assert not UPSTREAM_OPERATIONS["rotate"].has_direction
    assert list(UPSTREAM_OPERATIONS) == list(OPERATIONS)
    images = torch.randint(256, (4, 3, 32, 32), dtype=torch.uint8)
    draws = draw_augmentation(4, UPSTREAM, torch.Generator().manual_seed(0))
    draws = dataclasses.replace(
        draws,
        pair=torch.ones(4, dtype=torch.int64),  # rotate by two steps, then shift
        applied=torch.tensor([[True, False]] * 4),
        negative=torch.tensor([[True, True], [False, False]] * 2),
    )
    expected = OPERATIONS["rotate"].apply(images, torch.full((4,), 2), 128)
    assert torch.equal(augment(images, draws), expected)


def test_both_flavours_draw_the_same_choices() -> None:
    ours = draw_augmentation(500, POLICY_ONLY, torch.Generator().manual_seed(4))
    theirs = draw_augmentation(500, UPSTREAM, torch.Generator().manual_seed(4))
    for name in ("pair", "applied", "negative", "top", "flip"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name))


def augment_with_pil(images: Tensor, seed: int) -> Tensor:
    """Apply upstream's policy with draws of its own kind: one generator, image after image."""
    draw = random.Random(seed)
    pictures = []
    for picture in to_pictures(images):
        for name, chance, step in draw.choice(CIFAR10_POLICY):
            if draw.random() < chance:
                sign = draw.choice((-1, 1)) if UPSTREAM_OPERATIONS[name].has_direction else 1
                picture = operate_with_pil(picture, name, sign * step)
        pictures.append(picture)
    return to_tensor(pictures)


def measure_fill(images: Tensor, before: Tensor, value: int) -> tuple[float, float]:
    """Return the shares of images and of pixels that an operation filled with ``value``."""
    filled = (images == value).all(1) & (before != value).any(1)
    return float((filled.flatten(1).sum(1) > 15).double().mean()), float(filled.double().mean())


def find_moment(images: Tensor) -> Tensor:
    """Return the second moment [48, 48] of the ViT's patches of 4 x 4 standardised pixels."""
    fields = find_experiment("cifar10-vit").recipe.data
    mean, std = (torch.tensor(v)[:, None, None] for v in (fields.mean, fields.std))
    patches = torch.nn.functional.unfold((images / 255 - mean) / std, 4, stride=4)
    rows = patches.transpose(1, 2).flatten(0, 1).double()
    return rows.T @ rows / len(rows)


def test_the_upstream_policy_has_the_statistics_of_upstream(samples: Path) -> None:
    """Moved images, filled pixels, and the second moment that TrAct inverts, over 4,000 images."""
    images = read_cifar_images(samples, 2000).byte().repeat(2, 1, 1, 1)
    draws, same = (
        draw_augmentation(4000, fields, torch.Generator().manual_seed(0))
        for fields in (UPSTREAM, POLICY_ONLY)
    )
    moves = torch.tensor(
        [[UPSTREAM_OPERATIONS[name].moves_pixels for name, _, _ in row] for row in CIFAR10_POLICY]
    )
    moved = (draws.applied & moves[draws.pair]).any(1)
    assert float(moved.double().mean()) == pytest.approx(0.176, abs=0.02)
    ours, theirs = augment(images, draws), augment_with_pil(images, 1)
    filled = measure_fill(ours, images, 128)
    assert filled == pytest.approx(measure_fill(theirs, images, 128), rel=0.12)
    assert filled[1] == pytest.approx(0.06, abs=0.01)
    black = augment(images, same)
    assert measure_fill(black, images, 128)[1] < 0.005
    moment = find_moment(theirs)
    near, far = (float((find_moment(x) - moment).norm() / moment.norm()) for x in (ours, black))
    assert near < 0.03
    assert far > 0.2  # black pixels are far from the mean


@pytest.mark.parametrize("name", VIT_RECIPES)
def test_the_paper_s_vision_transformers_augment_as_upstream_does(name: str) -> None:
    for run in find_experiment(name).plan():
        assert run.data.policy == "autoaugment-cifar10-upstream"
        assert run.data.augment_fill == "grey"
