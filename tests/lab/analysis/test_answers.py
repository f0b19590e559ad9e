"""From records of runs to answers: every statistic against numbers made by hand."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comparison_records import (
    diverge,
    judge_by_precision,
    make_arms,
    make_curves,
    make_record,
    make_study,
)
from trainact.errors import TrActValueError
from trainact.lab.analysis.answers import answer
from trainact.lab.report.wording import (
    SMOKE_PREFIX,
    describe_difference,
    describe_results,
    format_difference,
    format_number,
)
from trainact.lab.statistics import (
    compute_std,
    compute_t_interval,
)

# spread, differences and verdicts


def test_an_interval_is_students_by_hand():
    low, high = compute_t_interval([1.0, 2.0, 3.0])
    half = 4.302652729911275 / math.sqrt(3)  # t of two degrees of freedom, s = 1
    assert (low, high) == pytest.approx((2 - half, 2 + half))
    low, high = compute_t_interval([0.0, 2.0])
    assert (low, high) == pytest.approx((1 - 12.706204736432095, 1 + 12.706204736432095))
    assert compute_t_interval([0.5, 0.5, 0.5]) == (0.5, 0.5)


def test_one_value_has_neither_spread_nor_interval():
    assert compute_std([3.0]) is None
    assert compute_t_interval([3.0]) is None
    assert compute_std([2.0, 4.0, 6.0]) == 2.0


def test_a_summary_is_mean_and_sample_deviation_of_the_last_epoch():
    records = [
        make_record("plain", 3, seed, [10, 90, end]) for seed, end in enumerate((60, 62, 64))
    ]
    (summary,) = answer(records).summaries
    assert (summary.mean, summary.std, summary.n, summary.seeds) == (62, 2, 3, (0, 1, 2))


def test_a_difference_is_paired_by_seed():
    """The seeds differ by far more than the arms do, and the pairs do not notice."""
    (difference,) = answer(make_arms(plain=[40, 60, 80], tract_0__1=[41, 62, 83])).differences
    assert difference.mean == pytest.approx(2)
    assert difference.low == pytest.approx(2 - 4.302652729911275 / math.sqrt(3))
    assert [seed for seed, _ in difference.per_seed] == [0, 1, 2]
    assert [value for _, value in difference.per_seed] == pytest.approx([1, 2, 3])


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([61, 62, 61.5], "TrAct λ=0.1 is better by 1.50 points [0.26, 2.74] (3 seeds)."),
        ([59, 58, 58.5], "TrAct λ=0.1 is worse by 1.50 points [0.26, 2.74] (3 seeds)."),
        ([61, 59, 61], "TrAct λ=0.1: no clear difference: 0.33 points [-2.54, 3.20] (3 seeds)."),
        ([60, 60], "TrAct λ=0.1: no clear difference: 0.00 points [0.00, 0.00] (2 seeds)."),
        (
            [61.25],
            "TrAct λ=0.1: +1.25 points with one seed, which gives no interval.",
        ),
    ],
)
def test_a_verdict_claims_no_more_than_its_interval(values, verdict):
    answers = answer(make_arms(plain=[60] * len(values), tract_0__1=values))
    assert describe_difference(answers.differences[0]) == verdict
    assert describe_results(answers)[1] == (3, verdict)


def test_a_diverged_run_is_listed_and_has_no_accuracy():
    records = make_arms(plain=[60, 61, 62], tract_0__1=[63, 64, 65])
    records[4] = diverge(records[4])
    answers = answer(records)
    assert answers.summaries[1].diverged == (1,)
    assert answers.summaries[1].seeds == (0, 2)
    assert answers.differences[0].n == 2
    assert answers.runs[4].accuracy is None
    assert describe_results(answers)[1][1].endswith("(2 seeds); diverged with seed 1.")


def test_a_seed_without_a_complete_plain_run_is_named():
    records = make_arms(plain=[60, 61, 62], tract_0__1=[63, 64, 65])
    records[0] = diverge(records[0])
    answers = answer(records)
    assert answers.differences[0].unpaired == (0,)
    assert "without seed 0, where plain has no complete run" in describe_results(answers)[1][1]


@settings(max_examples=60)
@given(
    pairs=st.lists(st.tuples(st.integers(0, 80), st.integers(0, 80)), min_size=2, max_size=5),
    shift=st.integers(0, 20),
)
def test_a_constant_added_to_both_arms_changes_no_difference(pairs, shift):
    plain, tract = zip(*pairs, strict=True)
    before = answer(make_arms(plain=plain, tract_0__1=tract)).differences[0]
    shifted = [[value + shift for value in values] for values in (plain, tract)]
    after = answer(make_arms(plain=shifted[0], tract_0__1=shifted[1])).differences[0]
    assert (after.mean, after.low, after.high) == pytest.approx(
        (before.mean, before.low, before.high), abs=1e-9
    )


@settings(max_examples=30)
@given(order=st.permutations(range(12)))
def test_the_order_of_records_does_not_matter(order):
    records = make_arms(plain=[60, 61, 62], tract_0__1=[63, 61, 64], lr_10=[59, 60, 61])
    records += make_arms(budget=6, plain=[65, 66, 67])
    answers = answer([records[i] for i in order])
    assert answers == answer(records)


# which records belong together


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model__initial_weights": "other"}, r"initial weights \(model.initial_weights\)"),
        ({"order": "other"}, r"order of batches \(order\)"),
        ({"data__fingerprint": "other"}, r"data \(data.fingerprint\)"),
    ],
)
def test_runs_that_are_no_pair_are_refused(changes, message):
    records = [make_record("plain", 3, 0, 60), make_record("tract-0.1", 3, 0, 61, **changes)]
    with pytest.raises(TrActValueError, match=f"are no pair: they differ in {message}"):
        answer(records)


def test_arms_that_were_pre_trained_differently_may_start_from_other_weights():
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


def test_runs_judged_by_different_metrics_are_refused():
    plain = make_record("plain", 1, 0, 60)
    other = judge_by_precision(make_record("tract-0.1", 1, 0, 60), [0.5])
    message = r"metrics accuracy and mAP \(11-point\) cannot be compared"
    with pytest.raises(TrActValueError, match=message):
        answer([plain, other])


def test_partial_input_is_answered_with_what_is_missing():
    assert answer([]).missing == ("There are no records of runs.",)
    plain, arm = make_arms(plain=[60, 61], tract_0__1=[62, 63])[::2]
    assert "No run is of the arm plain" in answer([arm]).missing[0]
    assert "All runs are of the arm plain" in answer([plain]).missing[0]
    longer = make_record("tract-0.1", 6, 0, 66)
    assert "at 6 epochs has no difference to plain: plain was not run with this budget" in " ".join(
        answer([plain, arm, longer]).missing
    )
    lost = answer([diverge(plain), diverge(arm)])
    assert [told for _, told in describe_results(lost)] == [
        "plain: every run diverged (1 seed).",
        "TrAct λ=0.1: every run diverged (1 seed).",
    ]
    assert "all its runs diverged" in lost.missing[0]
    assert "all runs of plain diverged" in answer([diverge(plain), arm]).missing[0]
    assert "no seed was completed by both" in answer([plain, arm | {"seed": 5}]).missing[0]


def test_smoke_runs_give_no_verdict():
    records = [
        record | {"kind": "smoke"} for record in make_arms(plain=[60, 60], tract_0__1=[70, 71])
    ]
    answers = answer(records)
    assert answers.kind == "smoke"
    assert all(told.startswith(SMOKE_PREFIX) for _, told in describe_results(answers))


# numbers


def test_numbers_are_shown_in_two_digits_without_a_negative_zero():
    assert [format_number(v) for v in (1.005, -0.004, -1.5)] == ["1.00", "0.00", "-1.50"]
    assert format_number(-0.001, sign=True) == "0.00"
    difference = answer(make_arms(plain=[60, 60], tract_0__1=[61, 61])).differences[0]
    assert format_difference(difference) == "+1.00 [1.00, 1.00]"
    assert format_difference(replace(difference, low=None, high=None)) == "+1.00 [one seed]"
    assert format_difference(None) == "-"


def test_a_whole_study_has_every_answer():
    answers = answer(make_study(seeds=(0, 1)), jobs=2)
    assert [arm.name for arm in answers.arms] == ["plain", "tract-0.1", "tract-0.2", "lr-10"]
    assert answers.budgets == [5, 10, 20]
    assert len(answers.summaries) == len(answers.crossings) == 12
    assert len(answers.differences) == len(answers.time_ratios) == 9
    assert len(answers.speed_ups) == 6
    assert answers.missing == ()
