"""The trial of first layers: its order, what is skipped, and how it goes on."""

import json
import os
import signal

import pytest

from lab_helpers import HERE
from result_folders import find_records
from tools import rivals
from tools.rivals import (
    FIRST,
    OTHERS,
    RECIPES,
    STAGES,
    TUNED,
    UNITS,
    VALUES,
    Stage,
    Trial,
    name_experiment,
    read_committed,
)
from trainact.errors import TrActValueError
from trainact.lab.data.images import DataError
from trainact.lab.recipes.arms import parse_arms
from trainact.lab.recipes.experiment import find_experiment
from trainact.lab.recipes.recipe import identify
from trainact.lab.records.record import seal
from trainact.lab.records.results import RECORDS, write_records
from trainact.lab.running.display import Display


def test_the_most_important_arms_come_first_at_the_longest_budget(tmp_path):
    trial = Trial(tmp_path / "out", tmp_path)
    runs = trial.plan(STAGES[0])
    assert len(runs) == len(FIRST) * len(RECIPES) * 3
    assert [run.recipe.arm for run in runs[: len(FIRST)]] == list(FIRST)
    assert [run.recipe.run.seed for run in runs] == sorted(run.recipe.run.seed for run in runs)
    for run in runs:
        assert run.recipe.schedule.epochs == max(find_experiment(run.member).budgets)
        assert run.root == tmp_path / "out" / run.member
    slow = next(run.recipe for run in runs if run.recipe.arm == "eigen+tract-0.1+lr-0.1")
    assert (slow.model.start, slow.tract.enabled, slow.optimizer.first_layer_lr) == (
        "eigen", True, 0.1,
    )  # fmt: skip


def test_the_whole_trial_has_every_arm_with_five_seeds(tmp_path):
    for name in RECIPES:
        write_chosen(tmp_path, name, dict.fromkeys(TUNED, 3.0))
    runs = [run for stage in STAGES[:-1] for run in Trial(tmp_path, tmp_path).plan(stage)]
    keys = {(run.member, run.recipe.arm, run.recipe.run.seed) for run in runs}
    arms = [*FIRST, *OTHERS, *(f"{arm}+lr-3" for arm in TUNED)]
    assert len(arms) == 17
    assert keys == {(name, arm, seed) for name in RECIPES for arm in arms for seed in range(5)}
    assert len(runs) == len(keys) == len({(run.member, identify(run.recipe)) for run in runs})
    assert {arm.kind for arm in parse_arms(arms, [])} == {"plain", "tract", "rival"}


def test_the_last_stage_compares_units_on_the_recipes_with_sgd(tmp_path):
    runs = Trial(tmp_path, tmp_path).plan(STAGES[-1])
    recipes = ("cifar10-cpu-resnet-sgd", "cifar10-cpu-vit-sgd", "imagenette-cpu-resnet")
    assert [run.recipe.run.seed for run in runs] == sorted(run.recipe.run.seed for run in runs)
    assert {(run.member, run.recipe.data.values, run.recipe.arm, run.recipe.run.seed) for run in runs} == {
        (name_experiment(name, values), values, arm, seed)
        for name in recipes for values in VALUES for arm in UNITS for seed in range(5)
    }  # fmt: skip
    assert len(runs) == len({identify(run.recipe) for run in runs}) == 90
    for run in runs:
        own = find_experiment(run.member.removesuffix("-raw").removesuffix("-unit"))
        recipe = run.recipe
        assert run.root == tmp_path / run.member
        assert recipe.schedule.epochs == max(own.budgets)
        assert (recipe.optimizer.lr, recipe.model.start) == (own.recipe.optimizer.lr, "scaled")
        assert (recipe.tract.enabled, recipe.tract.lam) == (True, 0.1)
        assert recipe.tract.center == recipe.tract.relative == (recipe.arm == UNITS[1])
        assert recipe.tract.moment == ("float64" if recipe.data.values == "raw" else "float32")


def write_chosen(folder, name, factors):
    budget = str(max(find_experiment(name).budgets))
    (folder / name).mkdir(exist_ok=True)
    for arm, factor in factors.items():
        chosen = {budget: {"optimizer.first_layer_lr": factor}}
        content = {"experiment": name, "arm": arm, "chosen": chosen}
        (folder / name / f"tuning-{arm}.json").write_text(json.dumps(content))


def test_runs_with_a_committed_record_are_not_planned():
    runs = Trial(rivals.RESULTS).plan(STAGES[0])
    planned = {(run.member, identify(run.recipe)) for run in runs}
    names = {(run.member, run.recipe.arm, run.recipe.run.seed) for run in runs}
    assert ("cifar10-cpu-vit-sgd", "plain", 0) not in names
    for name in RECIPES:
        committed = list(read_committed(rivals.RESULTS / name))
        assert len(committed) >= 12
        assert not planned & {(name, record["recipe_id"]) for record in committed}
    assert list(read_committed(rivals.RESULTS / "none")) == []


def test_a_damaged_record_is_not_passed_over(tmp_path):
    (tmp_path / "records.jsonl").write_text("{}\n")
    with pytest.raises(TrActValueError, match="line 1 of"):
        list(read_committed(tmp_path))


