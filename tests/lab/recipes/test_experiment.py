"""Experiments: their runs, their files and the package's recipes."""

import pytest

from trainact.errors import TrActError, TrActValueError
from trainact.lab.recipes.arms import parse_arms
from trainact.lab.recipes.experiment import Experiment, find_experiment, list_experiments
from trainact.lab.recipes.recipe import Recipe, change_recipe, identify
from trainact.lab.running.smoke import shrink


def test_an_experiment_plans_pairs_side_by_side():
    arms = tuple(parse_arms(["plain", "tract"], [0.1]))
    experiment = Experiment(
        name="e", title="E", recipe=Recipe(), arms=arms, budgets=(2, 4), seeds=(0, 1),
        changes={4: {"optimizer.lr": 0.5}},
    )  # fmt: skip
    runs = experiment.plan()
    assert [(r.run.seed, r.schedule.epochs, r.run.arm) for r in runs][:4] == [
        (0, 2, "plain"), (0, 2, "tract-0.1"), (0, 4, "plain"), (0, 4, "tract-0.1"),
    ]  # fmt: skip
    assert [r.optimizer.lr for r in runs[:4]] == [0.08, 0.08, 0.5, 0.5]
    assert len({identify(r) for r in runs}) == len(runs) == 8


@pytest.mark.parametrize("name", list_experiments())
def test_every_recipe_of_the_package_resolves_and_shrinks(name):
    experiment = find_experiment(name)
    runs = experiment.plan()
    left_out = sum(len(experiment.arms) - len(arms) for arms in experiment.arms_at.values())
    each = len(experiment.arms) * len(experiment.budgets) - left_out
    networks = len(experiment.split())
    assert len(runs) == networks * each * len(experiment.seeds)
    assert experiment.title
    small = shrink(experiment).plan()
    assert len(small) == networks * len(experiment.arms)
    assert all(r.run.smoke and r.schedule.epochs == 1 for r in small)


def test_an_unknown_recipe_names_the_nearest(tmp_path):
    with pytest.raises(TrActValueError, match="did you mean 'photos'"):
        find_experiment("photo")
    path = tmp_path / "mine.toml"
    path.write_text('[experiment]\ntitle = "x"\nbudgets = [2]\n[experiment.at.3]\n"data.flip"=true')
    with pytest.raises(TrActValueError, match=r"budget in mine, experiment\.at '3'"):
        find_experiment(str(path))
    path.write_text('[experiment]\ntitle = "x"\n[experiment.extra_arms.a]\n"data.fli" = true')
    with pytest.raises(TrActValueError, match="did you mean 'flip'"):
        find_experiment(str(path))
    path.write_text("[experiment]\nbudgets = [2]")
    with pytest.raises(TrActValueError, match="lacks title"):
        find_experiment(str(path))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('[experiment.arms_at]\n7 = ["plain"]', "budget in wrong, experiment.arms_at '7'"),
        ('[experiment.arms_at]\n5 = ["plane"]', "'plane'; did you mean 'plain'"),
        ('[experiment.against]\nplain = "tract"', "arm in wrong, experiment.against 'tract'"),
        ('[experiment.grid]\n"optimizer.lrr" = [0.1]', "did you mean"),
        ("[experiment.pretraining]\nrecipe = 'photo'\nbudget = 5", "did you mean 'photos'"),
        ("[experiment.pretraining]\nrecipe = 'photos'", "experiment, pretraining lacks budget"),
        ("[experiment.pretraining]\nrecipe = 'photos'\nbudget = 'x'", "takes a whole number"),
        ("[experiment.extra_arms.a]\n'tract.lam' = 'x'", "lam takes a number; got 'x'"),
    ],
)
def test_a_wrong_experiment_says_what_came_and_what_is_accepted(tmp_path, line, message):
    (tmp_path / "wrong.toml").write_text(f'[experiment]\ntitle = "x"\nbudgets = [5]\n{line}')
    with pytest.raises(TrActError, match=message):
        find_experiment(str(tmp_path / "wrong.toml"))


def test_weights_come_from_a_recipe_and_a_budget_that_exist():
    sources = {}
    for name in list_experiments():
        experiment = find_experiment(name)
        starts = any("model.pretraining" in arm.changes for arm in experiment.arms)
        assert starts == (experiment.pretraining is not None)
        if experiment.pretraining is not None:
            source = find_experiment(experiment.pretraining.recipe)
            assert experiment.pretraining.budget in source.budgets
            arms = {arm.changes["model.pretraining"] for arm in experiment.arms}
            assert arms <= {arm.name for arm in source.arms}
            assert experiment.recipe.model.name == source.recipe.model.name
            sources[name] = (source.name, experiment.pretraining.budget)
    assert len(sources) == 14
    assert sources["deit3-vit-b-finetune-b"] == ("deit3-vit-b", 400)
    assert sources["deit3-vit-s-finetune-a"] == ("deit3-vit-s", 400)
    assert sources["deit3-vit-s-800-finetune-a"] == ("deit3-vit-s", 800)
    assert sources["transfer-cars"] == ("deit3-vit-s", 800)


def test_the_settings_that_the_paper_states_are_those_of_the_recipes():
    runs = {r.schedule.epochs: r for r in find_experiment("imagenet-resnet50").plan()}
    rates = {e: (r.optimizer.lr, r.schedule.milestones) for e, r in runs.items()}
    assert rates == {30: (0.141, (10, 20)), 60: (0.1, (20, 40)), 90: (0.1, (30, 60))}
    lams = {r.schedule.epochs: r.tract.lam for r in find_experiment("deit3-vit-s").plan()}
    assert lams == {400: 0.1, 800: 0.2}
    for name, epochs in (("cifar10", 200), ("cifar100", 200), ("flowers102", 5000), ("cars", 1000)):
        plan = find_experiment(f"transfer-{name}").plan()
        stages = {(r.model.pretraining, r.tract.enabled) for r in plan}
        assert stages == {(a, b) for a in ("plain", "tract") for b in (True, False)}
        assert {r.schedule.epochs for r in plan} == {epochs}
        assert all(r.optimizer.nesterov for r in plan)  # as timm's sgd has it


def test_the_recipe_for_the_time_of_the_cifar_vit_has_the_settings_of_its_figure():
    figure = {identify(run) for run in find_experiment("cifar10-vit").plan()}
    times = [identify(run) for run in find_experiment("time-cifar10-vit").plan()]
    assert len(times) == 6
    assert set(times) < figure


def test_the_recipes_whose_times_are_the_result_are_those_of_section_4_6():
    timed = [name for name in list_experiments() if find_experiment(name).timed]
    assert timed == ["time-cifar10-vit", "time-deit3-vit-b", "time-deit3-vit-s"]
    assert all(find_experiment(name).paper == "Section 4.6" for name in timed)


@pytest.mark.parametrize(("size", "gpus"), [("s", 4), ("b", 8)])
def test_the_recipes_for_the_time_of_deit_train_the_share_of_one_gpu(size, gpus):
    whole = find_experiment(f"deit3-vit-{size}").plan()[0]
    part = find_experiment(f"time-deit3-vit-{size}").plan()[0]
    assert part.data.batch_size * gpus == whole.data.batch_size
    assert part.data.train_images == 200 * part.data.batch_size
    same = {"data.train_images": 0, "data.test_images": 0, "data.batch_size": 2048}
    same |= {"schedule.epochs": whole.schedule.epochs, "tract.lam": whole.tract.lam}
    same |= {"run.keep_weights": True}
    assert change_recipe(part, same) == whole
