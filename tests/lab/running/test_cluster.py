"""Ray: a killed worker's run is resumed, no run is done twice, records are collected."""

import importlib.util
import re
import sys
from collections import Counter

import pytest

from lab_helpers import make_quick, start
from result_folders import find_records
from trainact.errors import TrActError, TrActValueError
from trainact.lab.commands import cli
from trainact.lab.records.events import read_event
from trainact.lab.running import cluster
from trainact.lab.running.cluster import Cluster, Mailbox, do_task, store
from trainact.lab.running.plan import PlannedRun
from trainact.lab.training.interruption import RunInterrupted

EXPERIMENT = """
[experiment]
title = "for two workers"
seeds = "0-1"
arms = ["plain", "tract"]
budgets = [60]
[data]
name = "photos"
train_images = 320
test_images = 80
batch_size = 32
[model]
name = "small_models:Mortal"
[run]
device = "cpu"
checkpoint_seconds = 1e-6
"""
needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="needs the extra 'ray'"
)


def refuse(cluster: Cluster) -> None:
    raise AssertionError("Ray was started")


@needs_ray
@pytest.mark.slow
def test_a_killed_workers_run_is_resumed_and_all_runs_are_done_once(tmp_path, monkeypatch):
    file, out = tmp_path / "two.toml", tmp_path / "out"
    file.write_text(EXPERIMENT)
    command = ["run", str(file), "--on", "ray", "--jobs", "2", "--out", str(out)]
    monkeypatch.setenv("MORTAL_DIED", str(tmp_path / "died"))
    monkeypatch.setenv("RAY_TMPDIR", "/tmp")  # its sockets' names have an upper length
    process = start("trainact.lab", *command)
    printed, said = process.communicate(timeout=600)
    assert process.returncode == 0, said
    lines = said.splitlines()
    assert "4 runs complete, 0 diverged, 0 failed" in printed
    started = [match[1] for line in lines if (match := re.match(r"(.*): on .*, process", line))]
    [killed] = [name for name, times in Counter(started).items() if times == 2]
    assert sorted(started) == sorted([*set(started), killed])  # that one twice, the others once
    assert any(line.startswith(f"{killed}: resumed in epoch 3") for line in lines)
    records = find_records(out)
    assert sorted((r["arm"], r["seed"], r["sessions"]) for r in records) == sorted(
        (arm, seed, 2 if f"{arm}, 60 epochs, seed {seed}" == killed else 1)
        for arm in ("plain", "tract-0.1")
        for seed in (0, 1)
    )
    assert not list(out.glob(".seen-from-*"))
    assert not list(out.rglob("checkpoint-*"))
    before = {path: path.stat().st_mtime_ns for path in out.rglob("record.json")}
    monkeypatch.setattr(Cluster, "_connect", refuse)
    assert cli.main(command) == 0  # nothing to do: no Ray is started
    assert {path: path.stat().st_mtime_ns for path in out.rglob("record.json")} == before


class Post:
    """A mailbox without Ray."""

    def __init__(self) -> None:
        self.box = Mailbox()
        self.put = self

    def remote(self, name: str, line: str) -> None:
        self.box.put(name, line)


@pytest.mark.slow
def test_a_run_that_a_signal_stopped_is_submitted_again(tmp_path, monkeypatch):
    """Ray restarts a task whose process dies, not one that raises."""

    def interrupt(*rest):
        raise RunInterrupted(15)

    def leave(code):
        raise SystemExit(code)

    monkeypatch.setattr(cluster, "do_run", interrupt)
    monkeypatch.setattr(cluster.os, "_exit", leave)
    run = PlannedRun(make_quick(), tmp_path, "m")
    with pytest.raises(SystemExit, match="1"):
        do_task(run, tmp_path, Post())


def test_files_of_a_machine_with_another_disk_are_copied_here(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run, post = PlannedRun(make_quick(schedule__epochs=1), tmp_path / "here", "m"), Post()
    delivery = do_task(run, tmp_path / "not-there", post)
    assert list(delivery.files) == ["recipe.toml", "weights.safetensors", "record.json"]
    assert not run.root.exists()
    assert not list(tmp_path.glob("trainact-runs-*/runs/*"))
    result = store(run, delivery)
    assert result.failure is None
    assert find_records(run.root) == [run.find_record()]
    kinds = [read_event(line).kind for name, line in post.box.take() if name == run.name]
    assert kinds == ["note", "epoch"]
    assert post.box.take() == []


def test_a_failure_on_another_machine_is_written_here(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    broken = make_quick(model__name="small_models:make_broken")
    run = PlannedRun(broken, tmp_path / "here")
    result = store(run, do_task(run, tmp_path / "not-there", Post()))
    assert "shapes cannot be multiplied" in (result.failure or "")
    assert str(run.folder.path / "failure.json") in (result.failure or "")
    assert (run.folder.path / "failure.json").exists()


def test_a_machine_that_sees_the_folder_trains_in_it(tmp_path):
    run = PlannedRun(make_quick(schedule__epochs=1), tmp_path / "here")
    (tmp_path / "marker").touch()
    delivery = do_task(run, tmp_path / "marker", Post())
    assert delivery.files == {}
    assert run.find_record() is not None


def test_without_ray_the_extra_is_named(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert cli.main(["run", "photos", "--on", "ray", "--out", str(tmp_path)]) == 2
    assert "the extra 'ray': pip install 'trainact[ray]'" in capsys.readouterr().err
    with pytest.raises(TrActError, match="extra 'ray'"):
        Cluster()


def test_jobs_cannot_be_set_for_a_running_cluster():
    with pytest.raises(TrActValueError, match="only 1 with a running cluster"):
        Cluster("10.0.0.1:6379", jobs=2)
