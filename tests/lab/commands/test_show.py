"""trainact show: the recipe, its runs and what the paper printed."""

import tomllib

import pytest

pytest.importorskip("rich", reason="terminal tables need rich")

from trainact.lab.commands import cli
from trainact.lab.recipes.experiment import find_experiment, list_experiments, make_experiment


@pytest.mark.parametrize("name", list_experiments())
def test_what_is_shown_is_a_recipe_file_that_gives_the_same_runs(name, capsys):
    assert cli.main(["show", name]) == 0
    shown = make_experiment(tomllib.loads(capsys.readouterr().out), name)
    assert shown == find_experiment(name)


def test_a_recipe_is_shown_with_arms_budgets_note_and_cost(capsys):
    cli.main(["show", "cifar10-vit"])
    shown = capsys.readouterr().out
    for fact in (
        "Figure 4 (fig:vit-cifar-10)",
        "budgets  100, 200, 400, 800 epochs",
        "seeds    0, 1, 2, 3, 4",
        "runs     80",
        "tract.enabled = True, tract.lam = 0.05",
        "at 400 epochs            optimizer.lr = 0.000316",
        "all runs",
        find_experiment("cifar10-vit").note,
    ):
        assert fact in shown
    assert "seconds   1091" in shown


def test_an_unknown_recipe_is_refused_with_the_nearest(capsys):
    assert cli.main(["show", "cifar10-vti"]) == 2
    assert "did you mean 'cifar10-vit'" in capsys.readouterr().err


def test_a_file_without_an_experiment_is_shown_too(tmp_path, capsys):
    path = tmp_path / "mine.toml"
    path.write_text("[optimizer]\nlr = 0.3\n")
    assert cli.main(["show", str(path)]) == 0
    assert tomllib.loads(capsys.readouterr().out)["optimizer"]["lr"] == 0.3


def test_the_command_and_the_papers_values_come_first(capsys):
    cli.main(["show", "cifar10-vit"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "# trainact run cifar10-vit"
    assert lines[4:7] == [
        "# Values printed in the paper",
        "# arm    epochs   metric  value",
        "# plain     100  seconds   1091",
    ]


def test_the_command_of_a_file_names_the_file(tmp_path, capsys):
    path = tmp_path / "mine.toml"
    path.write_text("[optimizer]\nlr = 0.3\n")
    cli.main(["show", str(path)])
    assert f"# trainact run {path}\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "columns"),
    [("cifar10-vit", "on GPU"), ("cifar10-cpu-vit-sgd", "on CPU"), ("photos", "on CPU  on GPU")],
)
def test_times_are_shown_for_the_devices_that_suit(name, columns, capsys):
    cli.main(["show", name])
    (head,) = [line for line in capsys.readouterr().out.splitlines() if "one run of" in line]
    assert " ".join(head.split("multiply-adds")[1].split()) == " ".join(columns.split())


def test_the_papers_arms_have_their_titles_where_the_recipe_calls_its_arm_tract(capsys):
    cli.main(["show", "deit3-vit-s"])
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "# TrAct λ=0.1 400 top1 81.50" in lines
    assert "# TrAct λ=0.2 800 top1 82.18" in lines
