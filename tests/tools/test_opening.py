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


def find_line(results):
    (line,) = [line for line in write_text(results).splitlines() if f"- {SHOWN[NAME]}, " in line]
    return line


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
    line = find_line(results)
    assert line.startswith(f"- {SHOWN[NAME]}, 10 epochs, 2 seeds: plain training reaches ")
    assert f"reaches {plain.mean:.2f} %; " in line
    assert f"{found.mean:+.2f} [{found.low:.2f}, {found.high:.2f}]. Speed-up" in line
    texts = write_opening(read_evidence(results), None)
    assert f"]({ON_GITHUB}/{FILE})" in texts["opening"]
    assert texts["opening"].replace(ON_GITHUB, "pictures") == texts["opening-here"]


def test_a_larger_budget_counts_when_it_has_two_seeds(results):
    write_study(results / NAME, arms=("plain", ARM), budgets=(20,), seeds=(0,))
    assert ", 10 epochs, " in find_line(results)


def test_other_arms_are_named_if_they_have_the_same_seeds_and_losses_come_first(results):
    write_study(results / NAME, arms=("eigen+frozen",), budgets=(10,), seeds=(0,))
    assert "frozen" not in find_line(results)
    for seed in (0, 1):
        write_record(results / NAME, make_record("eigen+frozen", 10, seed, 20))
        write_record(results / NAME, make_record(ARM, 10, seed, 90))
    line = find_line(results)
    assert line.index("a frozen whitened start -") < line.index("TrAct from a whitened start +")


def test_speed_ups_are_over_the_rival_and_over_plain(results):
    for budget, accuracy in ((5, 40), (10, 60)):
        for seed in (0, 1):
            write_record(results / NAME, make_record("eigen+frozen", budget, seed, accuracy))
            write_record(results / NAME, make_record("plain", budget, seed, accuracy - 10))
            write_record(results / NAME, make_record(ARM, budget, seed, accuracy + 10))
    line = find_line(results)
    assert "1.41× [1.41×, 1.41×] over a frozen whitened start, " in line
    assert line.endswith("≥ 2.00× [≥ 2.00×, ≥ 2.00×] over plain training.")


def test_the_cost_of_a_step_is_that_of_the_recipes_network(results):
    assert "training step" not in write_text(results)
    ratio = {"median": 0.0042, "low": 0.004, "high": 0.0051}
    rows = [{"name": "other"}, {"name": FAST_NETWORK, "extra_over_plain": ratio}]
    path = results / STEP
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"kind": "bench", "environment": {}, "step": rows}))
    assert "TrAct adds 0.42 % [0.40, 0.51] to the time of a training step" in write_text(results)


def test_other_records_make_the_picture_stale(results, tmp_path):
    before = read_evidence(results)
    assert list_stale_opening(before, tmp_path) == [FILE]
    draw_opening(before, tmp_path)
    assert list_stale_opening(before, tmp_path) == []
    write_record(results / NAME, make_record("plain", 10, 9, 61))
    assert list_stale_opening(read_evidence(results), tmp_path) == [FILE]
