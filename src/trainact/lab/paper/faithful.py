"""Which runs follow their recipe in this package as it is now.

Only these are compared with the paper: a folder's name says what its runs were meant to be, a
record says what a run was. A run also follows its recipe if its values are those that ``trainact
tune`` chose from the recipe's grid: this is how the paper chose its learning rates.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from trainact.lab.analysis.runs import list_differences
from trainact.lab.data.published import count_images
from trainact.lab.recipes.differences import FieldDifference
from trainact.lab.recipes.experiment import find_experiment, list_experiments
from trainact.lab.recipes.recipe import make_recipe, recipe_to_dict
from trainact.lab.records.record import Record
from trainact.lab.text import count_epochs

__all__ = ["describe_deviations", "describe_tuned", "find_faithful", "list_deviations"]

FREE_FIELDS = {"run", "model.weights", "model.arguments.weights"}
"""Tables and fields that do not change the result: the machine, and where the weights file is."""


Tuning = Mapping[str, Any]
"""The content of ``tuning.json``."""


def list_deviations(
    name: str, record: Record, tuning: Tuning | None = None
) -> list[FieldDifference]:
    """Return how a run differs from that of the named recipe with its network, arm and budget.

    Values that ``tuning`` chose are no difference. For an experiment of the paper, the run must
    also have had the complete data set.
    """
    if name not in list_experiments():
        return []
    network, arm, budget = record["model"]["name"], record["arm"], record["budget"]
    planned = _plan(name).get((network, arm, budget))
    if planned is None:
        run = f"{network}, {arm}, {count_epochs(budget)}"
        return [FieldDifference("run", run, "one of the recipe")]
    found = [
        d
        for d in list_differences(record, planned)
        if not d.is_in(FREE_FIELDS) and not _is_tuned(name, budget, d, tuning)
    ]
    if find_experiment(name).paper:
        found += _compare_images(record, planned)
    return found


def find_faithful(
    name: str, records: Sequence[Record], tuning: Tuning | None = None
) -> list[Record]:
    """Return the records of runs that follow the recipe."""
    return [record for record in records if not list_deviations(name, record, tuning)]


def describe_deviations(name: str, records: Sequence[Record], tuning: Tuning | None = None) -> str:
    """Return one sentence on the runs that do not follow the recipe; empty if all do."""
    deviating = [found for record in records if (found := list_deviations(name, record, tuning))]
    if not deviating:
        return ""
    distinct = list(dict.fromkeys(one.describe("expected") for row in deviating for one in row))
    more = f", and {len(distinct) - 3} more" if len(distinct) > 3 else ""
    return (
        f"{len(deviating)} of {len(records)} runs do not follow the recipe {name} and are not "
        f"compared with the paper. They have {'; '.join(distinct[:3])}{more}."
    )


def describe_tuned(name: str, records: Sequence[Record], tuning: Tuning | None) -> str:
    """Return one sentence on the values of runs that ``trainact tune`` chose; empty if none are."""
    if name not in list_experiments():
        return ""
    chosen = {
        f"{found.describe('recipe')} at {count_epochs(record['budget'])}": None
        for record in find_faithful(name, records, tuning)
        for found in list_deviations(name, record)
    }
    return f"trainact tune chose {'; '.join(chosen)}." if chosen else ""


def _is_tuned(name: str, budget: int, difference: FieldDifference, tuning: Tuning | None) -> bool:
    """Return whether the value was chosen at this budget, from all values of the recipe's grid."""
    grid = find_experiment(name).grid.get(difference.field)
    if grid is None or tuning is None or tuning["experiment"].partition("/")[0] != name:
        return False
    tried = [
        row["value"]
        for row in tuning["tried"]
        if (row["budget"], row["field"]) == (budget, difference.field)
    ]
    chosen = tuning["chosen"].get(str(budget), {}).get(difference.field)
    return chosen == difference.value and set(grid) <= set(tried)


def _compare_images(record: Record, planned: Record) -> list[FieldDifference]:
    """Return where a run had fewer or more images than the published data set has."""
    published = count_images(make_recipe(planned["recipe"]).data)
    if published is None:
        return []
    had = record["data"]
    counts = [
        FieldDifference("training images", had["train_images"], published.train),
        FieldDifference("test images", had["test_images"], published.test),
    ]
    return [count for count in counts if count.value != count.other]


@cache
def _plan(name: str) -> dict[tuple[str, str, int], Record]:
    return {
        (run.model.name, run.run.arm, run.schedule.epochs): {"recipe": recipe_to_dict(run)}
        for run in find_experiment(name).plan()
    }
