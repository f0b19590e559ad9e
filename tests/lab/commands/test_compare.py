"""trainact compare and trainact run, as a person uses them."""

import json

import pytest

from lab_helpers import start
from trainact.lab.commands import cli

SMALL = [
    "--model", "small_models:make_tiny", "--batch-size", "32", "--data", "photos",
    "data.train_images=320", "data.test_images=80",
]  # fmt: skip


def compare(capsys, *arguments):
    code = cli.main(["compare", *arguments])
    output = capsys.readouterr()
    return code, output.out, output.err


def test_a_comparison_ends_with_a_table_pictures_and_a_page(tmp_path, capsys):
    code, out, err = compare(
        capsys, *SMALL, "--epochs", "1,2", "--seeds", "0-1", "--arms", "plain,tract,lr=10",
        "--lam", "0.1,0.2", "--out", str(tmp_path),
    )  # fmt: skip
    assert code == 0
    assert "TrAct λ=0.1" in out
    assert "TrAct λ=0.2" in out
    assert "plain, first-layer lr ×10" in out
    assert "epoch 2/2, loss" in err
    assert "left for all runs" in err
    answers = json.loads((tmp_path / "comparison.json").read_text())
    assert answers
    assert len(list(tmp_path.glob("runs/*/record.json"))) == 2 * 2 * 4
    page = (tmp_path / "comparison.html").read_text()
    assert "<script" not in page
    for name in ("accuracy.png", "gradients.png", "budgets.png"):
        assert (tmp_path / name).stat().st_size > 5000


@pytest.mark.slow
def test_the_same_command_again_runs_nothing_and_a_further_seed_only_itself(tmp_path, capsys):
    options = [*SMALL, "--epochs", "1", "--out", str(tmp_path)]
    assert compare(capsys, *options, "--seeds", "0-1")[0] == 0
    _, _, err = compare(capsys, *options, "--seeds", "0-1")
    assert "epoch" not in err
    _, out, err = compare(capsys, *options, "--seeds", "0-2")
    assert err.count("epoch 1/1") == 3
    assert " 3 " in out
    assert "TrAct λ=0.1" in out
    assert any(tmp_path.glob("runs/eigen+tract-0.1-*/record.json"))


@pytest.mark.slow
def test_jobs_side_by_side_give_the_same_numbers(tmp_path, capsys):
    one = [*SMALL, "--epochs", "2", "--seeds", "0", "run.device=cpu",
           "--arms", "plain,eigen+tract,eigen+frozen"]  # fmt: skip
    compare(capsys, *one, "--out", str(tmp_path / "one"))
    process = start("trainact.lab", "compare", *one, "--jobs", "2", "--out", str(tmp_path / "two"))
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    one, two = (
        [json.loads(p.read_text()) for p in sorted((tmp_path / part).glob("runs/*/record.json"))]
        for part in ("one", "two")
    )
    losses = [[record["epochs"][-1]["train_loss"] for record in part] for part in (one, two)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    arms = [record["arm"] for record in one]
    assert arms == [record["arm"] for record in two] == ["eigen+frozen", "eigen+tract-0.1", "plain"]
    assert {record["model"]["initial_weights"] for record in one + two} == {
        one[2]["model"]["trained_from"]
    }
    for part in (one, two):
        assert len({record["model"]["trained_from"] for record in part}) == 2
    assert "whitened start, TrAct λ=0.1" in out
    assert "whitened start, frozen" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "lab:resnet19"], "unknown network 'resnet19'; did you mean"),
        (["--model", "timm:resnet55"], "unknown model of timm 'resnet55'; did you mean"),
        (["--model", "resnet19x"], "unknown model 'resnet19x'; did you mean"),
        (["--model", "nowhere.here:make"], "there is no module 'nowhere'"),
        (["--model", "small_models:make_nothing"], "module small_models has no function"),
        (["--model", "small_models:make_number"], "returned a float, not an nn.Module"),
        (["--data", "photo"], "photos"),
        (["--arms", "plane"], "unknown arm 'plane'; did you mean 'plain'"),
        (["--epochs", "x"], "--epochs takes whole numbers"),
        (["--epochs", "0"], "schedule.epochs must be positive"),
        (["--lam", "-1"], "--lam takes positive numbers"),
        (["--jobs", "0"], "--jobs takes a positive number"),
        (
            ["--device", "tpu"],
            "run.device is 'tpu', which this machine does not have; it has auto, cpu",
        ),
        (["optimizer.lrr=3"], "did you mean 'lr'"),
        (["optimizer.lr=fast"], "lr takes a number; got 'fast'"),
        (["--batch-size", "999", "data.drop_last=true"], "do not fill one batch of 999"),
        (["model.arguments.widht=3"], "widht"),
        (["--recipe", "foto"], "unknown recipe 'foto'"),
    ],
)
def test_bad_input_is_one_clear_line_and_not_a_zero(tmp_path, capsys, arguments, message):
    code, _, err = compare(
        capsys, *SMALL, "--epochs", "1", "--seeds", "0", "--out", str(tmp_path), *arguments
    )
    assert code == 2
    assert message in err
    assert "Traceback" not in err