def test_an_arm_of_its_own_optimizer_waits_for_its_factor(tmp_path, monkeypatch):
    trial = Trial(tmp_path / "out", tmp_path / "results", recipes=RECIPES[:2])
    stage = Stage(("plain", "foof"), (0,))
    assert [run.recipe.arm for run in trial.plan(stage)] == ["plain"] * 2
    tuned = []

    def tune(experiment, folder, jobs, display, arm):
        tuned.append((experiment.name, folder, experiment.budgets, experiment.seeds, arm.name))
        write_chosen(tmp_path, experiment.name, {"foof": 30.0})
        (folder / "tuning").mkdir(parents=True)
        file = tmp_path / experiment.name / "tuning-foof.json"
        file.rename(folder / "tuning" / file.name)

    monkeypatch.setattr(rivals, "tune", tune)
    trial.tune_missing(stage, 1, Display())
    assert tuned == [
        (name, tmp_path / "out" / name, (budget,), (0,), "foof")
        for name, budget in zip(RECIPES[:2], (4, 12), strict=True)
    ]
    trial.tune_missing(stage, 1, Display())
    assert len(tuned) == 2
    assert [run.recipe.arm for run in trial.plan(stage)] == ["plain", "foof+lr-30"] * 2


def test_data_are_taken_from_a_folder_of_data_sets(tmp_path):
    (tmp_path / "data" / "imagenette").mkdir(parents=True)
    trial = Trial(tmp_path, tmp_path, tmp_path / "data")
    folders = {run.recipe.data.name: run.recipe.data.folder for run in trial.plan(STAGES[0])}
    assert folders == {"cifar10": "", "imagenette": str(tmp_path / "data" / "imagenette")}


SMALL = """
[experiment]
title = "small"
budgets = [1, 2]
[data]
name = "photos"
train_images = 64
test_images = 16
batch_size = 32
[model]
name = "small_models:make_tiny"
[run]
device = "cpu"
"""


def test_the_trial_goes_on_where_it_stopped(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(HERE)
    recipe, out = tmp_path / "small.toml", tmp_path / "out"
    recipe.write_text(SMALL)
    monkeypatch.setattr(rivals, "RECIPES", (str(recipe),))
    monkeypatch.setattr(rivals, "STAGES", (Stage(FIRST, (0,)), Stage((*FIRST, "eigen"), (1,))))
    words = ["--out", str(out), "--recipes", str(recipe)]
    assert rivals.main([*words, "--dry-run"]) == 0
    told = capsys.readouterr().out
    assert "stage 1: 5 runs to do\n  small: plain, 2 epochs, seed 0\n" in told
    assert not out.exists()
    assert rivals.main([*words, "--stages", "1"]) == 0
    records = find_records(out / "small")
    assert {record["arm"] for record in records} == set(FIRST)
    first = capsys.readouterr().out
    assert first == "stage 1: 5 runs to do\n"
    write_records(tmp_path / "results" / "small" / RECORDS, records[:2])
    trial = Trial(out, tmp_path / "results", recipes=(str(recipe),))
    assert len(trial.plan(rivals.STAGES[0])) == 3
    assert rivals.main([*words, "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith("stage 1: 0 runs to do\nstage 2: 6 runs to do\n")
    trial.check_data(rivals.STAGES)
    record = records[0] | {"data": records[0]["data"] | {"fingerprint": "other"}}
    write_records(tmp_path / "results" / "small" / RECORDS, [record | {"seal": seal(record)}])
    with pytest.raises(DataError, match="photos is not the data set of the committed records of s"):
        trial.check_data(rivals.STAGES)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--recipes", "photos"], "tools.rivals: unknown recipe of the trial 'photos'"),
        (["--stages", "9"], "tools.rivals: unknown stage of the trial '9'"),
        (["--stages", "first"], "tools.rivals: --stages takes whole numbers"),
    ],
)
def test_an_error_is_one_line(words, message, capsys):
    assert rivals.main(words) == 2
    told = capsys.readouterr().err
    assert told.startswith(message)
    assert told.count("\n") == 1


@pytest.mark.usefixtures("usual_signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("function", ["run_all", "parse_arms"], ids=["runs", "plan"])
def test_a_signal_ends_the_trial_with_a_message(tmp_path, monkeypatch, capsys, number, function):
    """The runs themselves are saved by `run_all`; its own test shows that."""
    monkeypatch.syspath_prepend(HERE)
    recipe = tmp_path / "small.toml"
    recipe.write_text(SMALL)
    monkeypatch.setattr(rivals, "RECIPES", (str(recipe),))
    monkeypatch.setattr(rivals, function, lambda *_: os.kill(os.getpid(), number))
    before = signal.getsignal(signal.SIGTERM)
    words = ["--recipes", str(recipe), "--out", str(tmp_path / "out"), "--stages", "1"]
    assert rivals.main(words) == 128 + number
    told = capsys.readouterr().err
    assert told == "tools.rivals: interrupted; the same command continues from here.\n"
    assert signal.getsignal(signal.SIGTERM) == before
