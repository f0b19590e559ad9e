"""docs/evidence.md: generated from committed records, whose recipes have the tuned values."""

import json
import re

import pytest

from comparison_records import make_record
from result_folders import write_record, write_study, write_tuning

pytest.importorskip("matplotlib", reason="pictures need matplotlib")

from tools import pages
from tools.evidence import (
    FAMILIES,
    draw_evidence,
    list_stale_pictures,
    read_evidence,
    write_evidence,
)
from trainact.errors import TrActValueError
from trainact.lab.recipes.experiment import find_experiment, find_experiments

NAMES = [experiment.name for family in FAMILIES for experiment in find_experiments(family)]
FIRST = f"evidence-{NAMES[0]}"


@pytest.fixture
def results(tmp_path):
    experiment = tmp_path / "results" / NAMES[0]
    write_study(experiment, arms=("plain", "tract-0.1"), budgets=(2, 4), seeds=(0, 1))
    write_tuning(experiment)
    return tmp_path / "results"


def test_the_page_says_that_there_are_no_records(tmp_path):
    evidence = read_evidence(tmp_path)
    assert list(evidence) == NAMES
    places = write_evidence(evidence)
    assert f"| `{NAMES[0]}` | " in places["evidence-recipes"]
    assert "| 0 of " in places.pop("evidence-recipes")
    assert set(places.values()) == {"No records yet."}
    assert list_stale_pictures(evidence, tmp_path) == []


def test_the_page_has_a_place_for_every_experiment():
    text = (pages.ROOT / "docs" / "evidence.md").read_text()
    marks = set(re.findall(r"<!-- ([\w-]+) -->", text))
    assert marks == {
        "evidence-recipes",
        "evidence-overview",
        *(f"evidence-{name}" for name in NAMES),
    }


def test_arms_of_the_trial_alone_are_on_the_other_page(results, tmp_path):
    before = write_evidence(read_evidence(results))
    for arm in ("mac", "eigen+tract-0.1", "tract-0.2"):
        for seed in (0, 1):
            write_record(results / NAMES[0], make_record(arm, 4, seed, 60))
    evidence = read_evidence(results)
    shown = {arm.name for arm in evidence[NAMES[0]].answers.arms}
    assert shown == {"plain", "tract-0.1", "tract-0.2", "eigen+tract-0.1"}
    assert write_evidence(evidence) != before


def test_records_fill_tables_verdicts_and_pictures(results, tmp_path):
    evidence = read_evidence(results)
    places = write_evidence(evidence)
    text = places[FIRST]
    for part in ("### Summary", "### Learning-rate tuning", "| TrAct λ=0.1 | 4 |"):
        assert part in text
    assert NAMES[0] in places["evidence-overview"]
    assert places["evidence-overview"].count(f"| {NAMES[0]} | TrAct λ=0.1 | 4 |") == 1
    assert places[f"evidence-{NAMES[1]}"] == "No records yet."
    pictures = tmp_path / "pictures"
    named = re.findall(r"\]\(pictures/(.*?)\)", text)
    assert sorted(named) == list_stale_pictures(evidence, pictures)
    draw_evidence(evidence, pictures)
    assert sorted(path.name for path in pictures.iterdir()) == sorted(named)
    assert list_stale_pictures(evidence, pictures) == []


def test_other_records_make_the_page_and_its_pictures_stale(results, tmp_path):
    before = read_evidence(results)
    draw_evidence(before, tmp_path / "pictures")
    write_record(results / NAMES[0], make_record("plain", 4, 9, 61))
    after = read_evidence(results)
    assert write_evidence(after)[FIRST] != write_evidence(before)[FIRST]
    assert len(list_stale_pictures(after, tmp_path / "pictures")) == 3


def test_smoke_runs_are_ignored(tmp_path):
    write_record(tmp_path / NAMES[0], make_record("plain", 2, 0, 50, kind="smoke"))
    assert write_evidence(read_evidence(tmp_path))[FIRST] == "No records yet."


def test_a_damaged_record_is_an_error(results):
    path = next((results / NAMES[0]).rglob("record.json"))
    path.write_text("{}")
    with pytest.raises(TrActValueError, match="is not a run's record"):
        read_evidence(results)


@pytest.mark.parametrize("name", [name for name in NAMES if find_experiment(name).grid])
def test_the_recipe_has_the_tuned_values(name):
    folder = pages.ROOT / "results" / name
    tuning = folder / "tuning.json"
    if not tuning.exists():
        assert not (folder / "records.jsonl").exists()
        return
    experiment = find_experiment(name)
    own_rate = {arm.name for arm in experiment.arms if "optimizer.lr" in arm.changes}
    runs = [run for run in experiment.plan() if run.arm not in own_rate]
    plain = [run for run in runs if not run.tract.enabled]
    for budget, chosen in json.loads(tuning.read_text())["chosen"].items():
        mine = [run for run in runs if run.schedule.epochs == int(budget)]
        assert {run.optimizer.lr for run in mine} == {chosen["optimizer.lr"]}
        multipliers = {
            run.optimizer.first_layer_lr for run in plain if run.schedule.epochs == int(budget)
        }
        assert multipliers == {1.0, chosen["optimizer.first_layer_lr"]}
