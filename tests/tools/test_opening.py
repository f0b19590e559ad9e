"""README's first picture: drawn from records, with its numbers below it."""

import pytest

from comparison_records import make_record
from result_folders import write_record, write_study

pytest.importorskip("matplotlib", reason="pictures need matplotlib")

from tools.evidence import read_evidence
from tools.opening import FILE, ON_GITHUB, SHOWN, draw_opening, list_stale_opening, write_opening
from trainact.lab.recipes.experiment import list_experiments

NAME = next(iter(SHOWN))


@pytest.fixture
def results(tmp_path):
    write_study(tmp_path / NAME, arms=("plain", "tract-0.1"), budgets=(2, 4), seeds=(0, 1))
    return tmp_path


def test_the_picture_shows_recipes_that_exist():
    assert set(SHOWN) <= set(list_experiments())


def test_without_records_there_is_no_picture(tmp_path):
    evidence = read_evidence(tmp_path)
    assert set(write_opening(evidence).values()) == {"No records yet."}
    assert list_stale_opening(evidence, tmp_path) == []


def test_the_numbers_are_those_of_the_largest_budget(results):
    evidence = read_evidence(results)
    (found,) = [
        d for d in evidence[NAME].answers.differences if (d.arm.name, d.budget) == ("tract-0.1", 4)
    ]
    texts = write_opening(evidence)
    assert f"{found.mean:+.2f} [{found.low:.2f}, {found.high:.2f}]" in texts["opening"]
    assert f"- {SHOWN[NAME]}, 4 epochs: TrAct +" in texts["opening"]
    assert "whitened" not in texts["opening"]
    assert "2 seeds" in texts["opening"]
    assert f"]({ON_GITHUB}/{FILE})" in texts["opening"]
    assert texts["opening"].replace(ON_GITHUB, "pictures") == texts["opening-here"]


def test_a_whitened_start_is_shown_if_it_has_the_same_seeds(results):
    write_study(results / NAME, arms=("eigen+tract-0.1",), budgets=(4,), seeds=(0,))
    assert "whitened" not in write_opening(read_evidence(results))["opening"]
    write_study(results / NAME, arms=("eigen+tract-0.1",), budgets=(4,), seeds=(0, 1))
    (line,) = [
        line
        for line in write_opening(read_evidence(results))["opening"].splitlines()
        if line.startswith(f"- {SHOWN[NAME]}")
    ]
    assert ", TrAct from a whitened start " in line


def test_other_records_make_the_picture_stale(results, tmp_path):
    before = read_evidence(results)
    assert list_stale_opening(before, tmp_path) == [FILE]
    draw_opening(before, tmp_path)
    assert list_stale_opening(before, tmp_path) == []
    write_record(results / NAME, make_record("plain", 4, 9, 61))
    assert list_stale_opening(read_evidence(results), tmp_path) == [FILE]
