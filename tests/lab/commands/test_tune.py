"""trainact tune, and trainact run with what it chose."""

import json

import pytest

from comparison_records import make_record, make_study
from lab_helpers import HERE, make_quick
from result_folders import find_records, write_record, write_study, write_tuning
from trainact.errors import TrActValueError
from trainact.lab.commands import tune as tune_module
from trainact.lab.commands.cli import main
from trainact.lab.recipes.experiment import find_experiment, make_experiment
from trainact.lab.recipes.recipe import recipe_to_dict
from trainact.lab.recipes.tuning import read_tuning, use_tuning
from trainact.lab.report.chapters import ChapterId
from trainact.lab.report.experiments_report import read_report
from trainact.lab.running import runner

RECIPE = """
[experiment]
title = "quick"
budgets = [1, 2]
seeds = "0"
arms = ["plain", "tract"]

[experiment.grid]
"optimizer.lr" = [0.02, 1e30]
"optimizer.first_layer_lr" = [0.3, 3.0]

[experiment.at.2]
"optimizer.lr" = 0.5

[data]
name = "photos"
train_images = 320
test_images = 80
held_out = 80
batch_size = 32

[model]
name = "small_models:make_tiny"

[run]
device = "cpu"
"""


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(HERE)
    path = tmp_path / "quick.toml"
    path.write_text(RECIPE)
    return path


