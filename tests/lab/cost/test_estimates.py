"""The estimated work and time of runs, and the tables behind them."""

import pytest
import torch

from trainact.lab.cost.estimates import (
    Throughput,
    count_model,
    count_run,
    estimate_experiment,
    estimate_runs,
    read_counts,
    read_throughputs,
)
from trainact.lab.cost.multiply_adds import estimate_cost
from trainact.lab.models.build import build_model
from trainact.lab.recipes.experiment import find_experiment, make_experiment
from trainact.lab.recipes.recipe import Recipe, change_recipe, recipe_to_dict

SMALL = "cifar10-cpu-resnet-sgd"


def test_the_work_of_a_run_is_that_of_its_network_and_images():
    recipe = find_experiment(SMALL).plan()[0]
    network = build_model(recipe.model, 10, 3, 32)
    forward = estimate_cost(network, example_input=torch.zeros(1, 3, 32, 32)).forward
    assert recipe.schedule.epochs == 2
    assert count_run(recipe) == 2 * (20_000 * 3 * forward + 10_000 * forward)


@pytest.mark.parametrize("name", [SMALL, "cifar10-vit-norms", "cifar10-resnet18-adam-sgd"])
def test_an_experiment_is_the_sum_of_its_runs(name):
    experiment = find_experiment(name)
    works = [count_run(run) for run in experiment.plan()]
    cost = estimate_experiment(experiment)
    assert cost.runs == len(works)
    assert cost.total == pytest.approx(sum(works))
    assert cost.longest == max(works)


def test_a_run_is_counted_once():
    one, two = (find_experiment(name) for name in ("cifar10-vit", "cifar10-vit-norms"))
    counted: set[str] = set()
    first, second = (estimate_experiment(one, counted), estimate_experiment(two, counted))
    assert (first.runs, first.new, second.runs, second.new) == (80, 80, 160, 80)
    assert second.total == pytest.approx(estimate_experiment(two).total / 2, rel=0.01)
    assert second.longest == estimate_experiment(two).longest
    assert len(counted) == 160
    assert estimate_experiment(one, counted).new == 0
    assert estimate_runs([]).total == 0


def test_what_depends_on_the_data_is_unknown():
    recipe = change_recipe(Recipe(), {"data.name": "/some/folder"})
    assert count_run(recipe) is None
    experiment = make_experiment({**recipe_to_dict(recipe), "experiment": {"title": "mine"}}, "x")
    cost = estimate_experiment(experiment)
    assert (cost.runs, cost.total, cost.longest) == (len(experiment.plan()), None, None)
    assert read_throughputs()[0].estimate_seconds(cost.total) is None


def test_a_recipe_of_days_is_not_for_a_cpu():
    slow = Throughput("cpu", "slow", 1e9, "")
    fast = Throughput("cpu", "fast", 1e14, "")
    gpu = Throughput("cuda", "gpu", 1e13, "")
    large, small = (estimate_experiment(find_experiment(name)) for name in ("cifar10-vit", SMALL))
    assert (large.suits(slow), large.suits(fast), large.suits(gpu)) == (False, True, True)
    assert (small.suits(slow), small.suits(fast), small.suits(gpu)) == (True, True, False)


def test_the_table_holds_what_is_counted():
    """The fastest rows here; ``tests/tools/test_estimates.py`` counts all again."""
    for key, counted in list(read_counts().items())[-7:]:
        assert count_model(key) == counted, key


def test_the_throughputs_name_hardware_and_source():
    cpu, gpu = read_throughputs()
    assert (cpu.device, gpu.device, gpu.hardware) == ("cpu", "cuda", "NVIDIA RTX 4090")
    assert "the paper's 1091 s" in gpu.source
    plain = next(r for r in find_experiment("cifar10-vit").plan() if r.run.arm == "plain")
    assert gpu.estimate_seconds(count_run(plain)) == pytest.approx(1091)


def test_a_network_of_the_papers_table_is_counted_by_its_entry():
    assert count_model(("lab:resnet18", "{}", 100, 32)) == (555_468_800, 555_468_800)
