"""trainact figure1: an embedding layer does what is wanted, a plain first layer does not."""

import json

import pytest
import torch
from torch import nn

pytest.importorskip("matplotlib", reason="pictures need matplotlib")

from trainact import diagnose
from trainact.lab.commands import cli
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


def test_tract_is_nearer_to_the_wanted_step_and_below_the_best(record):
    assert [row["rows"] for row in record["vision"]] == [8 * 2**k for k in range(11)]
    for row in record["vision"]:
        assert row["plain"]["mean"] < row["tract"]["mean"] < row["best"]["mean"] + 1e-9
        assert row["plain"]["low"] <= row["plain"]["mean"] <= row["plain"]["high"]


def test_with_fewer_patches_than_inputs_the_wanted_step_can_be_reached(record):
    for row in record["vision"]:
        reached = row["best"]["low"] > 1 - 1e-5
        assert reached == (row["rows"] < record["inputs"])


def test_the_matrices_that_are_drawn_are_those_that_diagnose_measures():
    x, grad_z = torch.randn(12, 48) + 1, torch.randn(12, 64)
    examples = make_examples(Rows(x, grad_z), 0.1)
    found = diagnose(nn.Linear(48, 64), x, grad_z, 0.1)
    assert compute_cosine(examples["vision"]) == pytest.approx(found.cosine_plain)
    assert compute_cosine(examples["tract"]) == pytest.approx(found.cosine_tract)


def test_the_command_writes_a_picture_and_a_record(tmp_path, capsys):
    command = ["figure1", "--data", "photos", "--seeds", "0", "--out", str(tmp_path)]
    assert cli.main([*command, "data.train_images=160", "data.test_images=80"]) == 0
    assert (tmp_path / "figure1.png").read_bytes().startswith(b"\x89PNG")
    record = json.loads((tmp_path / "figure1.json").read_text())
    assert record["environment"]["packages"]["torch"]
    assert record["data"]["name"] == "photos"
    assert record["caption"] in capsys.readouterr().out


def test_images_that_do_not_fit_are_refused(tmp_path, capsys):
    assert cli.main(["figure1", "--data", str(tmp_path / "none"), "--out", str(tmp_path)]) == 2
    assert "there is no file or folder" in capsys.readouterr().err
