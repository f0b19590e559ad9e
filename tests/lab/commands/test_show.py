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


SHARED = [name for name in list_experiments() if "-finetune-" in name or name.endswith("-adamw")]


@pytest.mark.parametrize("name", SHARED)
def test_a_recipe_that_shares_the_numbers_of_another_shows_them(name, capsys):
    assert len(SHARED) == 10
    cli.main(["show", name])
    shown = capsys.readouterr().out
    assert "prints no values" not in shown
    other, budget = {
        "deit3-vit-b-finetune-a": ("deit3-vit-b", 400),
        "deit3-vit-s-800-finetune-b": ("deit3-vit-s", 800),
        "transfer-cars-adamw": ("transfer-cars", 1000),
    }.get(name, ("", 0))
    if other:
        assert f"# Values printed in the paper, for {other} at {budget} epochs" in shown
    values = [line.split()[-1] for line in shown.splitlines() if " top1 " in line]
    assert len(values) >= 2
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    if name == "deit3-vit-b-finetune-b":
        assert "# plain 400 top1 83.34" in lines
        assert "# TrAct λ=0.1 400 top5 96.52" in lines
        assert not any(" minutes " in line for line in lines)  # those are of the pre-training
    if name == "transfer-cars-adamw":
        assert "# plain 1000 top1 90.44" in lines


def test_a_recipe_of_figures_says_that_no_values_are_printed(capsys):
    cli.main(["show", "cifar10-vit-lambda"])
    assert "The paper prints no values of this experiment." in capsys.readouterr().out


def test_a_recipe_without_printed_rates_shows_tune_first(capsys):
    cli.main(["show", "cifar100-resnet18-adam"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "# trainact tune cifar100-resnet18-adam"
    assert lines[3].startswith("# trainact run cifar100-resnet18-adam")
    assert "--tuned runs/cifar100-resnet18-adam/tuning/tuning.json" in "".join(lines[3:5])


def test_arms_that_the_paper_does_not_have_are_marked(capsys):
    cli.main(["show", "cifar10-vit-norms"])
    lines = capsys.readouterr().out.splitlines()
    marked = [line.split("tract.lam")[0] for line in lines if line.endswith("[not in the paper]")]
    names = [line.removeprefix("#").strip() for line in marked]
    assert names == ["patch-norm tract-0.1", "dual-patch-norm tract-0.1"]
