"""trainact ls: every recipe, its runs and their time."""

import re

import pytest

pytest.importorskip("rich", reason="terminal tables need rich")

from trainact.lab.commands import cli
from trainact.lab.commands.ls import WIDTH, make_listing
from trainact.lab.cost.estimates import list_costs, read_listing, read_throughputs
from trainact.lab.recipes.experiment import find_experiment, list_experiments, make_experiment
from trainact.lab.recipes.recipe import Recipe, change_recipe, identify, recipe_to_dict


@pytest.fixture(scope="module")
def listing():
    return make_listing(read_listing(), read_throughputs())


def test_every_recipe_is_listed_with_title_place_runs_and_time(listing):
    rows = {}
    for name, title, *rest in listing.rows:
        if name:
            last = name
            rows[name] = [title, *rest]
        else:
            rows[last][0] += f" {title}"
            assert rest == ["", "", "", ""]
    assert list(rows) == list_experiments()
    for name, (title, paper, runs, _, _) in rows.items():
        experiment = find_experiment(name)
        assert title == experiment.title
        assert paper == (experiment.paper or "-")
        assert runs == str(len(experiment.plan()))


def test_a_run_that_recipes_share_is_counted_once(listing):
    rows = {name: rest for name, _, _, *rest in listing.rows if name}
    assert rows["cifar10-vit"][:2] == ["80", "80"]
    assert rows["cifar10-vit-norms"][:2] == ["160", "80"]  # the others are those of cifar10-vit
    assert rows["cifar10-vit-lambda"][:2] == ["45", "25"]
    assert rows["cifar10-vit-norms"][2] == rows["cifar10-vit"][2]
    new = sum(int(row[1]) for row in rows.values())
    plans = [find_experiment(name).plan() for name in list_experiments()]
    times = find_experiment("time-cifar10-vit").plan()  # runs of cifar10-vit, done again alone
    assert rows["time-cifar10-vit"][:2] == ["6", "6"]
    distinct = {identify(recipe) for plan in plans for recipe in plan}
    assert new == len(distinct) + len(times)


def test_the_sum_says_how_many_runs_are_shared(capsys):
    assert cli.main(["ls", "cifar10-vit-ranges"]) == 0
    assert "All together: 60 runs, 36 h GPU." in capsys.readouterr().out
    assert cli.main(["ls", "cifar10"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"All together: \d+ runs \(\d+ more are shared and done once\), "
                     r".* GPU", shown)  # fmt: skip


def test_recipes_for_a_gpu_have_no_time_on_a_cpu(listing):
    times = {name: time for name, *_, time in listing.rows if name}
    assert times["cifar10-vit"] == "3.8 days GPU"
    for name, shown in times.items():
        kind = "CPU" if find_experiment(name).recipe.run.device == "cpu" else "GPU"
        assert shown.endswith("CPU" if name == "photos" else kind), name
        assert "days CPU" not in shown


def test_the_output_fits_100_columns(capsys):
    assert cli.main(["ls"]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= WIDTH == 100
    assert "multiply-adds per second of training" in shown


def test_a_family_is_listed_alone(capsys):
    cli.main(["ls", "cifar10-cpu"])
    shown = capsys.readouterr().out
    assert "cifar10-cpu-resnet-sgd" in shown
    assert "cifar100" not in shown


def test_unknown_work_has_no_time():
    recipe = change_recipe(Recipe(), {"data.name": "/some/folder"})
    experiment = make_experiment({**recipe_to_dict(recipe), "experiment": {"title": "mine"}}, "x")
    assert make_listing(list_costs([experiment]), read_throughputs()).rows[0][-1] == "-"
