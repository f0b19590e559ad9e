"""Runs below folders of results: the two layouts, and the committed records."""

from pathlib import Path

import pytest

from comparison_records import make_record
from result_folders import write_record, write_study
from trainact.errors import TrActValueError
from trainact.lab.recipes.experiment import find_experiment
from trainact.lab.recipes.recipe import identify, make_recipe
from trainact.lab.records.record import seal, write_failure
from trainact.lab.records.results import find_runs, list_record_files, sort_key, write_records

RESULTS = Path(__file__).parents[3] / "results"


@pytest.mark.parametrize("path", sorted(RESULTS.rglob("*.jsonl")), ids=lambda p: p.parent.name)
def test_committed_records_are_as_they_were_written(path, tmp_path):
    runs = [run for run in find_runs([path.parent]) if run.path == path]
    assert [run.damage for run in runs if run.damage] == []
    for run in runs:
        assert run.record["seal"] == seal(run.record)
        assert run.record["recipe_id"] == identify(make_recipe(run.record["recipe"]))
        assert run.tuning == (run.record["recipe"]["data"]["evaluate_on"] == "held-out")
        assert run.record["kind"] == "full"
        assert run.folder == path.parent
    assert len({sort_key(run.record) for run in runs}) == len(runs)
    again = tmp_path / path.name
    write_records(again, [run.record for run in runs])
    assert again.read_bytes() == path.read_bytes()


def test_every_committed_experiment_with_a_grid_was_tuned():
    folders = {path.parent for path in RESULTS.rglob("records.jsonl")}
    assert len(folders) >= 5
    for folder in folders:
        tuned = bool(find_experiment(folder.name).grid)
        assert (folder / "tuning.jsonl").exists() == tuned
        assert (folder / "tuning.json").exists() == tuned
    assert not list(RESULTS.rglob("record.json"))


def test_both_layouts_hold_the_same_runs(tmp_path):
    write_study(tmp_path / "one", arms=("plain", "tract-0.1"), budgets=(2, 10), seeds=(0, 1))
    write_record(tmp_path / "one" / "tuning", make_record("tune-0.1", 2, 0, 55))
    made = find_runs([tmp_path / "one"])
    for tuning, name in ((False, "records.jsonl"), (True, "tuning.jsonl")):
        records = [run.record for run in made if run.tuning == tuning]
        write_records(tmp_path / "two" / name, records)
    collected = find_runs([tmp_path / "two"])
    assert len(collected) == len(made) == 9
    for run in made:
        assert run.folder == tmp_path / "one"
        same = [c for c in collected if c.record["seal"] == run.record["seal"]]
        assert [(c.tuning, c.folder, c.record) for c in same] == [
            (run.tuning, tmp_path / "two", run.record)
        ]


def test_lines_are_sorted_by_arm_budget_and_seed(tmp_path):
    path = tmp_path / "records.jsonl"
    keys = [("plain", 10, 0), ("plain", 2, 1), ("a", 3, 5), ("plain", 2, 0)]
    records = [make_record(arm, budget, seed, 60) for arm, budget, seed in keys]
    write_records(path, [record | {"seal": seal(record)} for record in records])
    found = [run.record for run in find_runs([tmp_path])]
    assert [(r["arm"], r["budget"], r["seed"]) for r in found] == sorted(keys)
    assert path.read_text().count("\n") == 4


def test_a_damaged_line_is_named_and_the_others_are_read(tmp_path):
    path = tmp_path / "records.jsonl"
    records = [make_record("plain", 2, seed, 60) for seed in range(4)]
    write_records(path, [record | {"seal": seal(record)} for record in records])
    lines = path.read_text().split("\n")
    lines[0] = lines[0].replace('"budget":2', '"budget":3')
    lines[1] = lines[1][:100]
    lines[2] = "{}"
    path.write_text("\n".join(lines))
    runs = find_runs([tmp_path])
    assert [run.record is None for run in runs] == [True, True, True, False]
    assert f"line 1 of {path} is not as it was written" in runs[0].damage
    assert f"line 2 of {path} cannot be read" in runs[1].damage
    assert f"line 3 of {path} is not a run's record of format 1" in runs[2].damage
    path.write_bytes(b"\xff\xfe")
    (run,) = find_runs([tmp_path])
    assert "records.jsonl cannot be read" in run.damage


def test_interrupted_runs_are_described(tmp_path):
    folder = tmp_path / "mine" / "tuning" / "runs" / "plain-4ep-seed7-0123456789"
    folder.mkdir(parents=True)
    (folder / "recipe.toml").write_text('[schedule]\nepochs = 4\n[run]\nseed = 7\narm = "plain"\n')
    (folder / "record.json.damaged-1").write_text("{")
    write_failure(folder, "the disk is full")
    (run,) = find_runs([tmp_path])
    assert (run.record, run.damage, run.tuning, run.smoke) == (None, "", True, False)
    assert run.folder == tmp_path / "mine"
    assert run.describe_interruption() == (
        "tuning, plain, 4 epochs, seed 7, whose record was damaged and set aside "
        "(plain-4ep-seed7-0123456789); it failed: the disk is full"
    )
    (folder / "recipe.toml").write_text("[")
    assert "a run whose recipe cannot be read" in run.describe_interruption()
    assert list_record_files([tmp_path]) == []


def test_only_folders_can_be_searched(tmp_path):
    assert find_runs([tmp_path]) == []
    with pytest.raises(TrActValueError, match="is not a folder"):
        find_runs([tmp_path / "nowhere"])
