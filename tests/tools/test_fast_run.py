"""README's paragraph on the fast recipe."""

import json

import pytest

pytest.importorskip("rich", reason="the lab's tables need rich")
pytest.importorskip("matplotlib", reason="pictures need matplotlib")

from tools import fast_run
from tools.opening import RIVAL
from trainact.lab.commands.cli import main
from trainact.lab.cost.estimates import count_run, read_throughputs
from trainact.lab.recipes.experiment import find_experiment
from trainact.lab.recipes.recipe import identify, recipe_to_dict
from trainact.lab.records.record import seal


def make_record(recipe, correct, views):
    epochs = [
        {"epoch": epoch, "test_correct": correct, "test_seen": 10_000, "train_seconds": 50.0}
        for epoch in range(1, 11)
    ]
    epochs[-1]["views_correct"] = views
    record = {
        "format": 1, "status": "complete", "kind": "full", "arm": recipe.arm, "budget": 10,
        "seed": recipe.run.seed, "recipe": recipe_to_dict(recipe), "recipe_id": identify(recipe),
        "environment": {"processor": "Some CPU", "threads": 2, "device": "cpu"},
        "model": {"name": "lab:speed", "initial_weights": "a"}, "order": "b", "epochs": epochs,
        "data": {"name": "cifar10", "fingerprint": "c"},
        "failure": None, "seconds": 600.0, "sessions": 1,
    }  # fmt: skip
    return record | {"seal": seal(record)}


def find_runs(seed=0):
    plan = find_experiment(fast_run.RECIPE).plan()
    arms = {run.arm: run for run in plan if (run.schedule.epochs, run.run.seed) == (10, seed)}
    return [arms[arm] for arm in fast_run.ARMS]


def test_without_records_the_time_is_estimated(tmp_path):
    text = fast_run.write_fast_run(tmp_path)["fast-run"]
    assert text.startswith(f"    {fast_run.COMMAND}\n\n")
    cpu = read_throughputs()[0]
    minutes = sum(map(count_run, find_runs())) / cpu.rate / 60
    assert f"it takes {minutes:.0f} min on {cpu.hardware}; no record yet" in text


def test_the_time_and_the_accuracies_are_those_of_the_records(tmp_path):
    folder = tmp_path / fast_run.RECIPE
    folder.mkdir()
    plain, other = find_runs()
    records = [make_record(plain, 9100, 9150), make_record(other, 9215, 9260),
               make_record(find_runs(seed=1)[0], 1000, 1000)]  # fmt: skip
    lines = "".join(f"{json.dumps(record)}\n" for record in records)
    (folder / "records.jsonl").write_text(lines)
    text = fast_run.write_fast_run(tmp_path)["fast-run"]
    assert "It took 20 min on Some CPU" in text
    assert "gave 91.00 % and 92.15 % (plain, and whitened start with TrAct)" in text
    assert text.endswith("views of each test image 91.50 % and 92.60 %.")
    plan = find_experiment(fast_run.RECIPE).plan()
    (rival,) = (r for r in plan if (r.arm, r.schedule.epochs, r.run.seed) == (RIVAL, 10, 0))
    lines += f"{json.dumps(make_record(rival, 9300, 9350))}\n"
    (folder / "records.jsonl").write_text(lines)
    text = fast_run.write_fast_run(tmp_path)["fast-run"]
    assert text.endswith("(`--arms eigen+frozen`) gave 93.00 %, with six views 93.50 %.")


def test_the_command_is_valid(tmp_path, capsys):
    _, *words = fast_run.COMMAND.split()
    assert main([*words, "--dry-run", "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 2
    assert all("10 epochs, seed 0" in line for line in shown)
