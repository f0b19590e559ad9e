"""How much sooner, when level inside one run, and at what cost: against numbers made by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comparison_records import diverge, make_arms, make_curves, make_record
from trainact.lab.analysis.answers import answer
from trainact.lab.analysis.runs import read_runs
from trainact.lab.analysis.speedups import Reach, find_speed_ups
from trainact.lab.report.wording import (
    describe_speed_up,
    describe_timing,
    format_speed_up,
)
from trainact.lab.statistics import (
    compute_median,
    find_crossing,
    find_in_log,
    resample,
)


def find_only_speed_up(plain, arm, budget):
    found, missing = find_speed_ups(read_runs(make_curves(plain, arm)))
    assert not missing
    return next(item for item in found if item.budget == budget)


# how much sooner


def test_a_curve_is_linear_in_the_logarithm_of_the_epochs():
    assert find_in_log([(10, 60.0), (40, 80.0)], 70.0) == pytest.approx(20)
    assert find_in_log([(5, 50.0), (10, 60.0), (20, 90.0)], 75.0) == pytest.approx(200**0.5)
    assert find_in_log([(7, 60.0), (11, 80.0)], 80.0) == 11
    assert find_in_log([(7, 60.0), (11, 80.0)], 59.0) == 7
    assert find_in_log([(7, 60.0), (11, 80.0)], 81.0) is None


def test_the_first_time_counts_where_a_curve_falls_again():
    assert find_in_log([(10, 60.0), (20, 80.0), (40, 70.0)], 75.0) == pytest.approx(10 * 2**0.75)


def test_a_speed_up_is_plains_epochs_over_the_arms():
    plain, arm = {10: [60], 20: [70], 40: [80]}, {10: [65], 20: [75], 40: [85]}
    for budget, epochs in ((20, 200**0.5), (40, 800**0.5)):
        found = find_only_speed_up(plain, arm, budget)
        assert found.epochs == pytest.approx(epochs)
        assert found.reach == Reach("equal", pytest.approx(2**0.5))
        assert (found.low, found.high) == (None, None)
    assert describe_speed_up(found) == (
        "TrAct λ=0.1 reaches plain's accuracy of 40 epochs (80.00 %) after 28.3 epochs: "
        "a speed-up of 1.41× (1 seed)."
    )


def test_a_slower_arm_has_a_speed_up_below_one():
    plain, arm = {10: [60], 20: [70], 40: [80]}, {10: [50], 20: [60], 40: [70]}
    found = find_only_speed_up(plain, arm, 20)
    assert found.reach == Reach("equal", 0.5)
    assert describe_speed_up(found).endswith("a speed-up of 0.50× (1 seed); below 1 is slower.")


def test_what_the_smallest_budget_reaches_is_a_lower_bound():
    found = find_only_speed_up({10: [60], 40: [70]}, {10: [71], 40: [75]}, 40)
    assert found.reach == Reach("at least", 4.0)
    assert (
        "already with its smallest budget, 10 epochs: a speed-up of ≥ 4.00×"
        in describe_speed_up(found)
    )


def test_what_the_largest_budget_does_not_reach_is_an_upper_bound():
    found = find_only_speed_up({10: [60], 40: [70]}, {10: [59], 20: [65]}, 40)
    assert found.reach == Reach("below", 2.0)
    assert found.epochs is None
    assert "does not reach plain's accuracy of 40 epochs (70.00 %) within 20" in describe_speed_up(
        found
    )


def test_the_bootstrap_keeps_bounds_as_bounds():
    """A quarter of the draws is seed 0 alone (reached at once), a quarter seed 1 alone (never)."""
    found = find_only_speed_up({10: [50, 50], 20: [70, 70]}, {10: [80, 40], 20: [80, 60]}, 20)
    assert found.reach == Reach("equal", 1.0)
    assert (found.low, found.high) == (Reach("below", 1.0), Reach("at least", 2.0))
    assert format_speed_up(found) == "1.00× [< 1.00×, ≥ 2.00×]"


def test_seeds_that_agree_leave_no_spread():
    found = find_only_speed_up({10: [60, 50], 20: [70, 60]}, {10: [65, 55], 20: [75, 65]}, 20)
    assert found.low.factor == pytest.approx(found.reach.factor)
    assert found.high.factor == pytest.approx(found.reach.factor)


def test_a_bootstrap_is_the_same_every_time_and_gives_members_of_the_sample():
    values = [1.0, 2.0, 4.0, 8.0]
    interval = resample(4, lambda chosen: max(values[i] for i in chosen))
    assert interval == resample(4, lambda chosen: max(values[i] for i in chosen))
    assert set(interval) <= set(values)
    assert resample(1, lambda chosen: values[chosen[0]]) == (1.0, 1.0)


def test_only_seeds_that_have_every_run_count():
    records = make_curves({10: [60, 60], 20: [70, 90]}, {10: [65, 0], 20: [75, 0]})
    found, _ = find_speed_ups(read_runs(records[:-1]))
    assert found[0].seeds == (0,)
    assert found[0].target == 70


def test_a_diverged_run_is_no_point_of_a_curve():
    records = make_curves({10: [60], 20: [70]}, {5: [80], 10: [65], 20: [75]})
    records[2] = diverge(records[2], 4)
    found, _ = find_speed_ups(read_runs(records))
    assert found[0].budgets == (10, 20)
    assert found[0].reach.factor == pytest.approx(2**0.5)


def test_one_budget_tells_no_speed_up_and_says_why():
    answers = answer(make_arms(plain=[60], tract_0__1=[61]))
    assert answers.speed_ups == ()
    (why,) = answers.missing
    assert "a speed-up takes two or more budgets" in why
    assert "complete runs have epochs 3 (plain: 3)" in why


def test_no_common_seed_tells_no_speed_up_and_says_why():
    records = make_curves({10: [60], 20: [70]}, {10: [65], 20: [75]})
    records[1]["seed"] = 7
    found, missing = find_speed_ups(read_runs(records))
    assert found == ()
    assert "because no seed has that run and all runs of the arm" in missing[0]


@settings(max_examples=40)
@given(
    heights=st.lists(st.tuples(*(st.integers(1, 60) for _ in range(4))), min_size=1, max_size=3),
    shift=st.integers(0, 30),
)
def test_a_constant_added_to_both_arms_changes_no_speed_up(heights, shift):
    def find(extra):
        rows = [[value + extra for value in row] for row in zip(*heights, strict=True)]
        records = make_curves({2: rows[0], 4: rows[1]}, {2: rows[2], 4: rows[3]})
        return find_speed_ups(read_runs(records), resamples=40)[0][0]

    before, after = find(0), find(shift)
    assert after.reach.kind == before.reach.kind
    assert after.reach.factor == pytest.approx(before.reach.factor)
    assert (after.low is None) == (before.low is None) == (len(heights) == 1)
    if before.low is not None:
        assert [after.low.kind, after.high.kind] == [before.low.kind, before.high.kind]


# crossings inside one run, and cost


def test_a_crossing_is_interpolated_between_epochs():
    assert find_crossing([(1, 50.0), (2, 60.0), (3, 70.0)], 65.0) == 2.5
    assert find_crossing([(1, 50.0), (2, 60.0)], 40.0) == 1
    assert find_crossing([(1, 50.0), (2, 60.0)], 61.0) is None


def test_crossings_count_the_runs_that_never_did():
    plain = [make_record("plain", 4, seed, [10, 20, 30, 65]) for seed in range(3)]
    curves = ([50, 60, 70, 80], [10, 20, 30, 65], [10, 20, 30, 60])
    arm = [make_record("tract-0.1", 4, seed, curve) for seed, curve in enumerate(curves)]
    itself, crossing = answer(plain + arm).crossings
    assert [epoch for _, epoch in crossing.per_seed] == [2.5, 4, None]
    assert (crossing.median, crossing.never, crossing.n) == (4, 1, 3)
    assert (itself.arm.name, itself.median, itself.never) == ("plain", 4, 0)


def test_never_is_later_than_every_epoch_in_a_median():
    assert compute_median([1.0, None, 3.0]) == 3
    assert compute_median([1.0, None]) is None
    assert compute_median([1.0, 2.0]) == 1.5
    assert compute_median([]) is None


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


def test_times_of_a_shared_machine_come_with_a_caution():
    assert "CAUTION: 3 runs shared the machine" in describe_timing(3)
    assert "CAUTION" not in describe_timing(1)
    elsewhere = make_record("tract-0.1", 3, 0, 60, environment__processor="another")
    assert not answer([make_record("plain", 3, 0, 60), elsewhere]).time_ratios[0].same_machine
