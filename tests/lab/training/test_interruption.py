"""Ctrl-C and SIGTERM: the run is saved, can be resumed, and ends with the same numbers."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch

from data_cases import write_folder
from lab_helpers import make_quick, start, without_times
from trainact.lab.files import write_atomically
from trainact.lab.recipes.recipe import Recipe, change_recipe, write_recipe
from trainact.lab.records.record import RunFolder, write_failure
from trainact.lab.training import interruption
from trainact.lab.training import train as train_module
from trainact.lab.training.interruption import STOPPING, RunInterrupted
from trainact.lab.training.session import Session
from trainact.lab.training.train import train

pytestmark = pytest.mark.usefixtures("usual_signals")

LONG = {"model__name": "small_models:make_noisy", "schedule__epochs": 30,
        "data__train_images": 640, "run__checkpoint_seconds": 1e9}  # fmt: skip


ENDLESS = LONG | {"schedule__epochs": 5000}
CODES = [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, 128 + signal.SIGTERM)]
IMAGES = {"train/a": 300, "train/b": 300, "val/a": 4, "val/b": 4}


def read_by_workers(recipe: Recipe, folder: Path) -> Recipe:
    fields = {"name": str(folder), "storage": "stream", "workers": 2, "image_size": 8,
              "train_images": 0, "test_images": 0, "batch_size": 4}  # fmt: skip
    changes = {f"data.{key}": value for key, value in fields.items()}
    return change_recipe(recipe, changes | {"schedule.epochs": 4})


def ignore(event):
    del event


def interrupt(
    number: int, *command: str, runs: int = 1, alone: bool = False
) -> "subprocess.CompletedProcess[str]":
    """Start a command and signal all its processes when ``runs`` runs have done an epoch."""
    process = start(*command, start_new_session=True)
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if sum("epoch 1/" in line for line in lines) == runs:
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
@pytest.mark.parametrize(("number", "code"), CODES)
@pytest.mark.slow
def test_the_same_command_resumes_the_run(tmp_path, number, code):
    recipe = read_by_workers(make_quick(**LONG), write_folder(tmp_path / "set", IMAGES))
    write_recipe(recipe, tmp_path / "recipe.toml")
    command = ["run", str(tmp_path / "recipe.toml"), "--out", str(tmp_path / "parts")]
    done = interrupt(number, "trainact.lab", *command)
    assert done.returncode == code, done.stderr
    message = f"{STOPPING}; a second Ctrl-C stops at once"
    assert done.stderr.count(message) == 1
    assert "interrupted; the same command continues from here" in done.stderr
    assert "Traceback" not in done.stderr
    whole = train(recipe, tmp_path / "whole", ignore)
    resumed = train(recipe, tmp_path / "parts", ignore)
    assert resumed["sessions"] == 2
    assert without_times(resumed) == without_times(whole)


@pytest.mark.parametrize(("number", "code"), CODES)
@pytest.mark.slow
def test_runs_side_by_side_are_all_saved_and_none_has_failed(tmp_path, number, code):
    write_recipe(make_quick(**ENDLESS), tmp_path / "recipe.toml")
    more = ["--seeds", "0,1", "--jobs", "2", "--out", str(tmp_path / "out")]
    command = ["trainact.lab", "run", str(tmp_path / "recipe.toml"), *more]
    done = interrupt(number, *command, runs=2, alone=number == signal.SIGTERM)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert STOPPING in done.stderr
    assert not list(tmp_path.rglob("failure.json"))
    assert len({path.parent for path in tmp_path.rglob("checkpoint-*")}) == 2


@pytest.mark.slow
def test_ranks_save_and_stop_together(tmp_path):
    if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
        pytest.skip("needs torch.distributed with gloo")
    write_recipe(make_quick(**ENDLESS), tmp_path / "recipe.toml")
    run = ["-m", "trainact.lab", "run", str(tmp_path / "recipe.toml"), "--out", str(tmp_path)]
    launch = ["torch.distributed.run", "--standalone", "--nproc-per-node=2", *run]
    done = interrupt(signal.SIGTERM, *launch)
    assert done.stderr.count(STOPPING) == 1
    assert "a second Ctrl-C" not in done.stderr
    assert len(list(tmp_path.rglob("checkpoint-*"))) == 1
    assert not list(tmp_path.rglob("failure.json"))


def press_at(kind: str, epoch: int, times: int = 1):
    def press(event):
        if (event.kind, event.epoch) == (kind, epoch):
            for _ in range(times):
                os.kill(os.getpid(), signal.SIGINT)

    return press


@pytest.mark.usefixtures("one_thread")
def test_a_signal_between_an_epoch_and_its_evaluation_loses_nothing(tmp_path, monkeypatch):
    recipe = make_quick(model__name="small_models:make_noisy", run__checkpoint_seconds=1e9)
    whole = train(recipe, tmp_path / "whole", ignore)
    monkeypatch.setattr(train_module, "REPORT_EVERY", 10)  # the steps of an epoch
    with pytest.raises(RunInterrupted):
        train(recipe, tmp_path / "parts", press_at("step", 1))
    [checkpoint] = tmp_path.rglob("checkpoint-*")
    assert "checkpoint-000000021-" in checkpoint.name
    resumed = train(recipe, tmp_path / "parts", ignore)
    assert resumed["sessions"] == 2
    assert without_times(resumed) == without_times(whole)


def test_an_error_that_the_signal_caused_is_no_failure_and_is_shown(tmp_path, monkeypatch):
    events = []

    def break_down(session):
        os.kill(os.getpid(), signal.SIGTERM)
        raise RuntimeError("a worker was killed")

    monkeypatch.setattr(Session, "evaluate", break_down)
    with pytest.raises(RunInterrupted) as caught:
        train(make_quick(), tmp_path, events.append)
    assert isinstance(caught.value.__context__, RuntimeError)
    assert [event.text for event in events if event.kind == "note"] == [
        "an error came after the signal: RuntimeError: a worker was killed"
    ]


def test_a_signal_stops_the_run_without_a_standard_error(tmp_path, monkeypatch):
    monkeypatch.setattr(interruption, "STDERR", 999)
    with pytest.raises(RunInterrupted):
        train(make_quick(), tmp_path, press_at("epoch", 1))
    assert list(tmp_path.rglob("checkpoint-*"))


@pytest.mark.slow
def test_a_second_ctrl_c_stops_at_once(tmp_path):
    with pytest.raises(KeyboardInterrupt) as caught:
        train(make_quick(run__checkpoint_seconds=1e9), tmp_path, press_at("epoch", 1, times=2))
    assert not isinstance(caught.value, RunInterrupted)
    assert not list(tmp_path.rglob("checkpoint-*"))


def test_a_run_that_ends_first_writes_its_record_and_the_next_does_not_start(tmp_path):
    recipe, kinds = make_quick(), []
    folder = RunFolder(tmp_path, recipe).path
    write_failure(folder, "of yesterday")

    def press(event):
        press_at("epoch", 3)(event)
        kinds.append(event.kind)

    with pytest.raises(RunInterrupted):
        train(recipe, tmp_path, press)
    assert kinds[-1] == "end"
    assert (folder / "record.json").exists()
    assert not (folder / "failure.json").exists()


def test_a_file_that_is_being_written_leaves_no_part(tmp_path, monkeypatch):
    def interrupt_writing(descriptor):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt_writing)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "file", b"content")
    assert not list(tmp_path.iterdir())


def test_a_signal_that_is_ignored_stays_so(tmp_path):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert train(make_quick(), tmp_path, press_at("epoch", 1))["status"] == "complete"
    finally:
        signal.signal(signal.SIGINT, before)


def test_signal_handlers_are_restored_after_a_run(tmp_path):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    train(make_quick(schedule__epochs=1), tmp_path, ignore)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
