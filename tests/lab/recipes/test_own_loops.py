"""Recipes of runs that a loop of the user's own does."""

import pytest

from trainact.errors import TrActValueError
from trainact.lab.recipes.arms import parse_arms
from trainact.lab.recipes.own_loops import (
    find_script,
    has_own_loop,
    keep_own_fields,
    make_function_recipe,
    make_script_recipe,
    needs_images,
    needs_optimizer,
    plan_loop,
)
from trainact.lab.recipes.parts import PARTS
from trainact.lab.recipes.recipe import Recipe, identify, make_recipe, read_recipe, write_recipe

WITH_OPTIMIZER = {
    *("muon", "foof", "asgo", "muon-stem", "lr"),
    *("tract-norm-preserving", "mac", "centralised"),
}


def test_a_script_below_the_working_directory_has_a_relative_path(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    for name in ("train.py", "here/train.py"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path / "here")
    inside = make_script_recipe(tmp_path / "here" / "train.py", ["--lr", "1"])
    outside = make_script_recipe(tmp_path / "train.py", [])
    assert inside.model.name == "script:train.py"
    assert outside.model.name == f"script:{tmp_path / 'train.py'}"
    path, arguments = find_script(inside)
    assert (str(path), arguments) == ("train.py", ["--lr", "1"])
    with pytest.raises(TrActValueError, match="there is no script"):
        make_script_recipe(tmp_path / "none.py", [])


def test_a_function_is_no_script_and_other_recipes_are_neither():
    function = make_function_recipe("train", {"lr": 0.1})
    assert has_own_loop(function)
    assert find_script(function) is None
    assert not has_own_loop(Recipe())
    assert not has_own_loop(make_recipe({"model": {"name": "script:train.py"}}))


def test_a_recipe_survives_its_file_and_the_fields_without_effect(tmp_path):
    arms = parse_arms(["plain", "eigen+tract-0.2", "muon"], [0.1])
    settings = {"sizes": (1, 2), "nested": {"name": "a", "on": True}}
    for recipe in plan_loop(make_function_recipe("train", settings), arms, (3,), (7,)):
        write_recipe(recipe, tmp_path / "recipe.toml")
        assert identify(read_recipe(tmp_path / "recipe.toml")) == identify(recipe)
        kept = keep_own_fields(recipe)
        assert identify(make_recipe(kept)) == identify(recipe)
        assert "lr" not in kept["optimizer"]
        assert kept["schedule"] == {"epochs": 3}


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_an_arm_needs_the_hooks_that_can_apply_it(part):
    [recipe] = plan_loop(
        make_function_recipe("train", {}), parse_arms([part.name], [0.1]), (1,), (0,)
    )
    assert needs_optimizer(recipe) == (part.name in WITH_OPTIMIZER)
    assert needs_images(recipe) == (part.name in ("eigen", "random", "scaled", "mac"))
