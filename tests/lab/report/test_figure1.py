"""Figure 1: an embedding layer changes z along its gradient, a plain first layer does not."""

import pytest
import torch
from torch import nn

pytest.importorskip("matplotlib", reason="pictures need matplotlib")

from trainact import diagnose
from trainact.lab.recipes.recipe import DataFields
from trainact.lab.report.figure1 import (
    Rows,
    compute_cosine,
    make_examples,
    measure_figure1,
)


@pytest.fixture(scope="module")
def record():
    return measure_figure1(DataFields("photos", train_images=160, test_images=80), 0.1, [0, 1])[0]


def test_an_embedding_layer_moves_z_along_its_gradient(record):
    assert record["language"]["cosine"] == pytest.approx(1, abs=1e-12)
    assert record["example"]["language"] == pytest.approx(1, abs=1e-12)


def test_tract_is_closer_to_the_gradient_than_plain_and_below_the_maximum(record):
    assert [row["rows"] for row in record["vision"]] == [8 * 2**k for k in range(11)]
    for row in record["vision"]:
        assert row["plain"]["mean"] < row["tract"]["mean"] < row["best"]["mean"] + 1e-9
        assert row["plain"]["low"] <= row["plain"]["mean"] <= row["plain"]["high"]


def test_with_fewer_patches_than_inputs_the_gradient_can_be_reached(record):
    for row in record["vision"]:
        reached = row["best"]["low"] > 1 - 1e-5
        assert reached == (row["rows"] < record["inputs"])


def test_the_drawn_matrices_agree_with_diagnose():
    x, grad_z = torch.randn(12, 48) + 1, torch.randn(12, 64)
    examples = make_examples(Rows(x, grad_z), 0.1)
    found = diagnose(nn.Linear(48, 64), x, grad_z, 0.1)
    assert compute_cosine(examples["vision"]) == pytest.approx(found.cosine_plain)
    assert compute_cosine(examples["tract"]) == pytest.approx(found.cosine_tract)
