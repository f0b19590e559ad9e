"""A run that two experiments share is done once; the other takes its files."""

import json
import os

import pytest

from data_cases import write_folder
from lab_helpers import HERE, ignore, make_quick
from trainact.lab.commands.cli import main
from trainact.lab.data import load_data
from trainact.lab.recipes.experiment import find_experiment, list_experiments
from trainact.lab.recipes.recipe import change_recipe, identify
from trainact.lab.records.checkpoint import save_checkpoint
from trainact.lab.records.record import read_record
from trainact.lab.running import runner
from trainact.lab.running.display import Display, Lines
from trainact.lab.running.finished import find_copies, take_finished
from trainact.lab.running.plan import PlannedRun, Shard
from trainact.lab.running.runner import run_all
from trainact.lab.training.train import train

FILES = ["recipe.toml", "record.json", "weights.safetensors"]


@pytest.fixture
def first(tmp_path):
    """A finished run of another experiment."""
    run = PlannedRun(make_quick(schedule__epochs=1), tmp_path / "first")
    train(run.recipe, run.root, ignore)
    return run


def list_files(run):
    return sorted(p.name for p in run.folder.path.iterdir() if p.name != "run.lock")


def test_a_finished_run_is_linked_not_trained(first, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(runner, "train", train_nothing_new(runner.train))
    # fields without an effect may differ
    again = change_recipe(first.recipe, {"run.checkpoint_seconds": 5, "run.keep_weights": False})
    second = PlannedRun(again, tmp_path / "second")
    [result] = run_all([second], 1, Lines(), [tmp_path])
    assert result.failure is None
    assert result.record == first.find_record()
    assert (
        f"taken from {first.folder.path}, where the same run has ended" in capsys.readouterr().err
    )
    assert list_files(second) == FILES
    for name in FILES:
        assert os.path.samefile(second.folder.path / name, first.folder.path / name)


def train_nothing_new(train):
    def check(recipe, root, report, load):
        assert PlannedRun(recipe, root).find_record() is not None, "the run is trained"
        return train(recipe, root, report, load)

    return check


def test_without_folders_to_look_in_the_run_is_done(first, tmp_path):
    second = PlannedRun(first.recipe, tmp_path / "second")
    [result] = run_all([second], 1, Display())
    assert result.record["seconds"] != first.find_record()["seconds"]


def test_on_another_disk_the_files_are_copied(first, tmp_path, monkeypatch):
    def refuse(*paths):
        raise OSError("another device")

    monkeypatch.setattr(os, "link", refuse)
    second = PlannedRun(first.recipe, tmp_path / "second")
    assert take_finished(second, [tmp_path], load_data, ignore)
    for name in FILES:
        one, other = (run.folder.path / name for run in (first, second))
        assert one.read_bytes() == other.read_bytes()
        assert not os.path.samefile(one, other)


def test_a_run_of_a_table_of_networks_and_a_smoke_run_are_found(first, tmp_path):
    deep = PlannedRun(first.recipe, tmp_path / "table" / "network")
    assert list(find_copies(deep, [tmp_path])) == [first.folder.path]
    first.root.rename(tmp_path / "table")
    moved = PlannedRun(first.recipe, tmp_path / "table")
    (tmp_path / "outer").mkdir()
    (tmp_path / "table").rename(tmp_path / "outer" / "table")
    moved = moved._replace(root=tmp_path / "outer" / "table")
    other = PlannedRun(first.recipe, tmp_path / "other")
    assert list(find_copies(other, [tmp_path])) == [moved.folder.path]
    smoke = PlannedRun(change_recipe(first.recipe, {"run.smoke": True}), tmp_path / "other")
    assert list(find_copies(smoke, [tmp_path])) == []  # it is another recipe


def test_brackets_in_the_name_of_an_arm_are_not_a_pattern(tmp_path):
    recipe = make_quick(schedule__epochs=1, run__arm="[0,1] plain")
    one, other = (PlannedRun(recipe, tmp_path / name) for name in ("one", "other"))
    train(one.recipe, one.root, ignore)
    assert list(find_copies(other, [tmp_path])) == [one.folder.path]


def test_an_edited_record_is_not_taken(first, tmp_path):
    record = json.loads(first.folder.record_path.read_text())
    record["epochs"][0]["test_correct"] += 1
    first.folder.record_path.write_text(json.dumps(record))
    second, notes = PlannedRun(first.recipe, tmp_path / "second"), []
    assert not take_finished(second, [tmp_path], load_data, notes.append)
    assert len(notes) == 1
    assert "is not taken" in notes[0]
    assert "its seal does not fit" in notes[0]
    assert not second.folder.record_path.exists()


def test_a_record_of_other_data_is_not_taken(tmp_path):
    counts = {f"{part}/{name}": 8 for part in ("train", "test") for name in "ab"}
    folder = write_folder(tmp_path / "set", counts)
    recipe = make_quick(
        data__name=str(folder), data__train_images=0, data__test_images=0, data__batch_size=4,
        schedule__epochs=1,
    )  # fmt: skip
    one, other = (PlannedRun(recipe, tmp_path / "out" / name) for name in ("one", "other"))
    train(one.recipe, one.root, ignore)
    assert take_finished(other, [tmp_path / "out"], load_data, ignore)
    third, notes = PlannedRun(recipe, tmp_path / "out" / "third"), []
    next((folder / "train" / "a").iterdir()).unlink()
    assert not take_finished(third, [tmp_path / "out"], load_data, notes.append)
    assert len(notes) == 2
    assert all("is not the data set that this run started with" in text for text in notes)


def test_an_unfinished_run_here_gives_way_to_a_finished_one_elsewhere(first, tmp_path):
    second = PlannedRun(first.recipe, tmp_path / "second")
    second.folder.path.mkdir(parents=True)
    save_checkpoint(second.folder.path, 1, {"step": 1})
    (second.folder.path / "failure.json").write_text("{}")
    assert take_finished(second, [tmp_path], load_data, ignore)
    assert list_files(second) == FILES
    assert not take_finished(second, [tmp_path], load_data, pytest.fail)  # it has its record now


def test_a_run_that_another_process_is_doing_here_is_left_to_it(first, tmp_path):
    second = PlannedRun(first.recipe, tmp_path / "second")
    with second.folder.hold(pytest.fail):
        assert not take_finished(second, [tmp_path], load_data, ignore)
    assert not second.folder.record_path.exists()


@pytest.mark.slow
def test_of_two_processes_side_by_side_one_does_a_shared_run(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]))
    recipes = [make_quick(schedule__epochs=1, run__seed=seed) for seed in (0, 1)]
    runs = [
        PlannedRun(recipe, tmp_path / name, name) for recipe in recipes for name in ("one", "other")
    ]
    results = run_all(runs, 2, Display(), [tmp_path])
    assert [result.failure for result in results] == [None] * 4
    seals = [read_record(run.folder.record_path)["seal"] for run in runs]
    assert seals[0] == seals[1] != seals[2] == seals[3]


