"""The training loop: pairs, resume, averages, accumulation, damage, divergence."""

import json
import math
import random
import signal
import time

import pytest
import safetensors.torch
import torch

from data_cases import write_folder
from lab_helpers import (
    InterruptedRunError,
    ignore,
    make_quick,
    start,
    stop_after,
    without_times,
)
from result_folders import find_records
from slow_cases import mark_slow
from trainact.lab.files import StorageError
from trainact.lab.recipes.recipe import change_recipe, read_recipe, write_recipe
from trainact.lab.records.record import RunFolder, list_environments, read_record
from trainact.lab.training import train as train_module
from trainact.lab.training.train import train

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_run_learns_and_its_record_is_complete(tmp_path):
    recipe = make_quick(schedule__epochs=6)
    record = train(recipe, tmp_path, ignore)
    folder = RunFolder(tmp_path, recipe)
    assert record["status"] == "complete"
    assert record["kind"] == "full"
    assert len(record["epochs"]) == 6
    first, last = record["epochs"][0], record["epochs"][-1]
    assert last["train_loss"] < first["train_loss"]
    assert last["train_seen"] == 320
    assert last["test_seen"] == 80
    assert 0 < last["first_layer_grad_norm"] < last["grad_norm"]
    assert {"commit", "clean", "processor", "threads"} <= set(record["environment"])
    assert read_record(folder.record_path) == record | {
        "seal": json.loads(folder.record_path.read_text())["seal"]
    }
    weights = safetensors.torch.load_file(folder.weights_path)
    assert sorted(weights) == sorted(["0.weight", "0.bias", "4.weight", "4.bias"])
    assert not list(folder.path.glob("checkpoint*"))


def test_a_record_says_how_its_data_differ_from_the_published_set(tmp_path):
    counts = {f"{part}/{name}": 4 for part in ("train", "test") for name in "ab"}
    place = {"data__folder": str(write_folder(tmp_path / "set", counts)), "data__batch_size": 4}
    place |= {"data__train_images": 0, "data__test_images": 0, "schedule__epochs": 1}
    events = []
    record = train(make_quick(data__name="stanford_cars", **place), tmp_path, events.append)
    first = events[0]
    assert (first.kind, first.text[:43]) == ("note", "stanford_cars has 8 training images (publis")
    difference = record["data"]["difference"]
    assert difference.startswith("8 training images (published: 8,144), 8 test images (published")
    assert difference in first.text
    assert "difference" not in train(make_quick(schedule__epochs=1), tmp_path, ignore)["data"]


def test_a_pair_differs_in_one_field_and_shares_weights_and_batches(tmp_path):
    tract = make_quick()
    plain = change_recipe(tract, {"tract.enabled": False})
    records = [train(recipe, tmp_path, ignore) for recipe in (plain, tract)]
    assert records[0]["model"]["initial_weights"] == records[1]["model"]["initial_weights"]
    assert records[0]["order"] == records[1]["order"]
    assert records[0]["epochs"] != records[1]["epochs"]
    different = [
        (table, key)
        for table, row in records[0]["recipe"].items()
        for key in row
        if row[key] != records[1]["recipe"][table][key]
    ]
    assert different == [("tract", "enabled")]


def test_the_seed_changes_weights_and_order(tmp_path):
    a, b = (train(make_quick(run__seed=seed), tmp_path, ignore) for seed in (0, 1))
    assert a["model"]["initial_weights"] != b["model"]["initial_weights"]
    assert a["order"] != b["order"]


