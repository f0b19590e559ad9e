"""From records of runs to answers: every statistic against numbers made by hand."""

import math
from dataclasses import replace

import pytest
from comparison_records import diverge, judge_by_precision, make_record, make_study
from hypothesis import given, settings
from hypothesis import strategies as st

from trainact.errors import TrActValueError
from trainact.lab.answers import answer
from trainact.lab.arms import name_arm, order_arms
from trainact.lab.outcomes import read_outcomes
from trainact.lab.speedups import Reach, find_speed_ups
from trainact.lab.statistics import (
    compute_median,
    compute_std,
    compute_t_interval,
    find_crossing,
    find_in_log,
    resample,
)
from trainact.lab.wording import (
    SMOKE_NOTE,
    caution_about_time,
    give_verdict,
    give_verdicts,
    show_difference,
    show_number,
    show_speed_up,
    tell_speed_up,
)


def make_arms(budget=3, **accuracies):
    """Return records of arms (underscores for dashes), one for each final accuracy."""
    return [
        make_record(arm.replace("__", ".").replace("_", "-"), budget, seed, value)
        for arm, values in accuracies.items()
        for seed, value in enumerate(values)
    ]


def make_curves(plain, arm, name="tract-0.1"):
    """Return records of plain and one arm; each maps a budget to accuracies of seeds."""
    return [
        make_record(title, budget, seed, value)
        for title, curve in (("plain", plain), (name, arm))
        for budget, values in curve.items()
        for seed, value in enumerate(values)
    ]


def find_only_speed_up(plain, arm, budget):
    found, missing = find_speed_ups(read_outcomes(make_curves(plain, arm)))
    assert not missing
    return next(item for item in found if item.budget == budget)


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
            "TrAct λ=0.1: +1.25 points with one seed, which gives no interval and so no verdict.",
        ),
    ],
)
def test_a_verdict_claims_no_more_than_its_interval(values, verdict):
    answers = answer(make_arms(plain=[60] * len(values), tract_0__1=values))
    assert give_verdict(answers.differences[0]) == verdict
    assert give_verdicts(answers)[1] == (3, verdict)


def test_a_diverged_run_is_listed_and_has_no_accuracy():
    records = make_arms(plain=[60, 61, 62], tract_0__1=[63, 64, 65])
    records[4] = diverge(records[4])
    answers = answer(records)
    assert answers.summaries[1].diverged == (1,)
    assert answers.summaries[1].seeds == (0, 2)
    assert answers.differences[0].n == 2
    assert answers.outcomes[4].accuracy is None
    assert give_verdicts(answers)[1][1].endswith("(2 seeds); diverged with seed 1.")


def test_a_seed_without_a_complete_plain_run_is_named():
    records = make_arms(plain=[60, 61, 62], tract_0__1=[63, 64, 65])
    records[0] = diverge(records[0])
    answers = answer(records)
    assert answers.differences[0].unpaired == (0,)
    assert "left out for want of a complete plain run: seed 0" in give_verdicts(answers)[1][1]


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
    assert tell_speed_up(found) == (
        "TrAct λ=0.1 reaches plain's accuracy of 40 epochs (80.00 %) after 28.3 epochs: "
        "a speed-up of 1.41× (1 seed)."
    )


def test_a_slower_arm_has_a_speed_up_below_one():
    plain, arm = {10: [60], 20: [70], 40: [80]}, {10: [50], 20: [60], 40: [70]}
    found = find_only_speed_up(plain, arm, 20)
    assert found.reach == Reach("equal", 0.5)
    assert tell_speed_up(found).endswith("a speed-up of 0.50× (1 seed); below 1 is slower.")


def test_what_the_smallest_budget_reaches_is_a_lower_bound():
    found = find_only_speed_up({10: [60], 40: [70]}, {10: [71], 40: [75]}, 40)
    assert found.reach == Reach("at least", 4.0)
    assert "already at its smallest budget, 10 epochs: a speed-up of ≥ 4.00×" in tell_speed_up(
        found
    )


def test_what_the_largest_budget_does_not_reach_is_an_upper_bound():
    found = find_only_speed_up({10: [60], 40: [70]}, {10: [59], 20: [65]}, 40)
    assert found.reach == Reach("below", 2.0)
    assert found.epochs is None
    assert "does not reach plain's accuracy of 40 epochs (70.00 %) within 20" in tell_speed_up(
        found
    )


def test_the_bootstrap_keeps_bounds_as_bounds():
    """A quarter of the draws is seed 0 alone (reached at once), a quarter seed 1 alone (never)."""
    found = find_only_speed_up({10: [50, 50], 20: [70, 70]}, {10: [80, 40], 20: [80, 60]}, 20)
    assert found.reach == Reach("equal", 1.0)
    assert (found.low, found.high) == (Reach("below", 1.0), Reach("at least", 2.0))
    assert show_speed_up(found) == "1.00× [< 1.00×, ≥ 2.00×]"


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
    found, _ = find_speed_ups(read_outcomes(records[:-1]))
    assert found[0].seeds == (0,)
    assert found[0].target == 70


