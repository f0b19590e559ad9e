"""Numbers and statistics as text."""

from dataclasses import replace

import pytest

from comparison_records import make_arms
from trainact.lab.analysis.answers import answer
from trainact.lab.report.wording import (
    SMOKE_PREFIX,
    describe_difference,
    describe_results,
    describe_timing,
    format_difference,
    format_number,
)


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([61, 62, 61.5], "TrAct λ=0.1 is better by 1.50 points [0.26, 2.74] (3 seeds)."),
        ([59, 58, 58.5], "TrAct λ=0.1 is worse by 1.50 points [0.26, 2.74] (3 seeds)."),
        ([61, 59, 61], "TrAct λ=0.1: no clear difference: +0.33 points [-2.54, 3.20] (3 seeds)."),
        ([60, 60], "TrAct λ=0.1: no clear difference: 0.00 points [0.00, 0.00] (2 seeds)."),
        (
            [61.25],
            "TrAct λ=0.1: +1.25 points with one seed, which gives no interval.",
        ),
    ],
)
def test_a_sentence_claims_no_more_than_its_interval(values, verdict):
    answers = answer(make_arms(plain=[60] * len(values), tract_0__1=values))
    assert describe_difference(answers.differences[0]) == verdict
    assert describe_results(answers)[1] == (3, verdict)


def test_smoke_runs_give_no_verdict():
    records = [
        record | {"kind": "smoke"} for record in make_arms(plain=[60, 60], tract_0__1=[70, 71])
    ]
    answers = answer(records)
    assert answers.kind == "smoke"
    assert all(text.startswith(SMOKE_PREFIX) for _, text in describe_results(answers))


def test_numbers_are_shown_in_two_digits_without_a_negative_zero():
    assert [format_number(v) for v in (1.005, -0.004, -1.5)] == ["1.00", "0.00", "-1.50"]
    assert format_number(-0.001, sign=True) == "0.00"
    difference = answer(make_arms(plain=[60, 60], tract_0__1=[61, 61])).differences[0]
    assert format_difference(difference) == "+1.00 [1.00, 1.00]"
    assert format_difference(replace(difference, low=None, high=None)) == "+1.00 [one seed]"
    assert format_difference(None) == "-"


def test_times_of_a_shared_machine_come_with_a_caution():
    assert "CAUTION: 3 runs shared the machine" in describe_timing(3)
    assert "CAUTION" not in describe_timing(1)
