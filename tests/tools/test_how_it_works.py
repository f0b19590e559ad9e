"""The picture of one step: its matrices are what the formulas give."""

import pytest

pytest.importorskip("matplotlib", reason="pictures need matplotlib")

import torch

from tools.how_it_works import (
    FILE,
    GRADIENT,
    PATCHES,
    draw_steps,
    list_stale_steps,
    make_steps,
    write_steps,
)
from trainact import TrActLinear


def test_an_embedding_moves_z_along_its_gradient_and_plain_vision_does_not():
    language, plain, tract = make_steps()
    assert [step.relation for step in (language, plain, tract)] == ["=", "≠", "≈"]
    assert language.change_of_z == pytest.approx(GRADIENT)


def test_the_step_of_tract_is_that_of_its_layer():
    layer = TrActLinear(*PATCHES.T.shape[:1], GRADIENT.shape[1], bias=False, dtype=torch.float64)
    layer(torch.from_numpy(PATCHES)).backward(torch.from_numpy(GRADIENT))
    step = make_steps()[2].change_of_weight
    gradient = layer.weight.grad.T.numpy()
    assert step / step[0, 0] == pytest.approx(gradient / gradient[0, 0])


def test_the_text_has_the_cosines():
    (text,) = write_steps().values()
    for step in make_steps():
        assert f"{step.cosine:.3f}" in text


def test_a_picture_is_stale_until_it_is_drawn(tmp_path):
    assert list_stale_steps(tmp_path) == [FILE]
    draw_steps(tmp_path)
    assert list_stale_steps(tmp_path) == []
