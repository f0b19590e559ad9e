"""Experiment trackers: those of Accelerate by name, what they get, and that each run closes its own."""

import importlib.util
import json
import sys
from typing import get_args

import pytest
from accelerate.utils import LoggerType

from lab_helpers import ignore, make_quick, run_several
from trainact.errors import TrActValueError
from trainact.lab.recipes.recipe import Tracker
from trainact.lab.records.record import RunFolder
from trainact.lab.training import trackers
from trainact.lab.training import train as train_module
from trainact.lab.training.train import train


def test_every_tracker_of_accelerate_has_its_name():
    assert {*get_args(Tracker)} == {"none", *map(str, LoggerType)} - {"all"}


def test_tensorboard_gets_the_recipe_and_every_epoch(tmp_path):
    pytest.importorskip("tensorboard", reason="needs tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    recipe = make_quick(run__tracker="tensorboard", schedule__epochs=2)
    record = train(recipe, tmp_path, ignore)
    folder = RunFolder(tmp_path, recipe).path / "trainact"
    events = EventAccumulator(str(folder)).Reload()
    losses = [(point.step, point.value) for point in events.Scalars("train_loss")]
    assert losses == [
        (epoch["epoch"], pytest.approx(epoch["train_loss"])) for epoch in record["epochs"]
    ]
    [file] = folder.rglob("hparams.yml")
    assert "optimizer.lr: " in file.read_text()
    assert "data.name: photos\n" in file.read_text()


@pytest.mark.slow
def test_an_offline_tracker_gets_both_runs_of_a_comparison(tmp_path):
    pytest.importorskip("wandb", reason="needs wandb")
    options = ["--model", "small_models:make_tiny", "--epochs", "2", "--seeds", "0"]
    options += ["--arms", "plain,tract"]
    fields = ["data.train_images=64", "data.test_images=16", "data.batch_size=32"]
    command = [sys.executable, "-m", "trainact.lab", "compare", "--tracker", "wandb", *options]
    out = tmp_path / "out"
    run_several([*command, "--out", str(out), *fields], tmp_path, WANDB_MODE="offline")
    records = list(out.glob("runs/*/record.json"))
    assert len(records) == 2
    for path in records:
        [log] = path.parent.glob("wandb/offline-run-*/run-*.wandb")
        content = log.read_bytes()
        for epoch in json.loads(path.read_text())["epochs"]:
            assert str(epoch["train_loss"]).encode() in content
        assert path.parent.name.encode() in content  # the name of the run
        assert b"optimizer.lr" in content
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


class FakeAccelerator:
    """Notes what a tracker would get."""

    def __init__(self, name):
        self.log_with, self.trackers, self.calls = [name], [], []

    def init_trackers(self, project, config, init_kwargs):
        self.calls.append((project, config, init_kwargs))

    def log(self, values, step):
        self.calls.append((values, step))


@pytest.mark.parametrize("name", sorted({*get_args(Tracker)} - {"none"}))
def test_a_tracker_gets_plain_values_and_the_name_of_the_run(name, tmp_path):
    accelerator, recipe = FakeAccelerator(name), make_quick(run__tracker=name)
    trackers.start_tracker(accelerator, recipe, tmp_path / "plain-seed0")
    [(project, config, options)] = accelerator.calls
    assert project == "trainact"
    assert config["run.tracker"] == name
    assert all(isinstance(value, bool | int | float | str) for value in config.values())
    assert list(options) == [name]
    local = name in ("tensorboard", "comet_ml")  # these have no option for it
    assert local or "plain-seed0" in json.dumps(options)


def test_only_numbers_are_logged():
    accelerator = FakeAccelerator("wandb")
    trackers.track(accelerator, {"epoch": 1, "loss": 0.5, "norm": None, "note": "x"}, 1)
    assert accelerator.calls == [({"epoch": 1, "loss": 0.5}, 1)]


def test_a_missing_package_is_named(tmp_path):
    name = next((n for n in get_args(Tracker)[1:] if importlib.util.find_spec(n) is None), "none")
    if name == "none":
        pytest.skip("all trackers are installed")
    with pytest.raises(TrActValueError, match=rf"its package is not installed: pip install {name}"):
        train(make_quick(run__tracker=name), tmp_path, ignore)


def test_a_run_that_fails_closes_its_tracker_too(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard", reason="needs tensorboard")
    closed = []
    monkeypatch.setattr(train_module, "stop_trackers", lambda machine: closed.append(machine))

    def fail(*_):
        raise RuntimeError("power cut")

    monkeypatch.setattr(train_module, "track", fail)
    with pytest.raises(RuntimeError, match="power cut"):
        train(make_quick(run__tracker="tensorboard"), tmp_path, ignore)
    [machine] = closed
    assert len(machine.trackers) == 1
