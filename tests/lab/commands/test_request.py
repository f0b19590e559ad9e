"""One route from the command line to experiments, for compare, run and tune."""

import argparse
import importlib

import pytest

from trainact.errors import TrActValueError
from trainact.lab.commands import cli
from trainact.lab.commands.request import OPTIONS, parse_settings

COMMANDS = ("compare", "run", "tune")
APPLY = {
    "compare": {"--data", "--epochs", "--seeds", "--arms", "--lam", "--jobs", "--out"},
    "run": set(OPTIONS) - {"--lam"},
    "tune": {"--data", "--epochs", "--seeds", "--arms", "--networks", "--jobs", "--out"},
}


def ask(command, *words):
    """Return the experiments that a command line asks for."""
    module = importlib.import_module(f"trainact.lab.commands.{command}")
    parser = argparse.ArgumentParser(f"trainact {command}")
    module.add_arguments(parser)
    arguments = parser.parse_intermixed_args(words)
    fields = []
    if command == "compare":
        arguments.arms = arguments.arms or module.choose_default_arms(arguments)
        fields = [module._read_fields(arguments)]
    return module.read_experiments(arguments, *fields)


def compare(recipe, *words):
    (experiment,) = ask("compare", "--recipe", recipe, *words)
    return experiment


def run(*words):
    (experiment,) = ask("run", *words)
    return experiment


# one route


def test_compare_has_the_recipes_learning_rate_at_each_budget():
    experiment = compare("cifar10-vit", "--epochs", "100,400", "--seeds", "0")
    rates = {run.schedule.epochs: run.optimizer.lr for run in experiment.plan()}
    assert rates == {100: 1e-3, 400: 3.1622776601683794e-4}
    own = compare("cifar10-vit", "--epochs", "400", "--lr", "0.5")
    assert {run.optimizer.lr for run in own.plan()} == {0.5}
    other = compare("cifar10-vit", "--epochs", "400", "--optimizer", "sgd")
    assert {run.optimizer.lr for run in other.plan()} == {0.08}
    dotted = compare("cifar10-vit", "--epochs", "400", "--optimizer", "sgd", "optimizer.lr=0.2")
    assert {run.optimizer.lr for run in dotted.plan()} == {0.2}


def test_all_commands_make_the_same_runs_of_a_recipe():
    words = ["--epochs", "90", "--seeds", "0", "data.workers=3"]
    ways = [
        compare("imagenet-resnet18", *words, "--arms", "plain,tract", "--lam", "0.05,0.1,0.2"),
        run("imagenet-resnet18", *words),
        ask("tune", "imagenet-resnet18", *words)[0],
    ]
    plans = [experiment.plan() for experiment in ways]
    assert plans[0] == plans[1] == plans[2]
    assert {recipe.data.workers for recipe in plans[0]} == {3}


def test_compare_takes_the_arms_of_the_command_line():
    experiment = compare("cifar10-cpu-resnet-sgd", "--arms", "plain,tract,lr=3", "--lam", "0.3")
    assert [arm.name for arm in experiment.arms] == ["plain", "tract-0.3", "lr-3"]
    assert {run.run.arm for run in experiment.plan()} == {"plain", "tract-0.3", "lr-3"}


def test_compare_takes_arms_of_several_parts():
    arms = "plain,eigen+tract,tract-0.2+random,eigen+frozen"
    experiment = compare("photos", "--arms", arms, "--lam", "0.1,0.3")
    assert [arm.name for arm in experiment.arms] == [
        "plain", "eigen+tract-0.1", "eigen+tract-0.3", "random+tract-0.2", "eigen+frozen",
    ]  # fmt: skip
    plan = experiment.plan()
    assert {(run.model.start, run.tract.enabled, run.tract.lam) for run in plan} == {
        ("default", False, 0.1), ("eigen", True, 0.1), ("eigen", True, 0.3), ("random", True, 0.2),
        ("eigen", False, 0.1),
    }  # fmt: skip


