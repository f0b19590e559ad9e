"""trainact run: its runs, their states and failures."""

import json

import pytest

from data_cases import write_folder
from lab_helpers import start
from result_folders import find_records
from trainact.errors import TrActValueError
from trainact.lab.analysis.answers import answer
from trainact.lab.commands.cli import main
from trainact.lab.recipes.experiment import find_experiment, name_network
from trainact.lab.records.record import clear_failure, read_failure, write_failure
from trainact.lab.running.plan import PlannedRun


def test_a_smoke_run_of_the_command_line_takes_a_folder_and_resumes(samples, tmp_path, capsys):
    words = ["run", "imagenette-cpu-vit", "--smoke", "--out", str(tmp_path),
             "--data", str(samples / "imagenette"), "--arms", "plain,tract-0.1"]  # fmt: skip
    assert main(words) == 0
    told = capsys.readouterr().out
    assert "2 runs complete, 0 diverged, 0 failed" in told
    assert f"trainact report {tmp_path / 'imagenette-cpu-vit'}\n" in told
    records = find_records(tmp_path)
    assert {r["arm"] for r in records} == {"plain", "tract-0.1"}
    assert {r["data"]["name"] for r in records} == {"imagenette"}
    assert main(words) == 0


def test_without_its_images_or_its_weights_a_recipe_says_what_to_give(tmp_path, capsys):
    out = ["--out", str(tmp_path), "--arms", "plain", "--run.precision", "no"]
    assert main(["run", "deit3-vit-s-finetune-a", *out]) == 2
    assert "imagenet is not downloaded automatically" in capsys.readouterr().err
    folder = write_folder(tmp_path / "set", {"train/a": 3, "train/b": 3, "val/a": 1, "val/b": 1})
    place = ["--data", str(folder)]
    assert main(["run", "deit3-vit-s-finetune-a", *out, *place]) == 2
    assert "the recipe is for 1000 (data.classes)" in capsys.readouterr().err
    small = ["--data.classes", "2", "--data.batch_size", "4"]
    assert main(["run", "deit3-vit-s-finetune-a", *out, *place, *small]) == 1
    assert "starts from weights that were trained in the arm 'plain'" in capsys.readouterr().err


TWO = """
[experiment]
title = "two networks"
seeds = "0"
networks = ["small_models:make_tiny", "small_models:make_noisy"]
[data]
name = "photos"
train_images = 64
test_images = 16
batch_size = 32
[schedule]
epochs = 1
[run]
device = "cpu"
"""


@pytest.fixture
def two(tmp_path) -> str:
    (tmp_path / "two.toml").write_text(TWO)
    return str(tmp_path / "two.toml")


def test_the_command_lists_networks_parts_and_what_is_wrong(capsys, tmp_path):
    base = ["run", "cifar100-table", "--dry-run", "--out", str(tmp_path)]
    assert main([*base, "--shard", "2/4"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 135
    assert main([*base, "--networks", "vgg11,resnet18", "--epochs", "133"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 10
    seven = ["--epochs", "7", "--seeds", "0", "schedule.milestones=[3]"]
    assert main([*base, *seven, "--networks", "vgg11"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2  # another budget has all arms
    for wrong, message in (
        (["--networks", "vgg12"], "unknown network of cifar100-table 'vgg12'; did you mean"),
        (["--shard", "3/2"], "--shard takes i/n"),
    ):
        assert main([*base, *wrong]) == 2
        assert message in capsys.readouterr().err
    own = ["cifar10-vit-norms", "--paper-only", "--arms", "patch-norm tract-0.1"]
    assert main(["run", *own, "--dry-run"]) == 2
    assert "has no run with these arms and budgets" in capsys.readouterr().err
    assert main(["run", "photos", "--networks", "vgg11"]) == 2
    assert "photos has one network" in capsys.readouterr().err


def test_runs_of_two_networks_are_done_apart_and_never_compared(two, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["run", two, "--out", str(out)]) == 0
    said = capsys.readouterr()
    assert "4 runs complete, 0 diverged, 0 failed" in said.out
    assert f"Report: trainact report {out}\n" in said.out
    assert "small_models-make_noisy: plain, 1 epoch, seed 0: epoch 1/1" in said.err
    folders = sorted(path.name for path in out.iterdir())
    assert folders == ["small_models-make_noisy", "small_models-make_tiny"]
    for folder in folders:
        records = find_records(out / folder)
        assert {r["model"]["name"] for r in records} == {folder.replace("-", ":", 1)}
        assert len(answer(records).runs) == 2
    with pytest.raises(TrActValueError, match=r"records of 2 networks \(small_models:make_noisy,"):
        answer(find_records(out))


@pytest.mark.slow
def test_a_failure_is_recorded_listed_tried_again_and_then_forgotten(tmp_path, capsys):
    """Here and in a process of its own; the run beside it is done all the same."""
    file, out = tmp_path / "two.toml", tmp_path / "out"
    file.write_text(TWO.replace("make_noisy", "make_broken").replace("[model]", ""))
    command = ["run", str(file), "--out", str(out), "--arms", "plain"]
    assert main(command) == 1
    said = capsys.readouterr()
    assert "1 run complete, 0 diverged, 1 failed" in said.out
    assert "failed: small_models-make_broken: plain, 1 epoch, seed 0: RuntimeError" in said.err
    [path] = out.rglob("failure.json")
    failure = json.loads(path.read_text())
    assert failure["attempts"] == 1
    assert any("shapes cannot be multiplied" in line for line in failure["trace"])
    assert main([*command, "--dry-run"]) == 0
    states = [line[:6].strip() for line in capsys.readouterr().out.splitlines()]
    assert states == ["done", "failed"]
    process = start("trainact.lab", *command, "--jobs", "2")
    process.communicate(timeout=600)
    assert process.returncode == 1
    assert json.loads(path.read_text())["attempts"] == 2
    clear_failure(path.parent)
    assert read_failure(path.parent) is None


def test_a_run_that_ends_well_forgets_its_failure(two, tmp_path, capsys):
    out = tmp_path / "out"
    command = ["run", two, "--out", str(out), "--arms", "plain"]
    experiment = find_experiment(two)
    [run, _] = [
        PlannedRun(recipe, out / name_network(recipe.model.name))
        for recipe in experiment.plan()
        if recipe.run.arm == "plain"
    ]
    write_failure(run.folder.path, "the power went")
    assert main([*command, "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith("failed small_models-make_tiny")
    assert main(command) == 0
    assert read_failure(run.folder.path) is None


@pytest.mark.slow
def test_two_small_networks_of_the_table_take_their_smoke_steps(tmp_path, capsys):
    command = ["run", "cifar100-table", "--smoke", "--networks", "squeezenet,shufflenetv2"]
    assert main([*command, "--out", str(tmp_path), "run.device=cpu"]) == 0
    assert "4 runs complete" in capsys.readouterr().out
    records = find_records(tmp_path / "cifar100-table" / "squeezenet")
    assert {r["kind"] for r in records} == {"smoke"}
    assert all(r["epochs"][0]["train_seen"] == 8 for r in records)
    assert not list(tmp_path.rglob("weights.safetensors"))
