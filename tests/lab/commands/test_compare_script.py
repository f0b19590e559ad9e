"""trainact compare --script: arms compared in a user's script."""

import os

import pytest

from lab_helpers import HERE
from trainact.lab.commands import cli
from trainact.lab.records.record import read_failure, read_record

SCRIPT = """
import argparse, os, signal, sys
from loop_cases import train
from trainact.lab import current_run

parser = argparse.ArgumentParser()
parser.add_argument("--data.rate", type=float)
parser.add_argument("--without-run", action="store_true")
parser.add_argument("--marker", default="")
arguments = parser.parse_args()
assert __name__ == "__main__"
if not arguments.without_run:
    run = current_run()
    print("to standard output")
    if arguments.marker and not os.path.exists(arguments.marker):
        if run.arm == "tract-0.1":
            raise ZeroDivisionError("by accident")
        if run.arm == "frozen":
            os.kill(os.getpid(), signal.SIGKILL)
        if run.arm == "lr-3":
            sys.exit(3)
    train(run)
    sys.exit(0)
"""


@pytest.fixture
def compare(tmp_path, monkeypatch, capsys):
    """Compare two arms in the script with one seed; return code, output and errors."""
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)

    def do(*arguments, options=()):
        usual = ["--script", "train.py", "--epochs", "1", "--seeds", "0", "--out", "out", *options]
        code = cli.main(["compare", *usual, *(["--", *arguments] if arguments else [])])
        output = capsys.readouterr()
        return code, output.out, output.err

    return do


def read_records(folder):
    return [read_record(path) for path in sorted(folder.glob("out/runs/*/record.json"))]


def test_a_script_is_compared_with_its_own_arguments(compare, tmp_path):
    code, out, err = compare("--data.rate", "3", options=["--jobs", "2"])
    assert code == 0, err
    assert "TrAct λ=0.1" in out
    assert "tract-0.1, 1 epoch, seed 0: epoch 1/1, loss" in err
    plain, tract = read_records(tmp_path)
    assert (plain["arm"], tract["arm"]) == ("plain", "tract-0.1")
    assert plain["model"]["initial_weights"] == tract["model"]["initial_weights"]
    assert plain["recipe"]["model"]["name"] == "script:train.py"
    assert plain["recipe"]["model"]["arguments"] == {"arguments": ["--data.rate", "3"]}
    assert "script:train.py" in (tmp_path / "out" / "comparison.html").read_text()


@pytest.mark.slow
def test_the_same_command_again_runs_nothing_and_other_arguments_are_other_runs(compare, tmp_path):
    options = ["--arms", "plain"]
    compare(options=options)
    code, _, err = compare(options=options)
    assert (code, "epoch 1/1" in err) == (0, False)
    code, _, err = compare("--data.rate", "4", options=options)
    assert (code, err.count("epoch 1/1")) == (0, 1)
    assert len(read_records(tmp_path)) == 2
    with (tmp_path / "train.py").open("a") as file:
        file.write("# changed\n")
    code, _, err = compare(options=options)
    assert "the code has changed since 1 of 1 run ended" in err
    recipe = sorted(tmp_path.glob("out/runs/plain-*/recipe.toml"))[0]
    assert cli.main(["run", str(recipe), "--out", "again"]) == 0


@pytest.mark.slow
def test_runs_that_fail_lose_no_other(compare, tmp_path):
    options = ["--arms", "plain,tract,lr=3,frozen"]
    arguments = ["--marker", str(tmp_path / "fixed")]
    code, out, err = compare(*arguments, options=options)
    assert code == 1
    for arm, message in {
        "tract-0.1": "ZeroDivisionError: by accident (the traceback is in",
        "frozen": "its process ended with code -9",
        "lr-3": "train.py ended with exit code 3; 'python train.py' with the same arguments",
    }.items():
        assert f"trainact: {arm}, 1 epoch, seed 0: {message}" in err
        [folder] = tmp_path.glob(f"out/runs/{arm}-1ep-*")
        assert message.split(" (")[0] in read_failure(folder)["failure"]
    assert "plain reaches" in out
    [plain] = tmp_path.glob("out/runs/*/record.json")
    before = plain.read_bytes()
    (tmp_path / "fixed").touch()
    code, out, err = compare(*arguments, options=options)
    assert (code, err.count("epoch 1/1")) == (0, 3)
    assert plain.read_bytes() == before
    assert out.count("with one seed") == 3


@pytest.mark.slow
def test_a_script_that_takes_no_run_is_refused(compare):
    code, _, err = compare("--without-run", options=["--arms", "plain"])
    assert code == 2
    assert "train.py never called run.prepare(model), so the arm plain was not applied" in err
    assert "nothing to compare" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "lab:vgg11"], "model.name is set, but with --script the script decides"),
        (["optimizer.lr=3"], "optimizer.lr is set, but with --script"),
        (["--recipe", "cifar10-vit"], "--recipe is set, but with --script"),
        (["--script", "none.py"], "there is no script none.py"),
        (["--arms", "plain,trct"], "unknown arm 'trct'"),
    ],
)
def test_options_that_do_not_apply_are_refused(compare, options, message):
    code, _, err = compare(options=options)
    assert code == 2
    assert message in err


def test_arguments_for_a_script_need_a_script(capsys):
    assert cli.main(["compare", "--", "--lr"]) == 2
    assert "arguments after -- are those of a script; give --script FILE" in capsys.readouterr().err