@pytest.mark.parametrize(
    "changes",
    mark_slow([
        {},
        {"model__name": "small_models:make_noisy", "run__ema": 0.9},
        {"optimizer__name": "adam", "optimizer__lr": 1e-3, "run__accumulation": 2},
        {"optimizer__name": "adam", "optimizer__lr": 1e-3, "optimizer__first_layer_name": "sgd"},
        {"run__precision": "bf16", "optimizer__clip_norm": 0.5},
        {
            "data__storage": "stream",
            "data__image_size": 24,
            "data__crop": "resized",
            "data__policy": "rand-augment",
            "data__mixup": 0.8,
            "data__cutmix": 1.0,
            "data__repeats": 3,
            "optimizer__name": "lamb",
            "optimizer__lr": 4e-3,
            "optimizer__loss": "binary",
            "optimizer__decay_vectors": False,
        },
        {
            "model__name": "lab:speed",
            "model__arguments": {"widths": [24, 24, 24]},
            "data__batch_size": 24,
            "data__drop_last": True,
            "data__flip_order": "alternating",
            "data__crop_fill": "reflect",
            "data__crop_padding": 2,
            "data__test_views": True,
            "optimizer__units": "decoupled",
            "optimizer__lr": 11.5,
            "optimizer__weight_decay": 0.0153,
            "optimizer__momentum": 0.85,
            "optimizer__nesterov": True,
            "optimizer__reduction": "sum",
            "optimizer__label_smoothing": 0.2,
            "optimizer__norm_bias_lr": 64.0,
            "optimizer__lookahead_steps": 3,
            "schedule__name": "triangle",
        },
        {"tract__enabled": False, "optimizer__first_layer_rule": "mac"},
        {
            "tract__enabled": False,
            "optimizer__first_layer_rule": "norm-preserving",
            "optimizer__body": "muon",
            "model__name": "small_models:make_deep",
            "run__ema": 0.9,
        },
        {"tract__enabled": False, "optimizer__first_layer_name": "foof", "run__accumulation": 2},
        {"tract__enabled": False, "optimizer__first_layer_name": "asgo"},
        {"tract__enabled": False, "optimizer__first_layer_name": "muon"},
        {
            "tract__center": True,
            "tract__relative": True,
            "tract__moment_decay": 0.9,
            "run__accumulation": 2,
        },
    ]),
    ids=["sgd", "dropout-ema", "adam-accumulation", "two-optimizers", "bf16-clip", "deit", "speed", "mac",
         "muon-body", "foof", "asgo", "muon-stem", "average"],
)  # fmt: skip
def test_an_interrupted_run_ends_with_the_same_numbers(tmp_path, monkeypatch, changes):
    monkeypatch.setattr(train_module, "REPORT_EVERY", 4)
    recipe = make_quick(**changes)
    whole = train(recipe, tmp_path / "whole", ignore)
    for looks in ([2], [4], [1]):
        with pytest.raises(InterruptedRunError):
            train(recipe, tmp_path / "parts", stop_after(looks))
    resumed = train(recipe, tmp_path / "parts", ignore)
    assert resumed["sessions"] > 1
    assert without_times(resumed) == without_times(whole)
    weights = [
        safetensors.torch.load_file(RunFolder(tmp_path / part, recipe).weights_path)
        for part in ("whole", "parts")
    ]
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])


def test_a_finished_run_is_not_run_again(tmp_path):
    recipe = make_quick(schedule__epochs=1)
    first = train(recipe, tmp_path, ignore)
    events = []
    again = train(recipe, tmp_path, events.append)
    assert [event.kind for event in events] == ["end"]
    assert again["environment"]["date"] == first["environment"]["date"]


@pytest.mark.slow
def test_a_finished_run_without_its_weights_says_so(tmp_path):
    recipe, events = make_quick(schedule__epochs=1), []
    train(change_recipe(recipe, {"run.keep_weights": False}), tmp_path, ignore)
    train(recipe, tmp_path, events.append)
    (note,) = [event.text for event in events if event.kind == "note"]
    path = RunFolder(tmp_path, recipe).path
    assert note == f"finished without its weights; remove {path} to train it again"


def test_a_record_names_the_code_with_which_the_run_started(tmp_path, monkeypatch):
    commit = ["first"]
    monkeypatch.setattr(train_module, "describe_environment", lambda device: {"commit": commit[0]})

    def change(event):
        commit[0] = "second" if event.kind == "epoch" else commit[0]

    record = train(make_quick(schedule__epochs=1), tmp_path, change)
    assert commit == ["second"]
    assert record["environment"]["commit"] == "first"
    assert record["earlier_environments"] == []


def test_a_record_names_the_environment_of_every_session(tmp_path, monkeypatch):
    commits = iter(["first", "second"])
    monkeypatch.setattr(
        train_module, "describe_environment", lambda device: {"commit": next(commits)}
    )
    recipe = make_quick(schedule__epochs=1)
    with pytest.raises(InterruptedRunError):
        train(recipe, tmp_path, stop_after([1]))
    record = train(recipe, tmp_path, ignore)
    found = [(row["commit"], row["ranks"]) for row in list_environments(record)]
    assert found == [("first", 1), ("second", 1)]
    assert record["environment"]["commit"] == "second"


