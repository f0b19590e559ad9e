"""Batches in memory: the values of their pixels."""

import torch

from lab_helpers import make_quick
from trainact.lab.data import load_data
from trainact.lab.data.images import Standard
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
