"""Records that cannot be compared with each other are refused."""

import pytest

from comparison_records import judge_by_precision, make_curves, make_record
from trainact.errors import TrActValueError
from trainact.lab.analysis.answers import answer
from trainact.lab.analysis.runs import list_differences, read_runs
from trainact.lab.recipes.arms import parse_arms
from trainact.lab.recipes.differences import FieldDifference
from trainact.lab.recipes.recipe import Recipe, change_recipe, recipe_to_dict


def test_differences_are_fields_with_both_values():
    one, other = make_record("tract-0.2", 3, 0, 60), make_record("plain", 3, 1, 60)
    found = list_differences(one, other)
    assert found == [("tract.enabled", True, False), ("tract.lam", 0.2, 0.1)]
    assert all(difference.is_in({"tract"}) for difference in found)
    assert found[1].is_in({"tract.lam"})
    assert not found[1].is_in({"tract.enabled", "lam"})
    assert found[1].describe("plain") == "tract.lam 0.2 (plain: 0.1)"
    del other["recipe"]["tract"]
    assert list_differences(one, other)[0] == FieldDifference("tract.enabled", True, None)


def test_micro_batches_are_free_without_batch_norm():
    plain, tract = make_record("plain", 3, 0, 60), make_record("tract-0.1", 3, 0, 61)
    tract["recipe"]["run"]["accumulation"] = 4
    assert any(d.field == "run.accumulation" for d in list_differences(plain, tract))
    for record in (plain, tract):
        record["recipe"]["model"] = {"name": "lab:vit-cifar"}
    assert len(read_runs([plain, tract])) == 2


@pytest.mark.parametrize("arm", ["tract", "tract-0.2", "lr-10"])
def test_standard_arms_differ_from_plain_in_nothing_else(arm):
    plain, record = make_record("plain", 3, 0, 60), make_record(arm, 3, 0, 61)
    assert len(read_runs([plain, record])) == 2
    record["recipe"]["optimizer"]["lr"] = 0.01
    message = rf"{arm} and plain do not share a recipe at 3 epochs.*lr 0.01 \(plain: 0.08\)"
    with pytest.raises(TrActValueError, match=message):
        read_runs([plain, record])


def make_arm_record(arm, accuracy=61, seed=0, **changes):
    """Return the record of an arm with the fields that it sets, and some more."""
    (parsed,) = parse_arms([arm], [0.1])
    recipe = change_recipe(Recipe(), {**parsed.changes, "schedule.epochs": 3, "run.seed": seed})
    tables = recipe_to_dict(change_recipe(recipe, changes))
    return make_record(arm, 3, seed, accuracy, recipe=tables)


ARMS = [
    "tract-0.1",
    "lr-0.1",
    "eigen",
    "eigen+tract-0.1+lr-0.1",
    "eigen+frozen",
    "mac",
    "foof+lr-3",
]


@pytest.mark.parametrize("arm", ARMS)
def test_an_arm_differs_from_plain_only_in_what_its_name_says(arm):
    plain = make_arm_record("plain", 60)
    (_, run) = read_runs([plain, make_arm_record(arm)])
    assert run.arm.name == arm
    unnamed = {"model.start": "random"}
    if "lr-" not in arm:
        unnamed |= {"optimizer.first_layer_lr": 0.5}
    if "eigen" in arm:
        unnamed = {"model.start_signs": False, "optimizer.lr": 0.3}
    for field, value in unnamed.items():
        with pytest.raises(TrActValueError, match=f"do not share a recipe at 3 epochs.*{field}"):
            read_runs([plain, make_arm_record(arm, **{field: value})])


def test_records_from_before_a_field_are_compared_with_those_after_it():
    """Old runs of plain and of the same arm, without the newer fields of the first layer."""
    old = [make_arm_record("plain", 60), make_arm_record("tract-0.1", 62)]
    for record in old:
        for key in ("start", "start_scale", "start_signs", "start_images"):
            del record["recipe"]["model"][key]
        for key in ("first_layer_frozen", "first_layer_rule", "body", "muon_lr", "muon_momentum"):
            del record["recipe"]["optimizer"][key]
        for key in ("center", "relative", "moment_decay"):
            del record["recipe"]["tract"][key]
    new = [make_arm_record(arm, 63, seed) for arm in ("plain", "tract-0.1") for seed in (1,)]
    found = answer([*old, *new, make_arm_record("eigen+frozen", 64)])
    assert {d.arm.title: d.mean for d in found.differences} == {
        "TrAct λ=0.1": pytest.approx(1.0),
        "whitened start, frozen": pytest.approx(4.0),
    }


