"""Printed hyperparameters are recipe fields, and the recipes have the printed values."""

import pytest

from trainact.lab.paper.hyperparameters import list_hyperparameters, read_hyperparameters
from trainact.lab.recipes.experiment import find_experiment, list_experiments
from trainact.lab.recipes.recipe import change_recipe, make_recipe, recipe_to_dict


def test_printed_hyperparameters_are_recipe_fields():
    base = make_recipe({})
    for recipe in list_hyperparameters():
        printed = read_hyperparameters(recipe)
        assert printed.section
        for fields in (printed.fields, *printed.at.values()):
            for field, numbers in fields.items():
                whole = field in ("data.batch_size", "data.image_size", "schedule.epochs")
                for number in numbers:
                    change_recipe(base, {field: int(number) if whole else number})


def test_chosen_learning_rates_are_in_their_grid():
    for recipe in ("cifar10-resnet18-adam", "cifar10-vit", "imagenet-resnet50"):
        printed = read_hyperparameters(recipe)
        assert set(printed.at) == set(printed.fields["schedule.epochs"])
        for fields in printed.at.values():
            assert set(fields["optimizer.lr"]) <= set(printed.grid)
    assert read_hyperparameters("cifar10-vit").at[200]["optimizer.lr"] == (10**-3.2,)


@pytest.mark.parametrize("name", sorted(set(list_hyperparameters()) & set(list_experiments())))
def test_recipes_have_the_printed_values(name):
    printed, experiment = read_hyperparameters(name), find_experiment(name)
    for recipe in experiment.plan():
        tables = recipe_to_dict(recipe)
        fields = printed.fields | printed.at.get(recipe.schedule.epochs, {})
        for field, numbers in fields.items():
            table, _, key = field.partition(".")
            if field != "tract.lam" or recipe.tract.enabled:
                assert any(tables[table][key] == pytest.approx(number) for number in numbers), field
    if printed.grid and experiment.grid:
        assert experiment.grid["optimizer.lr"] == pytest.approx(list(printed.grid))