def test_shards_keep_a_shared_run_together(tmp_path):
    experiments = [find_experiment(n) for n in ("cifar10-vit", "cifar10-vit-norms")]
    runs = [
        PlannedRun(recipe, tmp_path / one.name, one.name)
        for one in experiments
        for recipe in one.plan()
    ]
    shards = [Shard(number, 7).choose(runs) for number in range(1, 8)]
    assert sorted(run.name for shard in shards for run in shard) == sorted(r.name for r in runs)
    places = [{run.folder.identity for run in shard} for shard in shards]
    assert sum(map(len, places)) == len({run.folder.identity for run in runs}) == 160


def test_runs_that_recipes_share_have_the_same_arm():
    """Else the folder of a shared run would have another name, and it would be done twice."""
    names: dict[str, set[str]] = {}
    for name in list_experiments():
        for recipe in find_experiment(name).plan():
            names.setdefault(identify(recipe), set()).add(recipe.arm)
    assert all(len(arms) == 1 for arms in names.values())


OWN = """
[experiment]
title = "with an arm of our own"
seeds = "0"
own_arms = ["wide"]
[experiment.extra_arms.wide]
"model.arguments.width" = 16
[data]
name = "photos"
train_images = 64
test_images = 16
batch_size = 32
[model]
name = "small_models:make_tiny"
[schedule]
epochs = 1
[run]
device = "cpu"
"""


