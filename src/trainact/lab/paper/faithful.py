"""Whether a run was that of its recipe in this package, as the recipe stands now.

Only such runs are held against the paper: a folder's name says what a run was meant to be, its
record what it was.
"""

from collections.abc import Sequence
from functools import cache

from trainact.lab.analysis.outcomes import Record, list_differences
from trainact.lab.data.published import count_images
from trainact.lab.recipes.experiment import find_experiment, list_experiments
from trainact.lab.recipes.recipe import make_recipe, recipe_to_dict

__all__ = ["find_faithful", "list_deviations", "tell_deviations"]

OWN_CHOICE = ("run.", "model.weights ", "model.arguments.weights ")
"""How fast and where a run is done, and from which file, is its user's choice."""


def list_deviations(name: str, record: Record) -> list[str]:
    """Return how a run differs from that of the recipe of this name with its arm and budget.

    Of an experiment of the paper, also whether it had the whole data set.
    """
    if name not in list_experiments():
        return []
    key = record["model"]["name"], record["arm"], record["budget"]
    planned = _plan(name).get(key)
    if planned is None:
        return [f"{key[0]}, {key[1]}, {key[2]} epochs, which the recipe does not have"]
    found = list_differences(record, planned, "the recipe")
    told = [difference for difference in found if not difference.startswith(OWN_CHOICE)]
    if find_experiment(name).paper:
        told += _list_missing_images(record, planned)
    return told


def find_faithful(name: str, records: Sequence[Record]) -> list[Record]:
    """Return the runs that are the recipe's."""
    return [record for record in records if not list_deviations(name, record)]


def tell_deviations(name: str, records: Sequence[Record]) -> str:
    """Return one sentence on the runs that are not the recipe's; empty where all are."""
    deviating = [told for record in records if (told := list_deviations(name, record))]
    if not deviating:
        return ""
    distinct = list(dict.fromkeys(told for row in deviating for told in row))
    more = f", and {len(distinct) - 3} more" if len(distinct) > 3 else ""
    return (
        f"{len(deviating)} of {len(records)} runs are not those of the recipe {name} and are left "
        f"out of what is held against the paper. They have {'; '.join(distinct[:3])}{more}."
    )


def _list_missing_images(record: Record, planned: Record) -> list[str]:
    """Return where a run had other images than its data set has as it is published."""
    expected = count_images(make_recipe(planned["recipe"]).data)
    if expected is None:
        return []
    had = record["data"]["train_images"], record["data"]["test_images"]
    pairs = zip(("training", "test"), had, (expected.train, expected.test), strict=True)
    return [
        f"{count:,} {part} images (the published set: {published:,})"
        for part, count, published in pairs
        if count != published
    ]


@cache
def _plan(name: str) -> dict[tuple[str, str, int], Record]:
    return {
        (run.model.name, run.run.arm, run.schedule.epochs): {"recipe": recipe_to_dict(run)}
        for run in find_experiment(name).plan()
    }
