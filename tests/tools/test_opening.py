"""README's first picture: drawn from records, with its numbers below it."""

import json

import pytest

from comparison_records import diverge, make_record
from result_folders import write_record, write_study

pytest.importorskip("matplotlib", reason="pictures need matplotlib")

from tools.evidence import read_evidence
from tools.opening import (
    ARM,
    FILE,
    ON_GITHUB,
    PUBLISHED,
    RIVAL,
    SHOWN,
    STEP,
    WORDS,
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


def read_cells(results, network=SHOWN[NAME]):
    """Return the cells of a network's column by the words of the rows."""
    lines = [line for line in write_text(results).splitlines() if line.startswith("|")]
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return {row[0]: row[head.index(network)] for row in rows}


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
    cells = read_cells(results)
    assert (cells["epochs"], cells["seeds"]) == ("10", "2")
    assert cells["plain, %"] == f"{plain.mean:.2f} ± {plain.std:.2f}"
    to_plain = f"{found.mean:+.2f} [{found.low:.2f}, {found.high:.2f}]"
    assert cells[f"{WORDS[ARM]} minus plain"] == to_plain
    texts = write_opening(read_evidence(results), None)
    assert f"]({ON_GITHUB}/{FILE})" in texts["opening"]
    assert texts["opening"].replace(ON_GITHUB, "pictures") == texts["opening-here"]


def test_a_larger_budget_counts_when_it_has_two_seeds(results):
    write_study(results / NAME, arms=("plain", ARM), budgets=(20,), seeds=(0,))
    assert read_cells(results)["epochs"] == "10"


def test_a_comparison_over_fewer_seeds_says_so(results):
    write_study(results / NAME, arms=(RIVAL,), budgets=(10,), seeds=(1, 2, 3))
    cells = read_cells(results)
    assert cells["seeds"] == "2"
    assert cells[f"{WORDS[RIVAL]}, %"].endswith(" (n = 3)")
    assert cells[f"{WORDS[RIVAL]} minus plain"].endswith(" [one seed] (n = 1)")
    assert cells[f"{WORDS[ARM]} minus the frozen start"].endswith(" (n = 1)")
    assert not cells[f"{WORDS[ARM]} minus plain"].endswith(")")


def test_diverged_runs_are_not_hidden_by_fewer_epochs(results):
    for seed in (0, 1, 2):
        write_record(results / NAME, make_record("plain", 20, seed, 60))
        record = make_record(ARM, 20, seed, 60)
        write_record(results / NAME, diverge(record, 3) if seed else record)
    cells = read_cells(results)
    assert cells["epochs"] == "20"
    assert cells[f"{WORDS[ARM]}, %"].endswith(", 2 diverged")


def test_diverged_runs_are_shown(results):
    diverged = diverge(make_record(ARM, 10, 2, 60), 3)
    write_record(results / NAME, diverged)
    assert read_cells(results)[f"{WORDS[ARM]}, %"].endswith(", 1 diverged")


def test_a_row_needs_a_network_that_has_it(results):
    other = list(SHOWN)[-1]
    write_study(results / other, arms=("plain", ARM), budgets=(10,), seeds=(0, 1))
    speed_up = f"{WORDS[ARM]}, speed-up over plain"
    assert read_cells(results)[speed_up] != "-"
    assert read_cells(results, SHOWN[other])[speed_up] == "-"
    assert f"{WORDS[RIVAL]}, %" not in read_cells(results)


def test_speed_ups_are_over_the_rival_and_over_plain(results):
    for budget, accuracy in ((5, 40), (10, 60)):
        for seed in (0, 1):
            write_record(results / NAME, make_record(RIVAL, budget, seed, accuracy))
            write_record(results / NAME, make_record("plain", budget, seed, accuracy - 10))
            write_record(results / NAME, make_record(ARM, budget, seed, accuracy + 10))
    cells = read_cells(results)
    over_rival = f"{WORDS[ARM]}, speed-up over the frozen start"
    assert cells[over_rival] == "1.41× [1.41×, 1.41×]"
    assert cells[f"{WORDS[ARM]}, speed-up over plain"] == "≥ 2.00× [≥ 2.00×, ≥ 2.00×]"
    assert cells[f"{WORDS[ARM]} minus the frozen start"] == "+10.00 [10.00, 10.00]"
    assert cells[f"{WORDS[RIVAL]}, speed-up over plain"] == "1.41× [1.41×, 1.41×]"
    for seed in (0, 1):
        write_record(results / NAME, make_record(RIVAL, 10, seed, 90))
    assert read_cells(results)[over_rival] == "not reached"


def test_the_runs_that_are_done_are_counted(results):
    planned = len(find_experiment(NAME).plan())
    assert f"are done: 8 of {planned} (fast network)." in write_text(results)
    write_record(results / NAME, make_record("lr-0.3", 10, 0, 50))
    assert f"are done: 9 of {planned} (fast network)." in write_text(results)


def test_six_views_stand_beside_the_published_accuracy(results):
    assert "six views" not in write_text(results)
    for arm, seed, correct in (("plain", 0, 70), ("plain", 1, 71), (ARM, 0, 80), (ARM, 1, 80)):
        record = make_record(arm, 11, seed, 60)
        record["epochs"][-1] |= {"views_correct": correct, "test_seen": 100}
        write_record(results / PUBLISHED, record)
    write_record(results / PUBLISHED, diverge(make_record(ARM, 11, 2, 60), 3))
    reached = "reaches 70.50 % (plain), 80.00 % (TrAct from a whitened start). With"
    assert reached in write_text(results)
    record = make_record("plain", 11, 2, 60)
    record["epochs"][-1] |= {"views_correct": 1, "test_seen": 100}
    write_record(results / PUBLISHED, record)  # a seed that the other arm did not complete
    assert reached in write_text(results)
    published = "a published recipe of cifar10-airbench, whose author reports 93.0 %."
    assert published in write_text(results)


def test_the_cost_of_a_step_is_that_of_the_recipes_network(results):
    assert "training step" not in write_text(results)
    ratio = {"median": 0.0042, "low": 0.004, "high": 0.0051}
    whole = {"median": 1.012, "low": 0.981, "high": 1.042}
    row = {"name": FAST_NETWORK, "extra_over_plain": ratio, "trainact_over_plain": whole}
    path = results / STEP
    path.parent.mkdir(parents=True)
    for noisy, text in (
        (False, "whole steps with TrAct took 1.012 [0.981, 1.042] times as long as plain ones."),
        (True, "whole steps were too noisy to compare."),
    ):
        rows = [{"name": "other"}, row | {"noisy": noisy}]
        path.write_text(json.dumps({"kind": "bench", "environment": {}, "step": rows}))
        assert "takes 0.42 % [0.40, 0.51] of a plain training step" in write_text(results)
        assert text in write_text(results)


def test_other_records_make_the_picture_stale(results, tmp_path):
    before = read_evidence(results)
    assert list_stale_opening(before, tmp_path) == [FILE]
    draw_opening(before, tmp_path)
    assert list_stale_opening(before, tmp_path) == []
    write_record(results / NAME, make_record("plain", 10, 9, 61))
    assert list_stale_opening(read_evidence(results), tmp_path) == [FILE]
