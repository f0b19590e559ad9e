"""Batches in memory: the values of their pixels, alternating flips and reflected crops."""

import dataclasses

import pytest
import torch

from lab_helpers import make_quick
from trainact.lab.data import load_data
from trainact.lab.data.images import ImageTensor, Standard
from trainact.lab.recipes.recipe import change_recipe
from trainact.lab.training.batches import Batches, Place


def test_pixels_are_given_in_the_range_that_a_recipe_asks_for():
    fields = make_quick(data__flip=False, data__crop="none").data
    data = load_data(fields)
    standard, place = Standard((0.4, 0.5, 0.6), (0.2, 0.1, 0.4)), Place(0, 1, torch.device("cpu"))

    def read(values):
        asked = change_recipe(make_quick(), {"data.values": values, "data.flip": False,
                                             "data.crop": "none"}).data  # fmt: skip
        batches = Batches(data.train, asked, standard, 0, place, len(data.classes))
        return next(batches.read(0, 0))[0].images

    raw, unit, usual = read("raw"), read("unit"), read("standard")
    assert raw.max() > 200
    torch.testing.assert_close(raw, raw.round())
    torch.testing.assert_close(unit, raw / 255)
    mean, std = (torch.tensor(row)[:, None, None] for row in (standard.mean, standard.std))
    torch.testing.assert_close(usual, (unit - mean) / std)


@pytest.mark.parametrize("storage", ["memory", "stream"])
def test_alternating_flips_mirror_each_image_in_every_other_epoch(storage):
    fields = make_quick(
        data__crop="none", data__flip_order="alternating", data__values="raw",
        data__storage=storage, data__image_size=32,
    ).data  # fmt: skip
    data = load_data(fields)
    place = Place(0, 1, torch.device("cpu"))
    standard = Standard((0.5,) * 3, (0.5,) * 3)

    def read(epoch, seed=0):
        """Return the images of an epoch in the order of the training set."""
        batches = Batches(data.train, fields, standard, seed, place, len(data.classes))
        images = torch.cat([share.images for share, _ in batches.read(epoch, 0)])
        return images[batches.order(epoch).argsort()]

    epochs = [read(epoch) for epoch in range(4)]
    assert torch.equal(epochs[0], epochs[2])
    assert torch.equal(epochs[1], epochs[3])
    assert torch.equal(epochs[0].flip(3), epochs[1])
    original = [share.images for share, _ in _open(data, fields, standard, place).read(0, 0)]
    order = _open(data, fields, standard, place).order(0)
    original = torch.cat(original)[order.argsort()]
    mirrored = (epochs[0] != original).flatten(1).any(1)
    assert 0.35 < float(mirrored.double().mean()) < 0.65
    assert not torch.equal(read(0, seed=1), epochs[0])


def _open(data, fields, standard, place):
    plain = dataclasses.replace(fields, flip=False)
    return Batches(data.train, plain, standard, 0, place, len(data.classes))


def test_reflected_crops_need_no_stream():
    fields = make_quick(data__crop_fill="reflect", data__crop_padding=2, data__values="raw").data
    data = load_data(fields)
    assert isinstance(data.train, ImageTensor)
    place, standard = Place(0, 1, torch.device("cpu")), Standard((0.5,) * 3, (0.5,) * 3)
    batches = Batches(data.train, fields, standard, 0, place, len(data.classes))
    share, _ = next(batches.read(0, 0))
    indices = batches.order(0)[: len(share.labels)]
    whole = torch.nn.functional.pad(data.train.images.float(), (2,) * 4, mode="reflect")
    for image, padded in zip(share.images, whole[indices], strict=True):
        crops = padded.unfold(1, 32, 1).unfold(2, 32, 1).permute(1, 2, 0, 3, 4).flatten(0, 1)
        assert any(torch.equal(image, crop) or torch.equal(image.flip(2), crop) for crop in crops)
