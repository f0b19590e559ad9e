"""compare_runs: arms compared in a training loop of the user's own."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import trainact.lab
from lab_helpers import HERE
from loop_cases import read_photos, train
from small_models import make_tiny
from trainact.errors import TrActError, TrActTypeError, TrActValueError
from trainact.lab import compare_runs, current_run
from trainact.lab.analysis.answers import answer
from trainact.lab.commands import cli
from trainact.lab.recipes.recipe import identify, make_recipe
from trainact.lab.records.record import read_record
from trainact.lab.training.own_loop import loop

ROOT = Path(__file__).parent.parent.parent


def read_records(folder):
    return [read_record(path) for path in sorted(folder.glob("runs/*/record.json"))]


def test_the_result_is_that_of_trainact_compare(tmp_path, capsys):
    comparison = compare_runs(
        train, arms="plain,tract,lr=0.1", seeds=range(2), epochs=[1, 2], out=tmp_path
    )
    out, err = capsys.readouterr()
    assert "TrAct λ=0.1" in out
    assert "plain, first-layer lr ×0.1" in out
    assert re.search(r"2 epochs: TrAct λ=0.1.* points .*\(2 seeds\)", out)
    assert "a speed-up" in out
    assert "plain, 2 epochs, seed 0: epoch 2/2, loss" in err
    records = read_records(tmp_path)
    assert len(records) == 12
    assert answer(records).differences == comparison.answers.differences
    assert comparison.answers.missing == ()
    page = (tmp_path / "comparison.html").read_text()
    assert "function:train on its own data: TrAct λ=0.1; plain, first-layer lr" in page
    assert "Both runs of a pair start from the same weights." in page
    assert "gradient norm" not in page
    assert "trainact.lab.compare_runs(train, arms=&#39;plain,tract-0.1,lr-0.1&#39;" in page
    assert {path.name for path in comparison.paths} == {
        *("comparison.html", "comparison.json", "comparison.md", "accuracy.png", "budgets.png")
    }


def test_a_record_says_what_the_arm_changed_and_nothing_that_it_does_not_know(tmp_path):
    compare_runs(train, arms=["plain", "eigen+tract-0.2"], seeds=[3], epochs=1, out=tmp_path)
    tract, plain = read_records(tmp_path)
    assert tract["recipe"]["tract"]["lam"] == 0.2
    assert tract["recipe"]["model"]["start"] == "eigen"
    for record in (tract, plain):
        assert "lr" not in record["recipe"]["optimizer"]
        assert record["model"]["first_layers"] == ["0"]
        assert identify(make_recipe(record["recipe"])) == record["recipe_id"]
        assert (record["seed"], record["budget"], record["epochs"][0]["epoch"]) == (3, 1, 1)
    assert tract["model"]["initial_weights"] == plain["model"]["initial_weights"]
    assert plain["model"]["initial_weights"] == plain["model"]["trained_from"]
    assert tract["model"]["trained_from"] != plain["model"]["trained_from"]


def test_a_record_names_the_code_with_which_the_run_started(tmp_path, monkeypatch):
    state = {"date": "start", "trainact": "1", "commit": "first", "clean": True}
    monkeypatch.setattr(
        loop, "describe_environment", lambda device="cpu": {**state, "device": device}
    )

    def change(run):
        train(run)
        state["commit"] = "second"

    compare_runs(change, arms="plain", seeds=0, epochs=1, out=tmp_path)
    [record] = read_records(tmp_path)
    assert state["commit"] == "second"
    assert record["environment"]["commit"] == "first"
    assert record["environment"]["device"] == "cpu"


def test_every_kind_of_arm_trains(tmp_path):
    arms = "plain,frozen,random,scaled,tract-centered,tract-norm-preserving,mac,foof,asgo,muon-stem"
    comparison = compare_runs(train, arms=arms, seeds=0, epochs=1, out=tmp_path)
    assert len(comparison.answers.summaries) == 10
    weights = [record["epochs"][0]["train_loss"] for record in read_records(tmp_path)]
    assert len(set(weights)) == 10


@pytest.mark.slow
def test_a_run_is_done_once_and_other_settings_are_other_runs(tmp_path):
    done = []

    def count(run):
        assert current_run() is run
        done.append((run.arm, run.seed))
        train(run)

    for _ in range(2):
        compare_runs(count, seeds="0-1", epochs=1, out=tmp_path)
    assert done == [("plain", 0), ("tract-0.1", 0), ("plain", 1), ("tract-0.1", 1)]
    compare_runs(count, seeds="0-2", epochs=1, out=tmp_path)
    assert done[4:] == [("plain", 2), ("tract-0.1", 2)]
    compare_runs(count, seeds=0, epochs=1, out=tmp_path, settings={"lr": 0.1})
    assert done[6:] == [("plain", 0), ("tract-0.1", 0)]


def test_an_exception_loses_no_finished_run(tmp_path, capsys):
    broken = True

    def fail(run):
        if broken and run.arm != "plain" and run.seed == 1:
            raise ZeroDivisionError("by accident")
        train(run)

    with pytest.raises(TrActError) as caught:
        compare_runs(fail, seeds="0-1", epochs=1, out=tmp_path)
    message = str(caught.value)
    assert message.startswith("1 of 4 runs failed; those that are finished are kept in")
    assert "tract-0.1, 1 epoch, seed 1: ZeroDivisionError: by accident" in message
    [failure] = tmp_path.glob("runs/tract-0.1-1ep-seed1-*/failure.json")
    assert "in fail" in failure.read_text()
    assert "TrAct λ=0.1" in capsys.readouterr().out  # the others are compared
    before = {path: path.read_bytes() for path in tmp_path.glob("runs/*/record.json")}
    assert len(before) == 3
    broken = False
    comparison = compare_runs(fail, seeds="0-1", epochs=1, out=tmp_path)
    assert {path: path.read_bytes() for path in before} == before
    assert comparison.answers.differences[0].n == 2
    assert not failure.exists()


def test_a_loop_that_never_ends_a_run_has_nothing_to_compare(tmp_path):
    with pytest.raises(TrActError, match=r"(?s)2 of 2 runs failed.*plain.* logged nothing; call"):
        compare_runs(lambda run: run.prepare(make_tiny(8)), seeds=0, epochs=1, out=tmp_path)
    assert not (tmp_path / "comparison.html").exists()


def test_arms_that_start_from_other_weights_are_refused_before_they_train(tmp_path):
    steps = []

    def draw(run):
        torch.manual_seed(run.seed + (run.arm != "plain"))
        model = run.prepare(make_tiny(8))
        steps.append(run.arm)
        optimizer = run.optimizer(model, lambda p: torch.optim.SGD(p, lr=0.1))
        model(read_photos()[0][0]).sum().backward()
        optimizer.step()
        run.log(1, accuracy=0.5)

    with pytest.raises(
        TrActError, match=r"(?s)not those of the finished run .plain, 1 epoch, seed 0"
    ):
        compare_runs(draw, seeds=0, epochs=1, out=tmp_path)
    assert steps == ["plain"]
    assert [record["arm"] for record in read_records(tmp_path)] == ["plain"]


def test_without_any_seeding_arms_start_from_the_same_weights(tmp_path, capsys):
    def draw(run):
        model = run.prepare(make_tiny(8))
        torch.rand(3)
        with torch.no_grad():
            model[0].weight.add_(1)
        run.log(1, accuracy=0.5)

    compare_runs(draw, seeds="0-1", epochs=1, out=tmp_path)
    starts = {(r["seed"], r["model"]["initial_weights"]) for r in read_records(tmp_path)}
    assert len(starts) == len({start for _, start in starts}) == 2
    assert "seed 1: epoch 1/1, accuracy 50.00 %" in capsys.readouterr().err  # no loss was logged


def test_a_run_that_diverges_is_recorded_as_such(tmp_path, capsys):
    def explode(run):
        model = run.prepare(make_tiny(8))
        try:
            run.log(1, accuracy=0.1, loss=float("inf") if run.arm != "plain" else 1.0)
        except Exception as error:
            raise RuntimeError("something else") from error
        with torch.no_grad():
            model[0].weight.add_(1)

    compare_runs(explode, seeds=0, epochs=1, out=tmp_path)
    assert "TrAct λ=0.1: every run diverged" in capsys.readouterr().out
    tract, plain = sorted(read_records(tmp_path), key=lambda record: record["status"], reverse=True)
    assert (plain["status"], tract["status"]) == ("complete", "diverged")
    assert tract["failure"] == "the loss became inf in epoch 1"


KILLED = """
import os, signal, sys
from loop_cases import train
from trainact.lab import compare_runs