def test_the_saved_recipe_runs_again_from_its_file(tmp_path):
    recipe = make_quick(schedule__epochs=1)
    record = train(recipe, tmp_path / "a", ignore)
    saved = read_recipe(RunFolder(tmp_path / "a", recipe).path / "recipe.toml")
    assert saved == recipe
    assert without_times(train(saved, tmp_path / "b", ignore)) == without_times(record)


@pytest.mark.slow
def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_is_used(tmp_path, monkeypatch):
    monkeypatch.setattr(train_module, "REPORT_EVERY", 4)
    recipe = make_quick()
    whole = train(recipe, tmp_path / "whole", ignore)
    with pytest.raises(InterruptedRunError):
        train(recipe, tmp_path, stop_after([5]))
    folder = RunFolder(tmp_path, recipe).path
    older, newest = sorted(folder.glob("checkpoint-*"))
    content = bytearray(newest.read_bytes())
    content[-3] ^= 1
    newest.write_bytes(content)
    notes = []
    resumed = train(recipe, tmp_path, notes.append)
    texts = [event.text for event in notes if event.kind == "note"]
    assert any("is damaged" in text and "not used" in text for text in texts)
    assert any(text.startswith("resumed in epoch") for text in texts)
    assert without_times(resumed) == without_times(whole)
    assert list(folder.glob("*.damaged-1"))
    assert older.exists() is False


