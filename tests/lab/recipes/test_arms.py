"""Arms: typed fields, names, titles and order."""

import pytest

from trainact.errors import TrActValueError
from trainact.lab.recipes.arms import Arm, arm_of_recipe, make_arm, parse_arms
from trainact.lab.recipes.experiment import find_experiment, list_experiments
from trainact.lab.recipes.recipe import recipe_to_dict


def test_arms_are_the_recipe_with_fields_changed():
    arms = parse_arms(["plain", "tract", "lr", "lr=3"], [0.1, 0.5])
    names = [arm.name for arm in arms]
    assert names == ["plain", "tract-0.1", "tract-0.5", "lr-10", "lr-2", "lr-3"]
    assert arms[3].changes == {"tract.enabled": False, "optimizer.first_layer_lr": 10.0}
    for names, message in (
        (["plan"], "there is no arm 'plan'"),
        (["plain", "plain"], "named twice"),
        (["lr=0"], "takes a positive number; got '0'"),
        (["lr=x"], "takes a positive number; got 'x'"),
        (["tract=3"], "there is no arm 'tract=3'"),
        ([], "there is no arm to run"),
    ):
        with pytest.raises(TrActValueError, match=message):
            parse_arms(names, [0.1])


def test_an_arm_has_fields_and_not_only_a_name():
    plain, tract, lr = parse_arms(["plain", "tract", "lr=3"], [0.1])
    assert (plain.kind, plain.tract, plain.title) == ("plain", False, "plain")
    assert (tract.kind, tract.tract, tract.lam, tract.title) == ("tract", True, 0.1, "TrAct λ=0.1")
    assert (lr.kind, lr.tract, lr.first_layer_lr) == ("lr", False, 3.0)
    assert lr.title == "plain, first-layer lr ×3"
    first = make_arm("sgd-first tract-0.1", {"tract.lam": 0.1, "optimizer.first_layer_name": "sgd"})
    assert (first.kind, first.tract, first.lam) == ("other", None, 0.1)
    assert first.title == first.name
    assert first.others == {"optimizer.first_layer_name": "sgd"}


@pytest.mark.parametrize(
    ("name", "enabled", "lam", "factor", "kind", "title"),
    [
        ("plain", False, 0.1, 1.0, "plain", "plain"),
        ("tract", True, 0.2, 1.0, "tract", "tract"),
        ("tract-0.2", True, 0.2, 1.0, "tract", "TrAct λ=0.2"),
        ("tract-1e-05", True, 1e-5, 1.0, "tract", "TrAct λ=1e-05"),
        ("tract-x", True, 0.1, 1.0, "other", "tract-x"),
        ("lr-10", False, 0.1, 10.0, "lr", "plain, first-layer lr ×10"),
        ("lr-1", False, 0.1, 1.0, "lr", "plain, first-layer lr ×1"),
        ("tract-0.2", True, 0.1, 1.0, "other", "tract-0.2"),
        ("tract-0.1", False, 0.1, 1.0, "other", "tract-0.1"),
        ("lr-10", True, 0.1, 10.0, "other", "lr-10"),
        ("tune-0.1", False, 0.1, 1.0, "other", "tune-0.1"),
    ],
)
def test_the_arm_of_a_record_comes_from_its_recipe(name, enabled, lam, factor, kind, title):
    tables = {"tract": {"enabled": enabled, "lam": lam}, "optimizer": {"first_layer_lr": factor}}
    arm = arm_of_recipe(name, tables)
    assert (arm.name, arm.kind, arm.title) == (name, kind, title)
    assert (arm.tract, arm.lam, arm.first_layer_lr) == (enabled, lam, factor)


def test_arms_are_ordered_by_their_fields():
    arms = parse_arms(["lr=1e6", "lr=10", "lr=3", "tract", "plain"], [0.2, 0.05])
    arms.insert(0, make_arm("adamw", {"optimizer.name": "adamw"}))
    ordered = [arm.name for arm in sorted(arms, key=lambda arm: arm.sort_key)]
    assert ordered == ["plain", "tract-0.05", "tract-0.2", "lr-3", "lr-10", "lr-1e+06", "adamw"]


def test_arms_of_one_name_are_one_arm():
    """The arm ``tract`` of one experiment may have another λ at another budget."""
    one, other = make_arm("tract", {"tract.lam": 0.1}), make_arm("tract", {"tract.lam": 0.2})
    assert isinstance(one, Arm)
    assert len({one, other}) == 1


@pytest.mark.parametrize("name", list_experiments())
def test_a_record_has_the_arm_of_its_experiment(name):
    experiment = find_experiment(name)
    arms = {arm.name: arm for arm in experiment.arms}
    for recipe in experiment.split()[0].plan():
        arm, known = arm_of_recipe(recipe.run.arm, recipe_to_dict(recipe)), arms[recipe.run.arm]
        assert (arm.kind, arm.title) == (known.kind, known.title)
