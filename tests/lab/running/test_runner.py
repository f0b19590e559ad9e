"""Runs side by side, and the data that they share."""

import concurrent.futures
import os
import sys
import time

import pytest
import torch

from lab_helpers import HERE, make_quick
from trainact.errors import TrActValueError
from trainact.lab.data import load_data
from trainact.lab.ranks import is_first_rank
from trainact.lab.recipes.recipe import DataFields
from trainact.lab.records.checkpoint import save_checkpoint
from trainact.lab.records.record import read_failure
from trainact.lab.running import runner
from trainact.lab.running.display import Display, Lines
from trainact.lab.running.plan import PlannedRun, place_runs
from trainact.lab.running.runner import cache_data, run_all


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Do the quick recipe, with changes, in a new process; return the result."""
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)

    def do(**changes):
        runs = place_runs([make_quick(**changes)], tmp_path)
        [result] = run_all(runs, 2, Display())
        return result

    return do


@pytest.mark.slow
def test_what_a_network_prints_is_not_read_as_an_event(run):
    result = run(model__name="small_models:make_loud")
    assert result.failure is None
    assert len(result.record["epochs"]) == 3


@pytest.fixture
def pretend(tmp_path, monkeypatch):
    """Let a shell's commands be the process that does a run."""

    def replace_python(commands):
        program = tmp_path / "python"
        program.write_text(f"#!/bin/sh\n{commands}\n")
        program.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(program))

    return replace_python


def test_a_process_that_dies_while_writing_a_line_is_a_failure(run, pretend):
    pretend("""printf '{"kind": "no'; echo killed by hand >&2; exit 9""")
    assert run().failure == "its process ended with code 9: killed by hand"


def test_a_stopped_process_is_called_saved_only_if_there_is_a_checkpoint(run, pretend):
    pretend("exit 143")
    result = run()
    assert result.failure == "stopped"
    save_checkpoint(result.run.folder.path, 1, {})
    assert run().failure == "stopped after it was saved"
    pretend("kill -15 $$")
    assert run().failure == "stopped"


def test_output_that_is_not_utf8_is_replaced(run, pretend):
    pretend(r"printf 'caf\351 \377\n' >&2; exit 1")
    assert run().failure == "its process ended with code 1: caf\ufffd \ufffd"


def test_processes_share_the_threads(run, pretend, monkeypatch):
    pretend("echo $OMP_NUM_THREADS threads >&2; exit 1")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    assert run().failure == "its process ended with code 1: 3 threads"


def test_processes_ask_for_huge_pages_unless_the_user_has_other_settings(run, pretend, monkeypatch):
    pretend("echo $GLIBC_TUNABLES >&2; exit 1")
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    assert run().failure == "its process ended with code 1: glibc.malloc.hugetlb=1"
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.check=1")
    assert run().failure == "its process ended with code 1: glibc.malloc.check=1"


def ignore(text):
    del text


def test_threads_that_need_the_same_data_load_them_once():
    loaded = []

    def load(fields, note):
        time.sleep(0.05)
        loaded.append(fields)
        return object()

    load_once = cache_data(load)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        found = set(pool.map(load_once, [DataFields()] * 4, [ignore] * 4))
    assert (len(found), len(loaded)) == (1, 1)


def test_the_two_data_sets_used_last_are_kept():
    loaded = []
    load_once = cache_data(lambda fields, note: loaded.append(fields.name))
    for name in "abacaba":
        load_once(DataFields(name=name), ignore)
    assert loaded == ["a", "b", "c", "b"]


def test_messages_about_the_data_are_shown_once_with_a_name(tmp_path, monkeypatch, capsys):
    def load(fields, note):
        note("a fifth is for testing")
        return load_data(fields)

    monkeypatch.setattr(runner, "load_data", load)
    runs = place_runs([make_quick(schedule__epochs=1, run__seed=seed) for seed in (0, 1)], tmp_path)
    assert all(result.failure is None for result in run_all(runs, 1, Lines()))
    lines = capsys.readouterr().err.splitlines()
    assert lines.count(f"{runs[0].name}: a fifth is for testing") == 1
    assert sum("a fifth" in line for line in lines) == 1


def test_a_rank_without_a_world_size_is_ignored(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert is_first_rank()
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert not is_first_rank()
    monkeypatch.delenv("RANK")
    assert is_first_rank()  # start_machine says what is missing


def test_messages_about_the_data_of_several_networks_are_shown_once_too(
    tmp_path, monkeypatch, capsys, pretend
):
    """Their processes show none."""

    def load(fields, note):
        note("it is not the published data set")
        return load_data(fields)

    monkeypatch.setattr(runner, "load_data", load)
    pretend("exit 1")
    networks = ("small_models:make_tiny", "small_models:make_noisy")
    recipes = [make_quick(model__name=name, data__flip=bool(flip))
               for name in networks for flip in (0, 1)]  # fmt: skip
    run_all([PlannedRun(r, tmp_path, str(n)) for n, r in enumerate(recipes)], 2, Lines())
    assert capsys.readouterr().err.count("it is not the published data set") == 1


def test_among_ranks_a_failure_is_written_once_and_raised_by_all(tmp_path, monkeypatch):
    def fail(*rest):
        raise TrActValueError("an image is cut short")

    monkeypatch.setattr(runner, "train", fail)
    run = PlannedRun(make_quick(), tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in ("1", "0"):
        monkeypatch.setenv("RANK", rank)
        with pytest.raises(TrActValueError, match="cut short"):
            runner.do_run(run, lambda event: None, lambda fields: None)
        assert (read_failure(run.folder.path) is not None) == (rank == "0")
