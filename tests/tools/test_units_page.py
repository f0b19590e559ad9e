"""The page's part on inputs of other units, from made-up records."""

import itertools

import pytest

from comparison_records import make_record
from tools.rivals import UNITS, VALUES, name_experiment
from tools.rivals_page import NO_RECORD
from tools.units_page import read_units, write_units
from trainact.errors import TrActValueError
from trainact.lab.records.record import seal
from trainact.lab.records.results import RECORDS, write_records

RECIPE = "cifar10-cpu-vit-sgd"


def write_results(folder, values, accuracies, diverged=(), budgets=(4,)):
    """Write the records of an experiment: by arm, the accuracy of each seed."""
    records = []
    for arm, budget in itertools.product(accuracies, budgets):
        for seed, accuracy in enumerate(accuracies[arm]):
            record = make_record(arm, budget, seed, accuracy + budget - budgets[0])
            record["recipe"].setdefault("data", {})["values"] = values
            if (arm, seed) in diverged:
                record |= {"status": "diverged", "failure": "the loss became nan"}
            records.append({**record, "seal": seal(record)})
    path = folder / name_experiment(RECIPE, values)
    path.mkdir()
    write_records(path / RECORDS, records)


def test_the_arms_are_compared_on_each_kind_of_inputs(tmp_path):
    one, other = UNITS
    more = {"plain": [50.0, 51.0, 52.0]}  # not shown
    write_results(
        tmp_path, "standard", {one: [53.0, 54.0, 55.0], other: [54.0, 55.1, 55.9], **more}
    )
    write_results(
        tmp_path,
        "raw",
        {one: [40.0, 41.0, 42.0], other: [50.0, 51.0, 52.0]},
        {(one, 0), (other, 1)},
    )
    write_results(tmp_path, "unit", {one: [40.0]}, {(one, 0)})
    found = read_units(tmp_path)
    assert [result.values for result in found] == list(VALUES)
    head, _, *rows = write_units(found)["rivals-units"].splitlines()
    assert head == f"| recipe | inputs | `{one}` | `{other}` | difference |"
    assert rows == [
        f"| {RECIPE} | standardised | 54.00 % (3 seeds) | 55.00 % (3 seeds) | +1.00 [0.75, 1.25] (3 seeds) |",
        f"| {RECIPE} | [0, 1] | 1 run diverged | - | - |",
        f"| {RECIPE} | [0, 255] | 41.50 % (2 seeds), 1 run diverged | 51.00 % (2 seeds), 1 run diverged | +10.00 (1 seed) |",
    ]  # fmt: skip


@pytest.mark.parametrize("budgets", [(4, 8), (8, 4)])
def test_means_and_difference_are_those_of_the_longest_budget(tmp_path, budgets):
    one, other = UNITS
    write_results(tmp_path, "raw", {one: [50.0, 51.0], other: [52.0, 53.0]}, budgets=budgets)
    (result,) = read_units(tmp_path)
    assert {s.budget for s in (*result.summaries.values(), result.difference)} == {8}


def test_without_records_the_place_says_so(tmp_path):
    assert write_units(read_units(tmp_path)) == {"rivals-units": NO_RECORD}
    write_results(tmp_path, "standard", {"plain": [50.0]})
    assert write_units(read_units(tmp_path)) == {"rivals-units": NO_RECORD}


def test_a_damaged_record_is_an_error(tmp_path):
    write_results(tmp_path, "raw", {UNITS[0]: [50.0]})
    path = tmp_path / f"{RECIPE}-raw" / RECORDS
    path.write_text(path.read_text().replace("50", "51", 1))
    with pytest.raises(TrActValueError, match="line 1 of"):
        read_units(tmp_path)