def test_other_arms_may_differ_from_plain_in_any_field():
    plain, record = make_record("plain", 3, 0, 60), make_record("adamw", 3, 0, 61)
    record["recipe"]["optimizer"]["lr"] = 0.01
    assert [run.arm.name for run in read_runs([record, plain])] == ["plain", "adamw"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model__initial_weights": "other"}, r"initial weights \(model.initial_weights\)"),
        ({"order": "other"}, r"order of batches \(order\)"),
        ({"data__fingerprint": "other"}, r"data \(data.fingerprint\)"),
    ],
)
def test_runs_that_are_not_a_pair_are_refused(changes, message):
    records = [make_record("plain", 3, 0, 60), make_record("tract-0.1", 3, 0, 61, **changes)]
    with pytest.raises(TrActValueError, match=f"are not a pair: they differ in {message}"):
        answer(records)


def test_budgets_on_different_machines_may_round_initial_weights_differently():
    changes = {"model__initial_weights": "other"}
    pairs = [make_record(arm, budget, 0, 60) for arm in ("plain", "tract-0.1") for budget in (2, 4)]
    rounded = [
        make_record(record["arm"], 4, 0, 60, **changes) if record["budget"] == 4 else record
        for record in pairs
    ]
    with pytest.raises(TrActValueError, match="initial weights"):
        answer(rounded)
    for record in rounded:
        if record["budget"] == 4:
            record["environment"] = record["environment"] | {"processor": "another"}
    assert answer(rounded).speed_ups


def test_arms_with_different_pre_training_may_start_from_other_weights():
    changes = {"model__initial_weights": "other", "recipe__model": {"pretraining": "tract"}}
    records = [make_record("plain", 3, 0, 60), make_record("tract", 3, 0, 61, **changes)]
    assert answer(records).differences[0].mean == pytest.approx(1.0)


def test_a_speed_up_over_other_data_is_refused():
    records = make_curves({10: [60], 20: [70]}, {10: [65], 40: [75]})
    records[0] = replace_data(records[0])
    records[2] = replace_data(records[2])
    with pytest.raises(TrActValueError, match=r"plain, 20 epochs, seed 0.*tract-0.1, 10 epochs"):
        answer(records)


def replace_data(record):
    return record | {"data": record["data"] | {"fingerprint": "other"}}


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda r: [r, r], "2 records are of plain, 3 epochs, seed 0; give one"),
        (lambda r: [r, r | {"kind": "smoke", "seed": 1}], "1 smoke and 1 full records cannot"),
        (lambda r: [r | {"format": 2}], "record 1 of the comparison cannot be read: format is 2"),
        (lambda r: [r | {"status": "running"}], "status is 'running', not complete or diverged"),
        (lambda r: [{k: v for k, v in r.items() if k != "order"}], "record 1 .* lacks 'order'"),
        (lambda r: [r | {"epochs": r["epochs"][:2]}], "is complete but ended after epoch 2"),
        (lambda r: [r | {"epochs": []}], "is complete but has no epochs"),
        (lambda r: ["text"], "record 1 of the comparison cannot be read"),
        (
            lambda r: [r, r | {"seed": 1, "recipe": r["recipe"] | {"optimizer": {"lr": 1.0}}}],
            r"do not share a recipe. Seed 1 has .*optimizer.lr 1.0 \(seed 0: 0.08\)",
        ),
    ],
)
def test_records_that_cannot_be_compared_are_refused(spoil, message):
    with pytest.raises(TrActValueError, match=message):
        answer(spoil(make_record("plain", 3, 0, 60)))


def test_a_record_may_name_another_metric():
    records = [
        judge_by_precision(make_record(arm, 2, 0, 60), values)
        for arm, values in (("plain", [0.1, 0.25]), ("tract-0.1", [0.1, 0.5]))
    ]
    answers = answer(records)
    assert answers.runs[0].accuracies == (10, 25)
    assert answers.differences[0].mean == 25
    assert {run.metric for run in answers.runs} == {"mAP (11-point)"}


def test_runs_with_different_metrics_are_refused():
    plain = make_record("plain", 1, 0, 60)
    other = judge_by_precision(make_record("tract-0.1", 1, 0, 60), [0.5])
    message = r"metrics accuracy and mAP \(11-point\) cannot be compared"
    with pytest.raises(TrActValueError, match=message):
        answer([plain, other])


def test_records_of_two_networks_are_refused_even_where_nothing_else_tells_them_apart():
    records = [
        make_record("plain", 2, 0, 50.0),
        make_record("tract-0.1", 2, 0, 60.0, model__name="lab:vgg11"),
    ]
    with pytest.raises(TrActValueError, match="records of 2 networks"):
        answer(records)
