"""Pictures: what is drawn, and when."""

import pytest

pytest.importorskip("matplotlib", reason="pictures need matplotlib")

from comparison_records import diverge, make_record, make_study
from trainact.lab.analysis.answers import answer
from trainact.lab.recipes.arms import PLAIN, parse_arms
from trainact.lab.recipes.recipe import Recipe, change_recipe, recipe_to_dict
from trainact.lab.report.chapters import ChapterId, Picture, make_chapters
from trainact.lab.report.curves import (
    draw_accuracy,
    draw_gradients,
    draw_lams,
    draw_pictures,
    draw_top5,
)
from trainact.lab.report.render import render_html_chapter

NAMES = ["plain", "tract-0.05", "tract-0.1", "lr-0.1", "eigen", "eigen+tract-0.1", "eigen+frozen",
         "eigen+tract-0.1+lr-0.1", "random+tract-0.1", "tract-centered", "tract-relative",
         "tract-centered-relative", "tract-norm-preserving", "mac", "centralised", "foof+lr-3",
         "asgo+lr-3", "muon-stem+lr-3"]  # fmt: skip
LAMS = (0.0125, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)


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


def make_lam_records(budgets=(3,), lams=LAMS):
    """Return records whose accuracy is 80 for plain, and 80 + 10 λ with TrAct."""
    return [
        make_record(arm, budget, seed, accuracy + seed)
        for budget in budgets
        for seed in (0, 2)
        for arm, accuracy in (
            ("plain", 80.0),
            *((f"tract-{lam:g}", 80 + 10 * lam) for lam in lams),
        )
    ]


def make_imagenet_records(budgets=(2, 4)):
    return [
        make_record(arm, budget, 0, 60.0, data__classes=1000)
        for budget in budgets
        for arm in ("plain", "tract-0.1")
    ]


def list_curves(records):
    chapters = make_chapters(answer(records), records, "")
    (chapter,) = [chapter for chapter in chapters if chapter.id is ChapterId.CURVES]
    return list(chapter.pictures)


def test_many_classes_have_a_picture_of_top_5_and_many_lams_one_of_lam():
    usual = [Picture.ACCURACY, Picture.GRADIENTS]
    study = make_study(budgets=(2,), seeds=(0, 1))
    assert list_curves(study) == usual
    imagenet = make_imagenet_records()
    assert list_curves(imagenet) == [Picture.ACCURACY, Picture.TOP5, Picture.GRADIENTS]
    for row in imagenet[0]["epochs"]:
        del row["test_top5"]
    assert list_curves(imagenet) == usual
    assert list_curves(make_lam_records()) == [*usual, Picture.LAMS]
    assert list_curves(make_lam_records(lams=LAMS[:3])) == usual


def test_the_top_5_panels_show_top_5():
    records = make_imagenet_records()
    records[0]["epochs"][1]["test_top5"] = 1900
    answers = answer(records)
    figure = draw_top5(answers)
    assert [axis.get_title() for axis in figure.axes] == ["2 epochs", "4 epochs"]
    assert {axis.get_ylabel() for axis in figure.axes} == {"top-5 test accuracy, %"}
    (plain,) = [line for line in figure.axes[0].lines if line.get_label() == "plain"]
    assert list(plain.get_xdata()) == [1, 2]
    assert list(plain.get_ydata()) == [99.5, 95.0]
    assert {axis.get_ylabel() for axis in draw_accuracy(answers).axes} == {"test accuracy, %"}


def test_top_5_of_a_run_that_diverged_ends_with_a_cross():
    records = [*make_imagenet_records((4,))[:1], diverge(make_imagenet_records((4,))[1], 2)]
    labels = [line.get_label() for line in draw_top5(answer(records)).axes[0].lines]
    assert "diverged" in labels


@pytest.mark.parametrize("budgets", [(3,), (2, 3)])
def test_lam_is_on_the_axis_and_plain_is_a_level(budgets):
    figure = draw_lams(answer(make_lam_records(budgets)))
    (axis,) = figure.axes
    assert axis.get_xscale() == "log"
    assert axis.get_xlabel() == "λ"
    assert [tick.get_text() for tick in axis.get_xticklabels()] == [f"{lam:g}" for lam in LAMS]
    curves = [container[0] for container in axis.containers]
    assert len(curves) == len(budgets)
    for curve in curves:
        assert list(curve.get_xdata()) == list(LAMS)
        assert list(curve.get_ydata()) == pytest.approx([81 + 10 * lam for lam in LAMS])
    levels = [line for line in axis.lines if str(line.get_label()).startswith("plain")]
    assert [line.get_label() for line in levels] == [
        f"plain, {budget} epochs" for budget in budgets
    ]
    assert all(list(line.get_ydata()) == [81.0, 81.0] for line in levels)


def test_a_diverged_lam_is_left_out_of_the_line():
    records = make_lam_records()
    records = [diverge(r) if r["arm"] == "tract-1.6" else r for r in records]
    (curve,) = [container[0] for container in draw_lams(answer(records)).axes[0].containers]
    assert list(curve.get_xdata()) == list(LAMS[:-1])


def test_pictures_are_files_and_parts_of_the_page():
    for records, picture, text in (
        (make_lam_records(), Picture.LAMS, "Final accuracy in percent by λ"),
        (make_imagenet_records(), Picture.TOP5, "Top-5 test accuracy per epoch"),
    ):
        answers = answer(records)
        drawn = draw_pictures(answers, [picture])
        assert drawn[picture.file].startswith(b"\x89PNG")
        chapters = make_chapters(answers, records, "")
        (chapter,) = [chapter for chapter in chapters if picture in chapter.pictures]
        assert text in render_html_chapter(chapter, answers)
