"""The fields in which two recipes differ."""

from trainact.lab.recipes.differences import compare_tables
from trainact.lab.recipes.recipe import Recipe, change_recipe, recipe_to_dict


def test_differences_are_fields_in_order_and_arguments_count_one_by_one():
    changes = {"run.ema": 0.5, "model.arguments.width": 16, "data.folder": "x"}
    one, other = (recipe_to_dict(change_recipe(Recipe(), c)) for c in (changes, {}))
    found = compare_tables(one, other, {"data.folder"})
    assert found == [("model.arguments.width", 16, None), ("run.ema", 0.5, 0.0)]
    assert compare_tables(one, one, ()) == []
