"""All statistics of a comparison, and what is missing."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comparison_records import diverge, make_arms, make_record, make_study
from trainact.lab.analysis.answers import answer
from trainact.lab.report.wording import describe_results


def test_a_summary_is_mean_and_sample_deviation_of_the_last_epoch():
    records = [
        make_record("plain", 3, seed, [10, 90, end]) for seed, end in enumerate((60, 62, 64))
    ]
    (summary,) = answer(records).summaries
    assert (summary.mean, summary.std, summary.n, summary.seeds) == (62, 2, 3, (0, 1, 2))


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


@settings(max_examples=30)
@given(order=st.permutations(range(12)))
def test_the_order_of_records_does_not_matter(order):
    records = make_arms(plain=[60, 61, 62], tract_0__1=[63, 61, 64], lr_10=[59, 60, 61])
    records += make_arms(budget=6, plain=[65, 66, 67])
    answers = answer([records[i] for i in order])
    assert answers == answer(records)


def test_missing_statistics_have_reasons():
    assert answer([]).missing == ("There are no records of runs.",)
    plain, arm = make_arms(plain=[60, 61], tract_0__1=[62, 63])[::2]
    assert "No run is of the arm plain" in answer([arm]).missing[0]
    assert "All runs are of the arm plain" in answer([plain]).missing[0]
    longer = make_record("tract-0.1", 6, 0, 66)
    assert "at 6 epochs has no difference to plain: plain was not run with this budget" in " ".join(
        answer([plain, arm, longer]).missing
    )
    lost = answer([diverge(plain), diverge(arm)])
    assert [text for _, text in describe_results(lost)] == [
        "plain: every run diverged (1 seed).",
        "TrAct λ=0.1: every run diverged (1 seed).",
    ]
    assert "all its runs diverged" in lost.missing[0]
    assert "all runs of plain diverged" in answer([diverge(plain), arm]).missing[0]
    assert "no seed was completed by both" in answer([plain, arm | {"seed": 5}]).missing[0]


def test_a_complete_study_has_every_statistic():
    answers = answer(make_study(seeds=(0, 1)), jobs=2)
    assert [arm.name for arm in answers.arms] == ["plain", "tract-0.1", "tract-0.2", "lr-10"]
    assert answers.budgets == [5, 10, 20]
    assert len(answers.summaries) == len(answers.crossings) == 12
    assert len(answers.differences) == len(answers.time_ratios) == 9
    assert len(answers.speed_ups) == 6
    assert answers.missing == ()


def test_a_difference_is_paired_by_seed():
    """The seeds differ by far more than the arms do, and the pairs do not notice."""
    (difference,) = answer(make_arms(plain=[40, 60, 80], tract_0__1=[41, 62, 83])).differences
    assert difference.mean == pytest.approx(2)
    assert difference.low == pytest.approx(2 - 4.302652729911275 / math.sqrt(3))
    assert [seed for seed, _ in difference.per_seed] == [0, 1, 2]
    assert [value for _, value in difference.per_seed] == pytest.approx([1, 2, 3])


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


def test_crossings_count_the_runs_that_never_did():
    plain = [make_record("plain", 4, seed, [10, 20, 30, 65]) for seed in range(3)]
    curves = ([50, 60, 70, 80], [10, 20, 30, 65], [10, 20, 30, 60])
    arm = [make_record("tract-0.1", 4, seed, curve) for seed, curve in enumerate(curves)]
    itself, crossing = answer(plain + arm).crossings
    assert [epoch for _, epoch in crossing.per_seed] == [2.5, 4, None]
    assert (crossing.median, crossing.never, crossing.n) == (4, 1, 3)
    assert (itself.arm.name, itself.median, itself.never) == ("plain", 4, 0)


def test_cost_is_the_median_ratio_without_first_epochs():
    plain = [make_record("plain", 2, seed, 60, seconds=2.0) for seed in range(3)]
    times = (2.0, 2.2, 3.0)
    arm = [make_record("tract-0.1", 2, seed, 60, seconds=times[seed]) for seed in range(3)]
    for record in arm:
        record["epochs"][0]["train_seconds"] = 1000.0
    (cost,) = answer(plain + arm).time_ratios
    assert (cost.ratio, cost.low, cost.high, cost.n) == pytest.approx((1.1, 1.0, 1.5, 3))
    assert cost.same_machine


def test_a_run_of_one_epoch_is_timed_by_it():
    records = [make_record("plain", 1, 0, 60), make_record("tract-0.1", 1, 0, 60, seconds=4.5)]
    assert answer(records).time_ratios[0].ratio == pytest.approx(1.5)
    assert (
        answer([make_record(arm, 1, 0, 60, seconds=0) for arm in ("plain", "a")]).time_ratios == ()
    )


def test_a_time_ratio_says_whether_both_runs_had_the_same_machine():
    elsewhere = make_record("tract-0.1", 3, 0, 60, environment__processor="another")
    moved = make_record("tract-0.1", 3, 0, 60)
    moved["earlier_environments"] = [elsewhere["environment"]]
    for record in (elsewhere, moved):
        assert not answer([make_record("plain", 3, 0, 60), record]).time_ratios[0].same_machine


def test_pairs_on_one_machine_decide_the_time_ratio():
    plain = [make_record("plain", 3, seed, 60) for seed in (0, 1)]
    slow = make_record("tract-0.1", 3, 0, 60, seconds=30.0, environment__processor="another")
    (ratio,) = answer([*plain, slow, make_record("tract-0.1", 3, 1, 60)]).time_ratios
    assert (ratio.n, ratio.same_machine) == (1, True)
    assert ratio.ratio == pytest.approx(1.0)