@pytest.mark.parametrize("damage", mark_slow(["truncated", "edited", "other"]))
def test_a_damaged_record_is_set_aside_and_the_run_done_again(tmp_path, damage):
    recipe = make_quick(schedule__epochs=1)
    record = train(recipe, tmp_path, ignore)
    path = RunFolder(tmp_path, recipe).record_path
    text = path.read_text()
    if damage == "truncated":
        path.write_text(text[: len(text) // 2])
    elif damage == "edited":
        path.write_text(text.replace('"test_seen": 80', '"test_seen": 40'))
    else:
        other = train(make_quick(schedule__epochs=1, run__seed=5), tmp_path, ignore)
        del other
        path.write_text(
            RunFolder(tmp_path, make_quick(schedule__epochs=1, run__seed=5)).record_path.read_text()
        )
    notes = []
    again = train(recipe, tmp_path, notes.append)
    assert any("it is kept as record.json.damaged-1" in event.text for event in notes)
    assert path.with_name("record.json.damaged-1").exists()
    assert without_times(again) == without_times(record)


def test_a_loss_that_is_nan_ends_the_run_and_is_recorded(tmp_path):
    recipe = make_quick(model__name="small_models:Overflowing")
    record = train(recipe, tmp_path, ignore)
    assert record["status"] == "diverged"
    assert "the loss became nan in epoch 1" in record["failure"]
    assert "smaller optimizer.lr" in record["failure"]
    assert not RunFolder(tmp_path, recipe).weights_path.exists()
    assert find_records(tmp_path)[0]["failure"] == record["failure"]


def test_a_full_disk_is_an_error_that_keeps_what_was_there(tmp_path, monkeypatch):
    import errno
    import os

    recipe = make_quick()
    with pytest.raises(InterruptedRunError):
        train(recipe, tmp_path, stop_after([2]))
    folder = RunFolder(tmp_path, recipe).path
    before = {path.name: path.read_bytes() for path in folder.glob("checkpoint-*")}
    real = os.fsync

    def fail(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StorageError, match=r"the disk is full.*the same command again"):
        train(recipe, tmp_path, ignore)
    monkeypatch.setattr(os, "fsync", real)
    assert {path.name: path.read_bytes() for path in folder.glob("checkpoint-*")} == before
    assert not list(folder.glob(".*"))
    assert train(recipe, tmp_path, ignore)["status"] == "complete"


def test_micro_batches_give_the_gradient_of_the_batch(tmp_path):
    """Also with TrAct, whose second moment is then that of the whole batch."""
    whole = train(make_quick(), tmp_path, ignore)
    parts = train(make_quick(run__accumulation=4), tmp_path, ignore)
    for a, b in zip(whole["epochs"], parts["epochs"], strict=True):
        assert math.isclose(a["train_loss"], b["train_loss"], rel_tol=1e-4)
        assert math.isclose(a["first_layer_grad_norm"], b["first_layer_grad_norm"], rel_tol=1e-3)


def test_a_first_layer_rate_is_the_same_as_a_larger_gradient_under_sgd(tmp_path):
    """Plain SGD without momentum: only the first layer's parameters move otherwise."""
    base = {"tract__enabled": False, "optimizer__momentum": 0.0, "schedule__epochs": 1,
            "data__train_images": 32}  # fmt: skip
    recipes = [make_quick(**base), make_quick(**base, optimizer__first_layer_lr=10.0)]
    saved = []
    for recipe in recipes:
        train(recipe, tmp_path, ignore)
        saved.append(safetensors.torch.load_file(RunFolder(tmp_path, recipe).weights_path))
    assert not torch.equal(saved[0]["0.weight"], saved[1]["0.weight"])
    assert torch.equal(saved[0]["4.weight"], saved[1]["4.weight"])


@pytest.mark.parametrize(
    "changes",
    [{}, {"tract__enabled": False, "optimizer__first_layer_name": "foof"}],
    ids=["tract", "foof"],
)
@pytest.mark.slow
def test_compiled_training_agrees_with_eager(tmp_path, changes):
    eager = train(make_quick(schedule__epochs=1, **changes), tmp_path, ignore)
    compiled = train(make_quick(schedule__epochs=1, run__compile=True, **changes), tmp_path, ignore)
    a, b = (record["epochs"][0]["train_loss"] for record in (eager, compiled))
    assert math.isclose(a, b, rel_tol=1e-4)


@pytest.mark.slow
def test_killed_at_random_moments_the_command_ends_with_the_same_numbers(tmp_path):
    """kill -9, several times, then the same command: bit for bit what one run gives.

    Also with a start of the first layer, and an average that TrAct keeps from step to step.
    """
    recipe = make_quick(model__name="small_models:make_noisy", schedule__epochs=60,
                        data__train_images=640, model__start="eigen", tract__center=True,
                        tract__moment_decay=0.9)  # fmt: skip
    whole = train(recipe, tmp_path / "whole", ignore)
    file = tmp_path / "recipe.toml"
    write_recipe(recipe, file)
    draw, killed = random.Random(0), 0
    for _ in range(3):
        process = start("trainact.lab.running.runner", str(file), str(tmp_path / "parts"))
        assert process.stdout is not None
        events = (line for line in process.stdout if '"step"' in line or '"epoch"' in line)
        for _ in range(draw.randint(1, 9)):  # of 120 events
            next(events, None)
        time.sleep(draw.uniform(0, 0.02))
        process.kill()
        process.communicate()
        killed += process.returncode == -signal.SIGKILL
    assert killed
    resumed = train(recipe, tmp_path / "parts", ignore)
    assert resumed["sessions"] >= 2
    assert without_times(resumed) == without_times(whole)


@pytest.mark.slow
def test_two_processes_do_the_same_run_once(tmp_path):
    recipe = make_quick(schedule__epochs=20)
    file = tmp_path / "recipe.toml"
    write_recipe(recipe, file)
    both = [
        start("trainact.lab.running.runner", str(file), str(tmp_path / "runs")) for _ in range(2)
    ]
    outputs = [process.communicate(timeout=600)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    trained = [output.count('"kind": "epoch"') for output in outputs]
    assert sorted(trained) == [0, 20]
    assert len(find_records(tmp_path)) == 1


@pytest.mark.slow
def test_ranks_do_not_wait_for_a_run_that_another_process_does(tmp_path):
    one, other = (RunFolder(tmp_path, make_quick()) for _ in range(2))
    refused = pytest.raises(StorageError, match="another process is doing the run in")
    with one.hold(ignore), refused, other.hold(ignore, ranks=2):
        pass


def test_smoke_runs_have_another_folder_and_kind(tmp_path):
    smoke, full = make_quick(run__smoke=True), make_quick()
    assert train(smoke, tmp_path, ignore)["kind"] == "smoke"
    assert RunFolder(tmp_path, smoke).path.parent.name == "smoke"
    assert RunFolder(tmp_path, full).path.parent.name == "runs"