def test_a_rate_is_chosen_on_held_out_images_and_used_by_every_arm(recipe, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["tune", str(recipe), "--out", str(out)]) == 0
    output = capsys.readouterr().out
    file = out / "quick" / "tuning" / "tuning.json"
    assert f"trainact run {recipe} --tuned {file}" in output
    tuning = json.loads(file.read_text())
    assert {row["optimizer.lr"] for row in tuning["chosen"].values()} == {0.02}
    lost = [row["value"] for row in tuning["tried"] if row["accuracy"] is None]
    assert lost == [1e30, 1e30]
    runs = find_records(out)
    assert all(not run["recipe"]["tract"]["enabled"] for run in runs)
    assert {run["recipe"]["data"]["evaluate_on"] for run in runs} == {"held-out"}
    assert main(["run", str(recipe), "--tuned", str(file), "--dry-run"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2 * 3


def test_a_second_budget_leaves_the_first_and_its_settings_are_kept(recipe, tmp_path, capsys):
    def tune(*words):
        return main(["tune", str(recipe), "--out", str(tmp_path / "out"), *words])

    setting = "optimizer.weight_decay=0.01"
    assert tune("--epochs", "1", setting) == 0
    assert f"{recipe} {setting} --epochs 1 --tuned" in capsys.readouterr().out
    file = tmp_path / "out" / "quick" / "tuning" / "tuning.json"
    before = json.loads(file.read_text())
    assert tune("--epochs", "2", setting) == 0
    after = json.loads(file.read_text())
    assert list(after["chosen"]) == ["1", "2"]
    assert after["tried"][: len(before["tried"])] == before["tried"]
    assert len(after["tried"]) == 2 * len(before["tried"])
    capsys.readouterr()
    for words in (["tune", "--out", str(tmp_path / "out")], ["run", "--tuned", str(file)]):
        assert main([words[0], str(recipe), *words[1:], "--epochs", "2"]) == 2
        message = "chosen with optimizer.weight_decay=0.01, and not with 0; use the same"
        assert message in capsys.readouterr().err
    assert main(["run", str(recipe), "--tuned", str(file), "--dry-run", setting]) == 0


def test_a_run_that_two_fields_need_is_done_once(recipe, tmp_path):
    grid = '"optimizer.lr" = [0.02]\n"optimizer.first_layer_lr" = [1.0, 3.0]'
    start, end = RECIPE.index('"optimizer.lr" = [0.02, 1e30]'), RECIPE.index("[experiment.at.2]")
    recipe.write_text(f"{RECIPE[:start]}{grid}\n\n{RECIPE[end:]}")
    assert main(["tune", str(recipe), "--out", str(tmp_path / "out"), "--epochs", "1"]) == 0
    assert sorted(run["arm"] for run in find_records(tmp_path / "out")) == [
        "tune-0.02",
        "tune-0.02-3",
    ]
    tuning = json.loads((tmp_path / "out" / "quick" / "tuning" / "tuning.json").read_text())
    alone, again, _ = tuning["tried"]
    assert alone["accuracy"] == again["accuracy"]


def test_a_run_that_fails_says_nothing_about_its_value(recipe, tmp_path, monkeypatch, capsys):
    real = runner.train

    def fail_once(planned, *rest):
        if planned.optimizer.lr == 0.02:
            raise MemoryError("out of memory")
        return real(planned, *rest)

    monkeypatch.setattr(runner, "train", fail_once)
    assert main(["tune", str(recipe), "--out", str(tmp_path / "out"), "--epochs", "1"]) == 2
    assert "1 of 2 runs failed, so no value was chosen" in capsys.readouterr().err
    assert not list((tmp_path / "out").rglob("tuning.json"))


def make_tuned(**chosen):
    experiment = make_experiment(
        {**recipe_to_dict(make_quick()), "experiment": {"title": "x", "budgets": [2, 4]}}, "x"
    )
    return use_tuning(experiment, {"experiment": "x", "chosen": chosen})


def test_rates_are_of_a_budget_and_a_factor_is_an_arm():
    rates = {"optimizer.lr": 0.3, "optimizer.first_layer_lr": 3.0}
    tuned = make_tuned(**{"2": rates, "4": {"optimizer.lr": 0.1}})
    runs = [(r.schedule.epochs, r.run.arm, r.optimizer.lr) for r in tuned.plan() if not r.run.seed]
    assert runs == [
        (2, "plain", 0.3), (2, "tract-0.1", 0.3), (2, "lr-3", 0.3),
        (4, "plain", 0.1), (4, "tract-0.1", 0.1),
    ]  # fmt: skip


def test_the_factor_of_an_arm_is_tuned_by_itself(recipe, tmp_path, monkeypatch, capsys):
    """At the recipe's general rate, in the arm, into a file of its own."""
    monkeypatch.setattr(tune_module, "FACTORS", (0.1, 3.0, 1e30))
    out = tmp_path / "out"
    words = ["tune", str(recipe), "--out", str(out), "--arms", "tract-0.1+random"]
    assert main(words) == 0
    output = capsys.readouterr().out
    file = out / "quick" / "tuning" / "tuning-random+tract-0.1.json"
    tuning = json.loads(file.read_text())
    assert tuning["arm"] == "random+tract-0.1"
    assert {row["field"] for row in tuning["tried"]} == {"optimizer.first_layer_lr"}
    chosen = {budget: row["optimizer.first_layer_lr"] for budget, row in tuning["chosen"].items()}
    assert set(chosen.values()) <= {0.1, 3.0}
    for budget, factor in chosen.items():
        arm = f"random+tract-0.1+lr-{factor:g}"
        assert f"trainact run {recipe} --epochs {budget} --arms {arm}\n" in output
    runs = find_records(out)
    assert len(runs) == 2 * 3
    assert {(r["budget"], r["recipe"]["optimizer"]["lr"]) for r in runs} == {(1, 0.08), (2, 0.5)}
    for run in runs:
        assert run["recipe"]["tract"]["enabled"]
        assert run["recipe"]["model"]["start"] == "random"
        assert run["recipe"]["data"]["evaluate_on"] == "held-out"
    assert main(["run", str(recipe), "--tuned", str(file), "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 * 3
    assert sum("random+tract-0.1+lr-" in line for line in lines) == 2


@pytest.mark.parametrize(
    ("arm", "message"),
    [
        ("eigen+frozen", "frozen and lr-0.01 cannot be parts of one arm"),
        ("lr-3", "lr-3 and lr-0.01 cannot be parts of one arm"),
        ("mine", "mine is an arm of quick's file; tune arms that are made of parts"),
    ],
)
def test_an_arm_without_a_factor_of_its_own_is_not_tuned(recipe, tmp_path, arm, message, capsys):
    extra = '[experiment.extra_arms.mine]\n"optimizer.momentum" = 0.5\n\n[experiment.grid]'
    recipe.write_text(RECIPE.replace("[experiment.grid]", extra))
    assert main(["tune", str(recipe), "--out", str(tmp_path / "out"), "--arms", arm]) == 2
    assert message in capsys.readouterr().err
    factor = ["optimizer.first_layer_lr=3", "--arms", "eigen"]
    assert main(["tune", str(recipe), "--out", str(tmp_path / "out"), *factor]) == 2
    assert "optimizer.first_layer_lr is tuned by quick; do not set it" in capsys.readouterr().err


def test_a_page_lists_the_values_tried_in_each_arm(tmp_path):
    experiment = tmp_path / "cifar10-cpu-vit-adam"
    arms = ("plain", "tract-0.1", "eigen", "foof+lr-0.3")
    for record in make_study(arms=("plain", "tract-0.1"), budgets=(12,), seeds=(0, 1)):
        write_record(experiment, record)
    for arm in arms[2:]:
        for seed in (0, 1):
            write_record(experiment, make_record(arm, 12, seed, 60))
    tuning = write_tuning(experiment, budgets=(12,))
    field = "optimizer.first_layer_lr"
    tuning |= {"arm": "foof", "chosen": {"12": {field: 0.08}}}
    tuning["tried"] = [row | {"field": field} for row in tuning["tried"]]
    (experiment / "tuning" / "tuning-foof.json").write_text(json.dumps(tuning))
    (page,) = read_report([tmp_path]).pages
    (chapter,) = [c for c in page.chapters if c.id == ChapterId.TUNING]
    assert [grid.caption.partition(",")[0] for grid in chapter.grids] == [
        "Values tried in plain training", "Values tried in foof",
    ]  # fmt: skip
    (commands,) = [c.command for c in page.chapters if c.id == ChapterId.REPRODUCE]
    assert commands.splitlines() == [
        "trainact tune cifar10-cpu-vit-adam --epochs 12",
        "trainact tune cifar10-cpu-vit-adam --epochs 12 --arms foof",
        "trainact run cifar10-cpu-vit-adam",
        "trainact run cifar10-cpu-vit-adam --epochs 12 --seeds 0,1 --arms eigen,foof+lr-0.3",
    ]
    assert main(["collect", str(experiment), "--into", str(tmp_path / "collected")]) == 0
    (again,) = read_report([tmp_path / "collected"]).pages
    assert again.study.arm_tunings == page.study.arm_tunings == [tuning]


def test_what_was_tuned_must_be_what_is_run(tmp_path):
    with pytest.raises(TrActValueError, match="no values were chosen for 4 epochs, only for 2"):
        make_tuned(**{"2": {"optimizer.lr": 0.3}})
    with pytest.raises(TrActValueError, match="were chosen for y, not for photos"):
        use_tuning(find_experiment("photos"), {"experiment": "y", "chosen": {}})
    with pytest.raises(TrActValueError, match="'trainact tune NAME' writes"):
        read_tuning(tmp_path / "none.json")
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(TrActValueError, match="was not written by trainact tune"):
        read_tuning(tmp_path / "other.json")


def test_an_arm_of_the_recipes_file_is_kept():
    own = {"slow": {"optimizer.first_layer_lr": 0.1, "model.start": "eigen"}}
    table = {"title": "x", "budgets": [2], "arms": ["plain", "lr-0.3"], "extra_arms": own}
    experiment = make_experiment({**recipe_to_dict(make_quick()), "experiment": table}, "x")
    chosen = {"2": {"optimizer.first_layer_lr": 3.0}}
    tuned = use_tuning(experiment, {"experiment": "x", "chosen": chosen})
    assert [r.run.arm for r in tuned.plan() if not r.run.seed] == ["plain", "slow", "lr-3"]


def test_a_page_says_where_runs_do_not_have_the_chosen_rates(tmp_path):
    write_study(tmp_path / "mine", arms=("plain", "tract-0.1"), budgets=(2, 4), seeds=(0, 1))
    write_tuning(tmp_path / "mine", chosen=0.02)
    (page,) = read_report([tmp_path]).pages
    (chapter,) = [c for c in page.chapters if c.id == ChapterId.TUNING]
    assert "The runs of 2 epochs have optimizer.lr 0.08, not the chosen 0.02." in chapter.notes


def test_a_budget_that_is_run_alone_may_be_tuned_alone(recipe, tmp_path, capsys):
    file = tmp_path / "tuning.json"
    file.write_text('{"experiment": "quick", "chosen": {"1": {"optimizer.lr": 0.3}}}')
    words = ["run", str(recipe), "--tuned", str(file), "--dry-run"]
    assert main(words) == 2
    assert "no values were chosen for 2 epochs" in capsys.readouterr().err
    assert main([*words, "--epochs", "1"]) == 0


def test_a_field_of_the_grid_is_not_set(recipe, tmp_path, capsys):
    assert main(["tune", str(recipe), "--out", str(tmp_path), "optimizer.lr=0.3"]) == 2
    assert "optimizer.lr is tuned by quick; do not set it" in capsys.readouterr().err
    assert main(["tune", "photos", "--out", str(tmp_path)]) == 2
    assert "photos has no values to tune (experiment.grid)" in capsys.readouterr().err


def test_each_network_of_a_table_is_tuned_and_run_with_its_own_values(recipe, tmp_path, capsys):
    networks = 'networks = ["small_models:make_tiny", "small_models:make_noisy"]'
    recipe.write_text(RECIPE.replace('seeds = "0"', f'seeds = "0"\n{networks}'))
    out = tmp_path / "out"
    words = ["--networks", "small_models-make_noisy", "--epochs", "1"]
    assert main(["tune", str(recipe), "--out", str(out), *words]) == 0
    command = capsys.readouterr().out.splitlines()[-1].split()
    assert command[:2] == ["trainact", "run"]
    assert [path.parent.name for path in out.rglob("tuning")] == ["small_models-make_noisy"]
    assert main([*command[1:], "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert all("small_models-make_noisy" in line for line in lines)
