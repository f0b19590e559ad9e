"""trainact ls and trainact show: every recipe, what it takes, and what the paper printed."""

import tomllib

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from comparison_records import ENVIRONMENT
from result_folders import write_record

pytest.importorskip("rich", reason="terminal tables need rich")

from trainact.lab.commands import cli
from trainact.lab.commands.ls import add_up, make_listing
from trainact.lab.cost.estimates import CPU_RATE, count_run, find_throughputs
from trainact.lab.cost.multiply_adds import count_forward, estimate_cost
from trainact.lab.data.published import count_images
from trainact.lab.models.builders import build_for_training
from trainact.lab.models.networks import build_network
from trainact.lab.models.zoos import hide_values
from trainact.lab.recipes.experiment import find_experiment, list_experiments, make_experiment
from trainact.lab.recipes.recipe import DataFields, Recipe, change_recipe, recipe_to_dict

SMALL = "cifar10-cpu-resnet-sgd"


def make_run_record(recipe, seconds, **environment):
    """Return a record of four epochs of training that each took so many seconds."""
    tables = recipe_to_dict(recipe)
    counts = count_images(recipe.data)
    epoch = {"train_seen": counts.train, "train_seconds": seconds}
    return {
        "format": 1,
        "kind": "full",
        "arm": "plain",
        "budget": 4,
        "seed": 0,
        "recipe_id": f"{seconds}",
        "recipe": tables,
        "data": {"classes": counts.classes},
        "epochs": [epoch | {"train_seconds": 9 * seconds}, epoch, epoch, epoch],
        "environment": ENVIRONMENT | environment,
    }


def test_every_recipe_is_listed_with_title_place_runs_and_cost(capsys):
    assert cli.main(["ls"]) == 0
    told = capsys.readouterr().out
    for name in list_experiments():
        experiment = find_experiment(name)
        (line,) = [line for line in told.splitlines() if line.startswith(f"{name} ")]
        for word in (experiment.title, experiment.paper, f" {len(experiment.plan())} "):
            assert word in line
    assert "multiply-adds per second of training" in told


def test_a_family_is_listed_alone(capsys):
    cli.main(["ls", "cifar10-cpu"])
    told = capsys.readouterr().out
    assert SMALL in told
    assert "cifar100" not in told


def test_the_work_of_a_run_is_that_of_its_network_and_images():
    recipe = find_experiment(SMALL).plan()[0]
    network = build_for_training(recipe.model, 10, 3, 32)
    forward = estimate_cost(network, example_input=torch.zeros(1, 3, 32, 32)).forward
    assert recipe.schedule.epochs == 2
    assert count_run(recipe) == 2 * (20_000 * 3 * forward + 10_000 * forward)


def test_images_are_counted_without_any_data():
    for fields, train, test in (
        (DataFields("cifar100"), 50_000, 10_000),
        (DataFields("cifar10", held_out=5000), 45_000, 10_000),
        (DataFields("cifar10", train_images=20_000, held_out=5000), 20_000, 10_000),
        (DataFields("cifar10", held_out=5000, evaluate_on="held-out"), 45_000, 5000),
        (DataFields("photos", test_images=80), 6000, 80),
    ):
        counts = count_images(fields)
        assert (counts.train, counts.test) == (train, test)
    assert count_images(DataFields("/some/folder")) is None


def test_what_cannot_be_known_is_left_open():
    recipe = change_recipe(Recipe(), {"data.name": "/some/folder"})
    assert count_run(recipe) is None
    assert add_up([1.0, None]) is None
    experiment = make_experiment({**recipe_to_dict(recipe), "experiment": {"title": "mine"}}, "x")
    assert make_listing([experiment], find_throughputs()).rows[0][-1] == "-"


def test_without_records_the_stated_figures_are_named(tmp_path):
    cpu, gpu = find_throughputs(tmp_path)
    assert (cpu.device, cpu.rate) == ("cpu", CPU_RATE)
    assert "stated here" in cpu.source
    assert gpu.hardware == "NVIDIA RTX 4090"
    assert "the paper's 1091 s" in gpu.source
    plain = next(r for r in find_experiment("cifar10-vit").plan() if r.run.arm == "plain")
    assert gpu.time(plain, count_run(plain)) == pytest.approx(1091)


def test_records_of_the_same_kind_of_device_replace_them(tmp_path):
    recipe = find_experiment(SMALL).plan()[0]
    for seconds in (10.0, 20.0, 40.0):
        write_record(tmp_path / SMALL, make_run_record(recipe, seconds))
    gpu = {"device": "cuda:0", "accelerator": "Some GPU"}
    write_record(tmp_path / "other", make_run_record(recipe, 0.5, **gpu))
    smoke = make_run_record(recipe, 1.0) | {"kind": "smoke"}
    write_record(tmp_path / SMALL, smoke)
    damaged = write_record(tmp_path / "damaged", make_run_record(recipe, 1.0)) / "record.json"
    damaged.write_text("{")
    cpu, cuda = find_throughputs(tmp_path)
    assert cpu.hardware == "Some Processor @ 2.50GHz, 1 thread"
    assert "3 records" in cpu.source
    train_only = count_run(recipe) / 2 * 6 / 7  # three forwards of 20,000 and one of 10,000
    assert cpu.rate == pytest.approx(train_only / 20)
    assert cuda.hardware == "Some GPU"
    assert cuda.rate == pytest.approx(train_only / 0.5)


@pytest.mark.parametrize("name", list_experiments())
def test_what_is_shown_is_a_recipe_file_that_gives_the_same_runs(name, capsys):
    assert cli.main(["show", name]) == 0
    shown = make_experiment(tomllib.loads(capsys.readouterr().out), name)
    assert shown == find_experiment(name)


def test_a_recipe_is_shown_with_arms_budgets_note_and_cost(capsys):
    cli.main(["show", "cifar10-vit"])
    told = capsys.readouterr().out
    for fact in (
        "Figure 4 (fig:vit-cifar-10)",
        "budgets  100, 200, 400, 800 epochs",
        "seeds    0, 1, 2, 3, 4",
        "runs     80",
        "tract.enabled = True, tract.lam = 0.05",
        "at 400 epochs            optimizer.lr = 0.000316",
        "all runs together",
        "AutoAugment is the upstream repository's",
    ):
        assert fact in told
    assert "seconds     1091" in told


def test_an_unknown_recipe_is_refused_with_the_nearest(capsys):
    assert cli.main(["show", "cifar10-vti"]) == 2
    assert "did you mean 'cifar10-vit'" in capsys.readouterr().err


def test_a_file_without_an_experiment_is_shown_too(tmp_path, capsys):
    path = tmp_path / "mine.toml"
    path.write_text("[optimizer]\nlr = 0.3\n")
    assert cli.main(["show", str(path)]) == 0
    assert tomllib.loads(capsys.readouterr().out)["optimizer"]["lr"] == 0.3


@pytest.mark.parametrize("name", ["vit-cifar", "resnext50", "shufflenetv2"])
def test_the_quick_count_of_a_forward_is_torchs_own(name):
    model = hide_values(lambda: build_network(name, 100)).eval()
    images = torch.zeros(1, 3, 32, 32, device="meta")
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
        model(images)
    assert count_forward(model, images) == counter.get_total_flops() / 2