def test_a_run_that_fails_does_not_take_the_others_with_it(tmp_path, capsys):
    """A loss that becomes NaN is told, and what is left is compared."""
    code, out, err = compare(
        capsys, *SMALL, "--epochs", "2", "--seeds", "0-1", "--out", str(tmp_path),
        "--model", "small_models:Overflowing",
    )  # fmt: skip
    assert code == 1
    assert "the loss became nan in epoch 1" in err
    assert "diverged" in out + (tmp_path / "comparison.md").read_text()


def test_a_model_that_does_not_fit_the_images_says_so(tmp_path, capsys):
    code, _, err = compare(
        capsys, *SMALL, "--epochs", "1", "--seeds", "0", "--out", str(tmp_path),
        "--model", "small_models:make_broken",
    )  # fmt: skip
    assert code == 2
    assert "shapes cannot be multiplied" in err


def test_run_does_the_runs_of_a_file_and_dry_run_none(tmp_path, capsys):
    out = str(tmp_path / "out")
    compare(capsys, *SMALL, "--epochs", "1", "--seeds", "0", "--out", out)
    [file] = tmp_path.glob("out/runs/plain-*/recipe.toml")
    assert cli.main(["run", str(file), "--out", str(tmp_path / "again"), "--dry-run"]) == 0
    assert "to do  plain, 1 epoch, seed 0" in capsys.readouterr().out
    assert not (tmp_path / "again").exists()
    assert cli.main(["run", str(file), "--out", str(tmp_path / "again")]) == 0
    assert "1 run complete, 0 diverged, 0 failed" in capsys.readouterr().out
    records = [
        json.loads(next((tmp_path / part).glob("runs/plain-*/record.json")).read_text())
        for part in ("out", "again")
    ]
    assert records[0]["epochs"][0]["train_loss"] == records[1]["epochs"][0]["train_loss"]
    assert cli.main(["run", "photos", "--arms", "trct-9", "--dry-run"]) == 2
    assert "unknown arm 'trct-9'; did you mean 'tract" in capsys.readouterr().err


def test_a_dry_run_lists_the_runs_and_does_none(tmp_path, capsys):
    out = tmp_path / "out"
    words = [*SMALL, "--epochs", "1", "--seeds", "0", "--out", str(out), "--dry-run"]
    code, shown, _ = compare(capsys, *words)
    assert code == 0
    assert shown.startswith("to do  plain, 1 epoch, seed 0")
    assert not out.exists()
    code, _, err = compare(capsys, *words, "--data", str(tmp_path / "nowhere"))
    assert code == 0
    assert "missing: the data set" in err or "missing: there is no data set" in err


def test_a_missing_extra_is_named(monkeypatch, capsys):
    import sys

    monkeypatch.setitem(sys.modules, "accelerate", None)
    for name in [name for name in sys.modules if name.startswith("trainact.lab.")]:
        if name not in ("trainact.lab.commands.cli",):
            monkeypatch.delitem(sys.modules, name)
    assert cli.main(["compare"]) == 2
    assert "pip install 'trainact[lab]'" in capsys.readouterr().err
