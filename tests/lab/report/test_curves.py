"""Pictures of a comparison with many arms."""

import pytest

pytest.importorskip("matplotlib", reason="pictures need matplotlib")

from comparison_records import make_record
from trainact.lab.analysis.answers import answer
from trainact.lab.recipes.arms import PLAIN, parse_arms
from trainact.lab.recipes.recipe import Recipe, change_recipe, recipe_to_dict
from trainact.lab.report.curves import draw_accuracy, draw_gradients

NAMES = ["plain", "tract-0.05", "tract-0.1", "lr-0.1", "eigen", "eigen+tract-0.1", "eigen+frozen",
         "eigen+tract-0.1+lr-0.1", "random+tract-0.1", "tract-centered", "tract-relative",
         "tract-centered-relative", "tract-norm-preserving", "mac", "centralised", "foof+lr-3",
         "asgo+lr-3", "muon-stem+lr-3"]  # fmt: skip


@pytest.fixture(scope="module")
def answers():
    records = []
    for arm in parse_arms(NAMES, []):
        tables = recipe_to_dict(change_recipe(Recipe(), {**arm.changes, "schedule.epochs": 3}))
        record = make_record("plain", 3, 0, [50, 55, 60], recipe=tables) | {"arm": arm.name}
        if arm.frozen:
            for row in record["epochs"]:
                row["first_layer_grad_norm"] = 0.0
        records.append(record)
    return answer(records)


def test_no_two_arms_look_the_same(answers):
    (axis,) = draw_accuracy(answers).axes
    looks = {
        line.get_label(): (line.get_color(), str(line._unscaled_dash_pattern))
        for line in axis.lines
    }
    assert len(looks) == len(NAMES)
    assert len(set(looks.values())) == len(NAMES)
    (legend,) = axis.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [a.title for a in answers.arms]
    assert answers.arms[0] == PLAIN


def test_a_frozen_layer_without_a_gradient_is_left_out_of_its_picture(answers):
    (axis,) = draw_gradients(answers).axes
    drawn = {line.get_label() for line in axis.lines if len(line.get_xdata())}
    assert drawn == {arm.title for arm in answers.arms if not arm.frozen}
