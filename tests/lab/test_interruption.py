"""Ctrl-C and SIGTERM: the run is saved, goes on later, and ends with the same numbers."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch
from data_cases import write_folder
from lab_helpers import make_quick, start, without_times

from trainact.lab.interruption import RunInterrupted
from trainact.lab.recipe import Recipe, change_recipe
from trainact.lab.recipe_file import write_recipe
from trainact.lab.train import train

LONG = {"model__name": "small_models:make_noisy", "schedule__epochs": 30,
        "data__train_images": 640, "run__checkpoint_seconds": 1e9}  # fmt: skip


IMAGES = {"train/a": 600, "train/b": 600, "val/a": 4, "val/b": 4}


def read_by_workers(recipe: Recipe, folder: Path) -> Recipe:
    fields = {"name": str(folder), "storage": "stream", "workers": 2, "image_size": 8,
              "train_images": 0, "test_images": 0, "batch_size": 4}  # fmt: skip
    changes = {f"data.{key}": value for key, value in fields.items()}
    return change_recipe(recipe, changes | {"schedule.epochs": 4})


def ignore(event):
    del event


def interrupt(
    number: int, *command: str, alone: bool = False
) -> "subprocess.CompletedProcess[str]":
    """Start a command, send it and all its processes a signal when the first epoch is told."""
    process = start(*command, start_new_session=True)
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if "epoch 1/" in line:
            time.sleep(0.3)  # into the next one, where workers read images
            (os.kill if alone else os.killpg)(process.pid, number)
            break
    try:
        printed, said = process.communicate(timeout=600)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(command, process.returncode, printed, "".join(lines) + said)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_same_command_goes_on_where_it_was_stopped(tmp_path, number):
    recipe = make_quick(**LONG)
    if number == signal.SIGINT:  # which Ctrl-C sends to the workers that read images, too
        recipe = read_by_workers(recipe, write_folder(tmp_path / "set", IMAGES))
    write_recipe(recipe, tmp_path / "recipe.toml")
    command = ["run", str(tmp_path / "recipe.toml"), "--out", str(tmp_path / "parts")]
    done = interrupt(number, "trainact.lab", *command)
    assert done.returncode == 128 + number, done.stderr
    told = "stopping once the run is saved; a second Ctrl-C stops at once"
    assert done.stderr.count(told) == 1
    assert "interrupted; the same command goes on where it stopped" in done.stderr
    assert "Traceback" not in done.stderr
    whole = train(recipe, tmp_path / "whole", ignore)
    resumed = train(recipe, tmp_path / "parts", ignore)
    assert resumed["sessions"] == 2
    assert without_times(resumed) == without_times(whole)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_runs_side_by_side_are_all_saved_and_none_has_failed(tmp_path, number):
    write_recipe(make_quick(**LONG), tmp_path / "recipe.toml")
    more = ["--seeds", "0,1", "--jobs", "2", "--out", str(tmp_path / "out")]
    command = ["trainact.lab", "run", str(tmp_path / "recipe.toml"), *more]
    done = interrupt(number, *command, alone=number == signal.SIGTERM)
    assert done.returncode == 128 + number, done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.rglob("failure.json"))
    assert len(list(tmp_path.rglob("checkpoint-*"))) >= 1


def test_ranks_save_and_stop_together(tmp_path):
    if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
        pytest.skip("needs torch.distributed with gloo")
    write_recipe(make_quick(**LONG), tmp_path / "recipe.toml")
    run = ["-m", "trainact.lab", "run", str(tmp_path / "recipe.toml"), "--out", str(tmp_path)]
    launch = ["torch.distributed.run", "--standalone", "--nproc-per-node=2", *run]
    done = interrupt(signal.SIGTERM, *launch)
    assert done.stderr.count("stopping once the run is saved") == 1
    assert len(list(tmp_path.rglob("checkpoint-*"))) == 1
    assert not list(tmp_path.rglob("failure.json"))


def test_a_second_time_stops_at_once(tmp_path):
    def press(event):
        if event.kind == "epoch":
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt) as caught:
        train(make_quick(), tmp_path, press)
    assert not isinstance(caught.value, RunInterrupted)
    assert not list(tmp_path.rglob("checkpoint-*"))


def test_a_run_that_ends_meanwhile_has_its_record_and_the_next_does_not_begin(tmp_path):
    def press(event):
        if event.kind == "epoch" and event.epoch == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(RunInterrupted):
        train(make_quick(), tmp_path, press)
    assert list(tmp_path.rglob("record.json"))


def test_a_signal_that_is_ignored_stays_so(tmp_path):
    def press(event):
        if event.kind == "epoch":
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert train(make_quick(), tmp_path, press)["status"] == "complete"
    finally:
        signal.signal(signal.SIGINT, before)


def test_signals_are_their_own_again_after_a_run(tmp_path):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    train(make_quick(schedule__epochs=1), tmp_path, ignore)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