def loop(run):
    if (run.arm, run.seed) == ("plain", 1) and sys.argv[2] == "die":
        log = run.log
        run.log = lambda *args, **values: (log(*args, **values), os.kill(os.getpid(), signal.SIGKILL))
    train(run)

compare_runs(loop, seeds="0-1", epochs=2, out=sys.argv[1])
"""


@pytest.mark.slow
def test_a_killed_process_loses_no_finished_run(tmp_path):
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}

    def start(word):
        command = [sys.executable, str(script), str(tmp_path / "out"), word]
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    assert start("die").returncode == -signal.SIGKILL
    before = {path: path.read_bytes() for path in tmp_path.glob("out/runs/*/record.json")}
    assert len(before) == 2
    ended = start("live")
    assert ended.returncode == 0, ended.stderr
    assert {path: path.read_bytes() for path in before} == before
    assert "seed 0" not in ended.stderr
    assert len(read_records(tmp_path / "out")) == 4


def test_a_change_of_the_code_is_told(tmp_path, capsys, monkeypatch):
    compare_runs(train, seeds=0, epochs=1, out=tmp_path)
    assert "the code has changed" not in capsys.readouterr().err
    monkeypatch.setattr("trainact.lab.comparisons.hash_code", lambda train: "other")
    compare_runs(train, seeds="0-1", epochs=1, out=tmp_path)
    err = capsys.readouterr().err
    assert "the code has changed since 2 of 4 runs ended" in err
    assert "other" in (tmp_path / "comparison.md").read_text()


def test_the_other_commands_read_these_records(tmp_path, capsys):
    compare_runs(train, seeds=0, epochs=1, out=tmp_path / "mine")
    assert cli.main(["report", str(tmp_path / "mine"), "--out", str(tmp_path / "page")]) == 0
    into = str(tmp_path / "collected")
    assert cli.main(["collect", str(tmp_path / "mine"), "--into", into]) == 0
    [recipe] = tmp_path.glob("mine/runs/plain-*/recipe.toml")
    capsys.readouterr()
    assert cli.main(["run", str(recipe), "--out", str(tmp_path / "again")]) == 1
    assert "call trainact.lab.compare_runs with it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"arms": "plain,trct"}, TrActValueError, "unknown arm 'trct'; did you mean"),
        ({"arms": ["plain", "plain"]}, TrActValueError, "'plain' is named twice"),
        ({"seeds": "a"}, TrActValueError, "seeds takes whole numbers"),
        ({"seeds": [1, 1]}, TrActValueError, "a number twice"),
        ({"epochs": 0}, TrActValueError, "schedule.epochs must be positive"),
        ({"epochs": 1.5}, TrActValueError, "epochs takes whole numbers"),
        ({"lam": -1}, TrActValueError, "lam takes positive numbers"),
        ({"settings": {"model": make_tiny}}, TrActTypeError, "settings takes numbers"),
        ({"settings": {"lr": [None]}}, TrActTypeError, "settings takes numbers"),
    ],
)
def test_an_argument_that_is_not_accepted_is_named(tmp_path, changes, error, message):
    with pytest.raises(error, match=message):
        compare_runs(train, **{"epochs": 1, "seeds": 0, "out": tmp_path} | changes)
    assert not list(tmp_path.iterdir())


def test_a_comparison_needs_a_function_and_one_process_of_its_own(tmp_path, monkeypatch):
    with pytest.raises(TrActTypeError, match="takes a function; got str"):
        compare_runs("train", epochs=1)

    def nest(run):
        compare_runs(train, seeds=0, epochs=1, out=tmp_path / "inner")

    with pytest.raises(TrActError, match="cannot be started inside a run"):
        compare_runs(nest, seeds=0, epochs=1, out=tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(TrActValueError, match="compare_runs does not work under torchrun"):
        compare_runs(train, seeds=0, epochs=1, out=tmp_path)


def test_alone_a_script_has_a_run_without_a_record():
    run = current_run(arm="tract", seed=4, epochs=1)
    assert (run.arm, run.seed, run.epochs) == ("tract-0.1", 4, 1)
    train(run)
    with pytest.raises(AttributeError, match="has no attribute 'compare'"):
        trainact.lab.compare  # noqa: B018


@pytest.mark.slow
def test_the_example_of_the_documentation_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "lab.md").read_text()
    [snippet] = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    exec(compile(snippet, "lab.md", "exec"), {"__name__": "example"})
    assert json.loads(Path("mine/comparison.json").read_text())["arms"].keys() == {
        *("plain", "tract-0.1", "lr-0.1")
    }