def test_a_diverged_run_is_no_point_of_a_curve():
    records = make_curves({10: [60], 20: [70]}, {5: [80], 10: [65], 20: [75]})
    records[2] = diverge(records[2], 4)
    found, _ = find_speed_ups(read_outcomes(records))
    assert found[0].budgets == (10, 20)
    assert found[0].reach.factor == pytest.approx(2**0.5)


def test_one_budget_tells_no_speed_up_and_says_why():
    answers = answer(make_arms(plain=[60], tract_0__1=[61]))
    assert answers.speed_ups == ()
    (why,) = answers.missing
    assert "how much sooner takes two or more budgets" in why
    assert "complete runs have epochs 3 (plain: 3)" in why


def test_no_common_seed_tells_no_speed_up_and_says_why():
    records = make_curves({10: [60], 20: [70]}, {10: [65], 20: [75]})
    records[1]["seed"] = 7
    found, missing = find_speed_ups(read_outcomes(records))
    assert found == ()
    assert "as no seed has that run and all of the arm's" in missing[0]


@settings(max_examples=40)
@given(
    heights=st.lists(st.tuples(*(st.integers(1, 60) for _ in range(4))), min_size=1, max_size=3),
    shift=st.integers(0, 30),
)
def test_a_constant_added_to_both_arms_changes_no_speed_up(heights, shift):
    def find(extra):
        rows = [[value + extra for value in row] for row in zip(*heights, strict=True)]
        records = make_curves({2: rows[0], 4: rows[1]}, {2: rows[2], 4: rows[3]})
        return find_speed_ups(read_outcomes(records), resamples=40)[0][0]

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
    assert (itself.arm, itself.median, itself.never) == ("plain", 4, 0)


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
    (cost,) = answer(plain + arm).costs
    assert (cost.ratio, cost.low, cost.high, cost.n) == pytest.approx((1.1, 1.0, 1.5, 3))
    assert cost.same_machine


def test_a_run_of_one_epoch_is_timed_by_it():
    records = [make_record("plain", 1, 0, 60), make_record("tract-0.1", 1, 0, 60, seconds=4.5)]
    assert answer(records).costs[0].ratio == pytest.approx(1.5)
    assert answer([make_record(arm, 1, 0, 60, seconds=0) for arm in ("plain", "a")]).costs == ()


def test_times_of_a_shared_machine_come_with_a_caution():
    assert "CAUTION: 3 runs shared the machine" in caution_about_time(3)
    assert "CAUTION" not in caution_about_time(1)
    elsewhere = make_record("tract-0.1", 3, 0, 60, environment__processor="another")
    assert not answer([make_record("plain", 3, 0, 60), elsewhere]).costs[0].same_machine


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
    assert answers.outcomes[0].accuracies == (10, 25)
    assert answers.differences[0].mean == 25
    assert {outcome.metric for outcome in answers.outcomes} == {"mAP (11-point)"}


def test_runs_judged_by_different_metrics_are_refused():
    plain = make_record("plain", 1, 0, 60)
    other = judge_by_precision(make_record("tract-0.1", 1, 0, 60), [0.5])
    message = r"judged by accuracy and by mAP \(11-point\) cannot be compared"
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
    assert [told for _, told in give_verdicts(lost)] == [
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
    assert all(told.startswith(SMOKE_NOTE) for _, told in give_verdicts(answers))


# names and numbers


def test_arms_have_titles_and_an_order():
    titles = {"plain": "plain", "tract-0.1": "TrAct λ=0.1", "lr-10": "plain, first-layer lr ×10"}
    assert {arm: name_arm(arm) for arm in titles} == titles
    assert name_arm("tract-1e-05") == "TrAct λ=1e-05"
    assert order_arms(["lr-1e+06", "lr-1.2.3", "lr-20"]) == ["lr-1.2.3", "lr-20", "lr-1e+06"]
    assert [name_arm(arm) for arm in ("tract-", "tract-x", "sgd")] == ["tract-", "tract-x", "sgd"]
    assert order_arms({"x", "lr-3", "tract-0.2", "lr-10", "tract-0.05", "plain"}) == [
        "plain",
        "tract-0.05",
        "tract-0.2",
        "lr-3",
        "lr-10",
        "x",
    ]


def test_numbers_are_shown_in_two_digits_without_a_negative_zero():
    assert [show_number(v) for v in (1.005, -0.004, -1.5)] == ["1.00", "0.00", "-1.50"]
    assert show_number(-0.001, sign=True) == "0.00"
    difference = answer(make_arms(plain=[60, 60], tract_0__1=[61, 61])).differences[0]
    assert show_difference(difference) == "+1.00 [1.00, 1.00]"
    assert show_difference(replace(difference, low=None, high=None)) == "+1.00 [one seed]"
    assert show_difference(None) == "-"


def test_a_whole_study_has_every_answer():
    answers = answer(make_study(seeds=(0, 1)), jobs=2)
    assert answers.arms == ["plain", "tract-0.1", "tract-0.2", "lr-10"]
    assert answers.budgets == [5, 10, 20]
    assert len(answers.summaries) == len(answers.crossings) == 12
    assert len(answers.differences) == len(answers.costs) == 9
    assert len(answers.speed_ups) == 6
    assert answers.missing == ()