def test_run_takes_arms_that_the_recipe_does_not_have():
    """Also at budgets that the recipe limits to some arms; its own arms keep their budgets.

    An own arm that has none of the budgets was asked for, so it is not dropped.
    """
    arms = "plain,eigen+tract-0.1,frozen+eigen,lr-0.3,tract"
    words = ["cifar10-cpu-vit-adam", "--arms", arms, "--seeds", "0-1"]
    plan = run(*words, "--epochs", "12").plan()
    assert {one.schedule.epochs for one in plan} == {12}
    names = ["plain", "eigen+tract-0.1", "eigen+frozen", "lr-0.3", "tract-0.1"]
    assert [one.run.arm for one in plan] == 2 * names
    assert plan[2].optimizer.first_layer_frozen
    both = run(*words).plan()
    assert [one.run.arm for one in both if one.schedule.epochs == 6] == 2 * names
    at_most = [one.run.arm for one in both if one.schedule.epochs == 12]
    assert at_most == 2 * [name for name in names if name != "lr-0.3"]  # which is for 6 epochs
    own = run("cifar10-cpu-vit-adam", "--epochs", "12", "--seeds", "0-1").plan()
    assert [one for one in plan if one.run.arm == "plain"] == [
        one for one in own if one.run.arm == "plain"
    ]


def test_a_field_may_be_set_that_only_other_arms_set():
    experiment = run("cifar10-vit", "--arms", "plain", "tract.lam=3")
    assert {one.tract.lam for one in experiment.plan()} == {3.0}


def test_a_model_of_the_command_line_does_not_get_the_recipes_arguments():
    experiment = compare("photos", "--model", "lab:vgg11")
    assert experiment.recipe.model.arguments == {}
    experiment = compare("photos", "--model", "lab:vgg11", "model.arguments.width=3")
    assert experiment.recipe.model.arguments == {"width": 3}


def test_data_are_the_folder_of_a_named_data_set_or_the_data_set():
    assert run("imagenet-resnet18", "--data", "there").recipe.data.folder == "there"
    assert run("detection-voc2007", "--data", "there").recipe.data.folder == "there"
    assert run("photos", "--data", "there").recipe.data.name == "there"
    replaced = compare("imagenet-resnet18", "--epochs", "30", "--data", "there").recipe.data
    assert (replaced.name, replaced.folder) == ("there", "")


def test_a_field_holds_in_every_run_instead_of_a_budgets_own_value():
    plan = run("imagenet-resnet18", "optimizer.lr=0.2").plan()
    assert {run.optimizer.lr for run in plan} == {0.2}
    assert {run.schedule.milestones for run in plan} == {(10, 20), (20, 40), (30, 60)}


def test_a_field_that_is_set_stays_so_in_a_smoke_run():
    small = run("cifar10-vit", "--smoke", "data.train_images=64").recipe
    assert small.run.smoke
    assert small.data.train_images == 64


# refusals


@pytest.mark.parametrize(
    ("command", "option"),
    [(c, option) for c in COMMANDS for option in OPTIONS if option not in APPLY[c]],
)
def test_an_option_that_does_not_apply_is_refused_with_a_reason(command, option, capsys):
    recipe = [] if command == "compare" else ["photos"]
    value = [] if option == "--smoke" else ["1"]
    assert cli.main([command, *recipe, option, *value]) == 2
    assert f"{option} does not apply to 'trainact {command}': " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["cifar10-vit", "schedule.epochs=3"], "give --epochs"),
        (["cifar10-vit", "run.seed=3"], "give --seeds"),
        (["cifar10-vit", "run.arm=x"], "give --arms"),
        (["cifar10-vit", "tract.lam=3"], "tract-0.05, tract-0.1, tract-0.2 of cifar10-vit set"),
        (["cifar10-vit", "optimizer.lrr=3"], "did you mean"),
        (["photos", "optimizer.lr=1", "optimizer.lr=2"], "set twice: to '1' and to '2'"),
        (["photos", "data.name=a", "--data", "b"], "data.name is set twice: to 'a' and to 'b'"),
        (["photos", "--arms", "trct-0.1"], "unknown arm 'trct-0.1'; did you mean 'tract-0.1'"),
        (["photos", "--arms", "eigen+frozen+tract-0.1"], "a frozen weight is not trained"),
        (["photos", "--arms", "tract-0.1,tract-0.1"], "names an arm twice"),
        (["photos", "--arms", "eigen,lr=3", "model.start=random"], "the arms eigen of photos set"),
        (["transfer-cars", "--arms", "eigen"], "use 'trainact run transfer-cars'"),
        (["photos", "--networks", "vgg11"], "photos has one network; set model.name"),
        (["cifar100-table", "--networks", "vgg12"], "unknown network of cifar100-table 'vgg12'"),
        (["cifar100-table", "--epochs", "100"], r"give schedule.milestones=\[...\] too"),
        (["photos", "--seeds", "x"], "--seeds takes whole numbers"),
        (["photo"], "did you mean 'photos'"),
    ],
)
def test_what_does_not_apply_to_a_recipe_is_refused(words, message):
    for command in ("run",) if "--arms" in words else ("run", "tune"):
        with pytest.raises(TrActValueError, match=message):
            ask(command, *words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tract.lam=3"], r"the arms tract-0.1, eigen\+tract-0.1 of photos set tract.lam"),
        (["--lr", "1", "optimizer.lr=2"], "optimizer.lr is set twice: to 1.0 and to '2'"),
        (["--recipe", "cifar100-table"], "has milestones for 200, 133 epochs and not for 1"),
        (["--recipe", "transfer-cars"], "use 'trainact run transfer-cars'"),
        (["--arms", "tract-x"], "unknown arm 'tract-x'; did you mean 'tract'"),
        (["--lam", "0"], "--lam takes positive numbers"),
    ],
)
def test_what_does_not_apply_to_a_comparison_is_refused(words, message):
    with pytest.raises(TrActValueError, match=message):
        ask("compare", *words)


