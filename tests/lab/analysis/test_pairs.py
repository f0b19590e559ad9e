"""Paired differences, crossings and time ratios against numbers computed by hand."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comparison_records import (
    make_arms,
    make_record,
)
from trainact.lab.analysis.answers import answer


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
    assert not answer([make_record("plain", 3, 0, 60), elsewhere]).time_ratios[0].same_machine
