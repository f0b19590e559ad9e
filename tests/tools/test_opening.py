"""README's first picture: drawn from records, with its numbers below it."""

import json

import pytest

from comparison_records import make_record
from result_folders import write_record, write_study

pytest.importorskip("matplotlib", reason="pictures need matplotlib")

from tools.evidence import read_evidence
from tools.opening import (
    ARM,
    FILE,
    ON_GITHUB,
    RIVAL,
    SHOWN,
    STEP,
    draw_opening,
    list_stale_opening,
    read_step,
    write_opening,
)
from trainact.lab.cost.cases import FAST_NETWORK
from trainact.lab.recipes.experiment import find_experiment, list_experiments

NAME = next(iter(SHOWN))


@pytest.fixture
def results(tmp_path):
    write_study(tmp_path / NAME, arms=("plain", ARM), budgets=(5, 10), seeds=(0, 1))
    return tmp_path


def write_text(results):
    return write_opening(read_evidence(results), read_step(results))["opening"]


def read_row(results):
    """Return the cells of the recipe's row by the words of the head."""
    head, _, row = [line for line in write_text(results).splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in (head, row)]
    return dict(zip(*cells, strict=True))


def test_the_picture_shows_recipes_that_have_the_arm():
    assert set(SHOWN) <= set(list_experiments())
    for name in SHOWN:
        assert any(run.arm == ARM for run in find_experiment(name).plan())


def test_without_records_there_is_no_picture(tmp_path):
    evidence = read_evidence(tmp_path)
    assert set(write_opening(evidence, None).values()) == {"No records yet."}
    assert list_stale_opening(evidence, tmp_path) == []


def test_one_seed_is_not_shown(tmp_path):
    write_study(tmp_path / NAME, arms=("plain", ARM), budgets=(5,), seeds=(0,))
    assert write_text(tmp_path) == "No records yet."


def test_the_numbers_are_those_of_the_largest_budget(results):
    answers = read_evidence(results)[NAME].answers
    (found,) = [d for d in answers.differences if d.budget == 10]
    (plain,) = [s for s in answers.summaries if (s.arm.name, s.budget) == ("plain", 10)]
    row = read_row(results)
    assert (row["network"], row["epochs"], row["n"]) == (SHOWN[NAME], "10", "2")
    assert row["plain, %"] == f"{plain.mean:.2f}"
    expected = f"{found.mean:+.2f} [{found.low:.2f}, {found.high:.2f}]"
    assert row["TrAct from a whitened start"] == expected
    texts = write_opening(read_evidence(results), None)
    assert f"]({ON_GITHUB}/{FILE})" in texts["opening"]
    assert texts["opening"].replace(ON_GITHUB, "pictures") == texts["opening-here"]


def test_a_larger_budget_counts_when_it_has_two_seeds(results):
    write_study(results / NAME, arms=("plain", ARM), budgets=(20,), seeds=(0,))
    assert read_row(results)["epochs"] == "10"


@pytest.mark.parametrize("seeds", [(0,), (0, 2)])
def test_other_arms_are_shown_if_they_have_the_same_seeds(results, seeds):
    write_study(results / NAME, arms=(RIVAL,), budgets=(10,), seeds=seeds)
    row = read_row(results)
    assert row["frozen whitened start"] == row["against the frozen start"] == "-"
    write_study(results / NAME, arms=(RIVAL,), budgets=(10,), seeds=(1,))
    if 2 not in seeds:
        assert read_row(results)["frozen whitened start"] != "-"


def test_speed_ups_are_over_the_rival_and_over_plain(results):
    for budget, accuracy in ((5, 40), (10, 60)):
        for seed in (0, 1):
            write_record(results / NAME, make_record(RIVAL, budget, seed, accuracy))
            write_record(results / NAME, make_record("plain", budget, seed, accuracy - 10))
            write_record(results / NAME, make_record(ARM, budget, seed, accuracy + 10))
    row = read_row(results)
    assert row["over the frozen start"] == "1.41× [1.41×, 1.41×]"
    assert row["speed-up over plain"] == "≥ 2.00× [≥ 2.00×, ≥ 2.00×]"
    assert row["against the frozen start"] == "+10.00 [10.00, 10.00]"
    for seed in (0, 1):
        write_record(results / NAME, make_record(RIVAL, 10, seed, 90))
    assert read_row(results)["over the frozen start"] == "none"


def test_a_control_that_was_not_run_is_named(results):
    assert "Not run yet on the fast network: the control, plain, first-layer" in write_text(results)
    write_record(results / NAME, make_record("lr-0.3", 10, 0, 50))
    assert "Not run yet" not in write_text(results)


def test_the_cost_of_a_step_is_that_of_the_recipes_network(results):
    assert "training step" not in write_text(results)
    ratio = {"median": 0.0042, "low": 0.004, "high": 0.0051}
    rows = [{"name": "other"}, {"name": FAST_NETWORK, "extra_over_plain": ratio}]
    path = results / STEP
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"kind": "bench", "environment": {}, "step": rows}))
    assert "takes 0.42 % [0.40, 0.51] of a plain training step" in write_text(results)


def test_other_records_make_the_picture_stale(results, tmp_path):
    before = read_evidence(results)
    assert list_stale_opening(before, tmp_path) == [FILE]
    draw_opening(before, tmp_path)
    assert list_stale_opening(before, tmp_path) == []
    write_record(results / NAME, make_record("plain", 10, 9, 61))
    assert list_stale_opening(read_evidence(results), tmp_path) == [FILE]