def test_the_command_takes_runs_from_below_out_and_from_other_folders(tmp_path, capsys):
    (tmp_path / "own.toml").write_text(OWN)
    words = ["run", str(tmp_path / "own.toml"), "--paper-only"]
    assert main([*words, "--out", str(tmp_path / "a" / "one")]) == 0
    assert "2 runs complete" in capsys.readouterr().out
    assert main([*words, "--out", str(tmp_path / "b")]) == 0
    assert "taken from" not in capsys.readouterr().err
    more = ["--finished-in", str(tmp_path / "a"), "--out", str(tmp_path / "c")]
    assert main([*words, *more]) == 0
    assert capsys.readouterr().err.count("taken from") == 2
    assert main([*words, "--finished-in", str(tmp_path / "nowhere")]) == 2
    assert "--finished-in takes a folder of runs" in capsys.readouterr().err


def test_a_run_whose_time_is_the_result_is_not_taken_but_may_be(first, tmp_path):
    """The other may have shared the machine; nothing is wrong with its accuracy."""
    timed = PlannedRun(first.recipe, tmp_path / "timed", timed=True)
    assert not take_finished(timed, [tmp_path], load_data, pytest.fail)
    train(timed.recipe, timed.root, ignore)
    third = PlannedRun(first.recipe, tmp_path / "third")
    assert timed.folder.path in find_copies(third, [tmp_path])


@pytest.mark.slow
def test_a_recipe_whose_times_are_the_result_refuses_runs_side_by_side(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]))
    for name, head in (("own", OWN), ("timed", OWN.replace("[experiment]", TIMED, 1))):
        (tmp_path / f"{name}.toml").write_text(head)
    common = ["--paper-only", "--finished-in", str(tmp_path), "--out"]
    assert main(["run", str(tmp_path / "own.toml"), *common, str(tmp_path / "one")]) == 0
    words = ["run", str(tmp_path / "timed.toml"), *common, str(tmp_path / "other")]
    capsys.readouterr()
    for together in (["--jobs", "2"], ["--on", "ray"]):
        assert main([*words, *together]) == 2
        assert "need the machine to themselves: leave out --jobs and" in capsys.readouterr().err
    assert main([*words, "--dry-run"]) == 0
    assert capsys.readouterr().out.count("to do") == 2
    assert main([*words, "--smoke", "--jobs", "2"]) == 0
    assert main(words) == 0
    assert "taken from" not in capsys.readouterr().err


TIMED = "[experiment]\ntimed = true"


def test_a_dry_run_shows_what_will_be_taken_and_does_not_count_its_time(tmp_path, capsys):
    (tmp_path / "own.toml").write_text(OWN)
    words = ["run", str(tmp_path / "own.toml"), "--finished-in", str(tmp_path), "--out"]
    assert main([*words, str(tmp_path / "one"), "--paper-only"]) == 0
    capsys.readouterr()
    assert main([*words, str(tmp_path / "other"), "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[:6].strip() for line in lines] == ["found", "found", "to do"]
    [place] = (tmp_path / "one").glob("*/plain-*")
    assert lines[0].endswith(f"  {place}")


def test_our_own_arms_are_left_out_with_one_option(tmp_path, capsys):
    (tmp_path / "own.toml").write_text(OWN)
    words = ["run", str(tmp_path / "own.toml"), "--dry-run", "--out", str(tmp_path)]
    assert main(words) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert main([*words, "--paper-only"]) == 0
    assert "wide" not in capsys.readouterr().out
    (tmp_path / "own.toml").write_text(OWN.replace('["wide"]', '["wild"]'))
    assert main(words) == 2
    assert "experiment.own_arms 'wild'; did you mean 'wide'" in capsys.readouterr().err


def test_the_papers_figures_and_tables_keep_their_arms():
    own = {
        name: set(find_experiment(name).own_arms)
        for name in list_experiments()
        if find_experiment(name).own_arms
    }
    transfer = {name for name in list_experiments() if name.startswith("transfer-")}
    assert set(own) == transfer | {"cifar10-vit-norms", "cifar10-resnet18-adam-sgd"}
    assert own["cifar10-vit-norms"] == {"patch-norm tract-0.1", "dual-patch-norm tract-0.1"}
    assert own["cifar10-resnet18-adam-sgd"] == {"sgd-first plain"}
    assert all(own[name] == {"plain then tract", "tract then plain"} for name in transfer)
