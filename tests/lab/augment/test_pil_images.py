"""3-Augment, RandAugment and colour jitter: what they do, how often, and from which seed."""

import random

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter, ImageOps

from trainact.errors import TrActValueError
from trainact.lab.augment.batch import draw_augmentation
from trainact.lab.augment.pil_images import PilAugment
from trainact.lab.recipes.recipe import DataFields


def make_picture(size=24):
    x = np.linspace(0, 250, size)
    pixels = np.stack(
        [np.tile(x, (size, 1)), np.tile(x[:, None], (1, size)), np.full((size, size), 40.0)], 2
    )
    return Image.fromarray(pixels.astype(np.uint8))


def classify(changed, picture):
    if changed.tobytes() == ImageOps.solarize(picture).tobytes():
        return "solarise"
    if changed.tobytes() == picture.convert("L").convert("RGB").tobytes():
        return "grey"
    return "blur"


def test_one_of_three_changes_comes_each_with_the_same_chance():
    augment, picture = PilAugment(DataFields(policy="three-augment"), 24), make_picture()
    kinds = [classify(augment(picture, seed), picture) for seed in range(900)]
    counts = [kinds.count(kind) for kind in ("grey", "solarise", "blur")]
    assert all(250 < count < 350 for count in counts)


def test_the_radii_of_blurs_are_uniform(monkeypatch):
    radii = []

    def note(radius):
        radii.append(radius)
        return ImageFilter.BLUR

    monkeypatch.setattr(ImageFilter, "GaussianBlur", note)
    augment, picture = PilAugment(DataFields(policy="three-augment"), 24), make_picture()
    for seed in range(3000):
        augment(picture, seed)
    assert 0.1 <= min(radii) < 0.11
    assert 1.99 < max(radii) <= 2
    assert np.mean(radii) == pytest.approx(1.05, abs=0.05)
    assert np.std(radii) == pytest.approx(1.9 / np.sqrt(12), rel=0.05)


def test_a_blur_is_smoother_and_keeps_the_mean():
    augment, picture = PilAugment(DataFields(policy="three-augment"), 24), make_picture()
    noise = np.random.default_rng(0).integers(0, 256, (24, 24, 3), dtype=np.uint8)
    picture = Image.fromarray(noise)
    blurred = [augment(picture, seed) for seed in range(60)]
    blurred = [b for b in blurred if classify(b, picture) == "blur"]
    assert len({b.tobytes() for b in blurred}) > 5
    for image in blurred:
        assert np.asarray(image).std() <= noise.std()
        assert abs(np.asarray(image).mean() - noise.mean()) < 3


def test_colour_jitter_multiplies_the_brightness_by_factors_in_its_range():
    """Of a grey picture contrast and saturation change nothing."""
    augment = PilAugment(DataFields(colour_jitter=0.3), 8)
    grey = Image.new("RGB", (8, 8), (100, 100, 100))
    values = np.array([augment(grey, seed).getpixel((0, 0))[0] for seed in range(800)])
    assert 68 <= values.min() <= 72
    assert 128 <= values.max() <= 130
    assert abs(values.mean() - 100) < 2
    assert values.std() == pytest.approx(60 / np.sqrt(12), rel=0.1)


@pytest.mark.parametrize("policy", ["three-augment", "rand-augment"])
def test_the_seed_alone_decides_and_no_global_generator_moves(policy):
    augment, picture = PilAugment(DataFields(policy=policy, colour_jitter=0.3), 24), make_picture()
    python, numpy, state = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()
    first = [augment(picture, seed).tobytes() for seed in range(20)]
    random.seed(5)
    np.random.seed(6)
    before = random.getstate()
    assert [augment(picture, seed).tobytes() for seed in range(20)] == first
    assert random.getstate() == before
    assert torch.equal(torch.get_rng_state(), state)
    assert len(set(first)) > 12
    random.setstate(python)
    del numpy


def test_rand_augment_is_timms_with_the_same_seeds():
    from timm.data.auto_augment import rand_augment_transform

    fields = DataFields(policy="rand-augment", mean=(0.485, 0.456, 0.406), std=(1.0,) * 3,
                        interpolation="bicubic")  # fmt: skip
    augment, picture = PilAugment(fields, 24), make_picture()
    theirs = rand_augment_transform(
        "rand-m9-mstd0.5-inc1",
        {"translate_const": 10, "img_mean": (124, 116, 104), "interpolation": Image.BICUBIC},
    )
    refused = 0
    for seed in range(200):
        random.seed(seed)
        np.random.seed(seed)
        ours = augment(picture, seed)
        try:
            assert theirs(picture).tobytes() == ours.tobytes()
        except ValueError:  # PIL no longer keeps 0 bits; the picture was black before
            refused += 1
    assert refused < 20


@pytest.mark.parametrize(
    "fields",
    [
        {"policy": "three-augment"},
        {"policy": "rand-augment"},
        {"colour_jitter": 0.3},
        {"interpolation": "bicubic"},
        {"test_crop": 0.9},
        {"crop": "resized"},
    ],
)
def test_fields_of_streams_are_refused_for_a_batch_in_memory(fields):
    with pytest.raises(TrActValueError, match=r"data\.\w+=.* needs images that are read one"):
        draw_augmentation(4, DataFields(**fields), torch.Generator())