def test_a_comparison_has_one_recipe_and_ray_options_need_ray(capsys):
    assert cli.main(["compare", "--recipe", "cifar10-cpu"]) == 2
    assert "names cifar10-cpu-resnet-sgd, cifar10-cpu-vit-adam, cifar10-cpu-vit-sgd; choose" in (
        capsys.readouterr().err
    )
    assert cli.main(["run", "photos", "--ray-address", "auto"]) == 2
    assert "--ray-address applies to --on ray only" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("setting", "is_pretrained"),
    [
        ("timm:resnet18 model.weights=a.safetensors", True),
        ("timm:resnet18 model.arguments.pretrained=true", True),
        ("torchvision:resnet18 model.arguments.weights=DEFAULT", True),
        ("timm:resnet18 model.arguments.pretrained=false", False),
    ],
)
def test_pretrained_weights_are_compared_without_a_start_by_default(setting, is_pretrained):
    arms = [arm.name for arm in compare("photos", "--model", *setting.split()).arms]
    assert arms == ["plain", "tract-0.1", "eigen+tract-0.1"][: 2 if is_pretrained else 3]


def test_pretrained_weights_can_be_given_to_a_comparison():
    experiment = compare("transfer-cars", "--epochs", "2", "model.weights=a.safetensors")
    assert {run.model.weights for run in experiment.plan()} == {"a.safetensors"}
    assert {run.model.start for run in experiment.plan()} == {"default"}
    experiment = compare("photos", "--arms", "plain,eigen", "model.weights=a.safetensors")
    with pytest.raises(TrActValueError, match="would replace the first layer's pretrained weights"):
        experiment.plan()


def test_the_recipes_rate_stays_with_its_own_optimizer():
    assert compare("cifar10-speed", "--optimizer", "sgd").recipe.optimizer.lr == 8
    assert compare("photos", "--optimizer", "adam").recipe.optimizer.lr == 1e-3


def test_another_budget_needs_milestones_of_its_own(tmp_path, capsys):
    words = ["run", "cifar100-table", "--epochs", "100", "--networks", "vgg11", "--dry-run"]
    assert cli.main([*words, "schedule.milestones=[30,60,80]"]) == 0
    assert cli.main([*words, "--smoke"]) == 0  # which has none
    assert cli.main(["tune", "imagenet-resnet18", "--epochs", "45", "--out", str(tmp_path)]) == 2
    assert "give schedule.milestones=[...] too" in capsys.readouterr().err


def test_settings_are_fields_and_values():
    assert parse_settings(["a.b=c=d"]) == {"a.b": "c=d"}
    with pytest.raises(TrActValueError, match=r"write TABLE\.FIELD=VALUE"):
        parse_settings(["lr=3"])


def test_a_field_without_a_value_is_refused(capsys):
    assert cli.main(["run", "photos", "--data.folder"]) == 2
    assert "--data.folder needs a value" in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_help_lists_the_options_that_apply(command, capsys):
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    shown = capsys.readouterr().out
    assert {option for option in OPTIONS if f"  {option}" in shown} == APPLY[command]
