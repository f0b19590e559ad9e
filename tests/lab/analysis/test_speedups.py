"""Speed-ups against numbers computed by hand."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comparison_records import diverge, make_arms, make_curves
from trainact.lab.analysis.answers import answer
from trainact.lab.analysis.runs import read_runs
from trainact.lab.analysis.speedups import (
    Reach,
    _compute_interval,
    find_other_speed_ups,
    find_speed_ups,
)
from trainact.lab.report.wording import describe_speed_up, format_speed_up
from trainact.lab.statistics import compute_t_interval


def find_only_speed_up(plain, arm, budget):
    found, missing = find_speed_ups(read_runs(make_curves(plain, arm)))
    assert not missing
    return next(item for item in found if item.budget == budget)


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


def test_an_interval_may_end_in_bounds():
    """Seed 0 reaches the accuracy at once, seed 1 never."""
    found = find_only_speed_up({10: [50, 50], 20: [70, 70]}, {10: [80, 40], 20: [80, 60]}, 20)
    assert found.reach == Reach("equal", 1.0)
    assert (found.low, found.high) == (Reach("below", 1.0), Reach("at least", 2.0))
    assert format_speed_up(found) == "1.00× [< 1.00×, ≥ 2.00×]"


def test_seeds_that_agree_leave_no_spread():
    found = find_only_speed_up({10: [60, 50], 20: [70, 60]}, {10: [65, 55], 20: [75, 65]}, 20)
    assert found.low.factor == pytest.approx(found.reach.factor)
    assert found.high.factor == pytest.approx(found.reach.factor)


def test_rounding_does_not_turn_an_end_of_an_interval_into_a_bound():
    """At one of the points between the budgets every gap is 0, but for its rounding."""
    found = find_only_speed_up({10: [70, 70]}, {5: [69.9, 69.9], 10: [70.3, 70.3]}, 10)
    assert [end.kind for end in (found.reach, found.low, found.high)] == ["equal"] * 3
    ends = _compute_interval({5: [-0.1, -0.1], 10: [0.3, 0.3]}, 10)
    assert ends == (Reach("equal", pytest.approx(2**0.75)),) * 2


def test_the_ends_of_an_interval_are_where_a_t_test_begins_to_see_a_difference():
    plain, arm = {10: [60, 59, 60], 40: [70, 71, 70]}, {10: [65, 64, 65], 40: [75, 76.5, 75]}
    found = find_only_speed_up(plain, arm, 40)
    for end, side in ((found.low, 0), (found.high, 1)):
        share = math.log(40 / end.factor / 10) / math.log(4)
        gaps = [
            (1 - share) * a + share * b - c
            for a, b, c in zip(arm[10], arm[40], plain[40], strict=True)
        ]
        assert end.kind == "equal"
        assert compute_t_interval(gaps)[side] == pytest.approx(0, abs=1e-2)
    assert found.low.factor < found.reach.factor < found.high.factor


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_intervals_hold_the_true_speed_up_about_95_times_of_100(seeds):
    draw = random.Random(seeds).gauss
    held = 0
    for _ in range(600):
        plain = [70 + draw(0, 0.3) for _ in range(seeds)]
        arm = {2: [69 + draw(0, 0.3) for _ in plain], 8: [71 + draw(0, 0.3) for _ in plain]}
        found = find_only_speed_up({8: plain}, arm, 8)
        low = 0 if found.low.kind == "below" else found.low.factor
        high = math.inf if found.high.kind == "at least" else found.high.factor
        held += low <= 2 <= high
    assert 0.92 < held / 600 < 0.99


def test_an_interval_is_above_one_just_if_the_arm_is_better_at_that_budget():
    for better in (0.2, 1.0, 3.0):
        ends = [70.4 + better, 69.1 + better, 70.2 + better]
        records = make_curves({4: [62, 61, 63], 8: [70, 70, 70]}, {4: [60, 61, 62], 8: ends})
        answers = answer(records)
        (difference,) = (d for d in answers.differences if d.budget == 8)
        low = answers.speed_ups[-1].low
        assert (low.kind != "below" and low.factor > 1) == (difference.verdict == "better")


def test_an_interval_goes_on_to_the_last_epochs_that_may_be_needed():
    """Between two budgets the t interval of the gap may exclude 0, and contain it again at 10."""
    ends = {5: [69.8, 69.0], 10: [70.6, 72.0]}
    answers = answer(make_curves({5: [60, 60], 10: [70, 70]}, ends))
    assert answers.differences[-1].verdict == "unclear"
    (found,) = answers.speed_ups
    assert (found.low.kind, found.low.factor) == ("below", 1.0)
    assert found.high.kind == "at least"


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


def test_an_arm_can_be_compared_with_another_one_than_plain():
    curves = ({10: [60], 20: [70], 40: [80]}, {10: [65], 20: [75], 40: [85]})
    records = make_curves(*curves) + make_curves({}, {10: [55], 20: [66], 40: [76]}, "lr-10")
    runs = read_runs(records)
    assert find_other_speed_ups(runs, {"lr-10": "none", "none": "lr-10"}) == ()
    found = find_other_speed_ups(runs, {"tract-0.1": "lr-10"})
    assert [(item.arm.name, item.against.name, item.budget) for item in found] == [
        ("tract-0.1", "lr-10", 20),
        ("tract-0.1", "lr-10", 40),
    ]
    assert found[0].target == 66
    assert found[0].epochs == pytest.approx(10 * 2**0.1)
    assert answer(records, against={"tract-0.1": "lr-10"}).other_speed_ups == found
    assert describe_speed_up(found[0]) == (
        "TrAct λ=0.1 reaches the accuracy of 20 epochs (66.00 %) of plain, first-layer lr ×10 "
        "after 10.7 epochs: a speed-up of 1.87× (1 seed)."
    )


def test_one_budget_gives_no_speed_up_and_a_reason():
    answers = answer(make_arms(plain=[60], tract_0__1=[61]))
    assert answers.speed_ups == ()
    (why,) = answers.missing
    assert "a speed-up needs two or more budgets" in why
    assert "budgets with complete runs: 3 (plain: 3)" in why


def test_arms_that_lack_a_speed_up_for_the_same_reason_share_a_line():
    answers = answer(make_arms(plain=[60], tract_0__1=[61], lr_10=[62]))
    (why,) = answers.missing
    assert why.startswith("TrAct λ=0.1; plain, first-layer lr ×10: a speed-up needs")


def test_no_common_seed_gives_no_speed_up_and_a_reason():
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
        return find_speed_ups(read_runs(records))[0][0]

    before, after = find(0), find(shift)
    assert after.reach.kind == before.reach.kind
    assert after.reach.factor == pytest.approx(before.reach.factor)
    assert (after.low is None) == (before.low is None) == (len(heights) == 1)
    if before.low is not None:
        assert [after.low.kind, after.high.kind] == [before.low.kind, before.high.kind]
