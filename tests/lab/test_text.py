"""Counts, durations and messages about unknown names."""

from trainact.lab.text import count, describe_unknown, format_duration


def test_a_noun_is_in_the_plural_unless_there_is_one():
    assert [count(number, "run") for number in (0, 1, 2)] == ["0 runs", "1 run", "2 runs"]
    assert count(2, "batch", "batches") == "2 batches"


def test_durations_have_the_unit_that_suits_them():
    seconds = (0, 3, 40, 99, 100, 170, 4999, 5000, 172_799, 172_800, 1e9)
    assert [format_duration(s) for s in seconds] == [
        "0.0 s", "3.0 s", "40 s", "99 s", "1.7 min", "2.8 min", "83 min", "1.4 h", "48 h",
        "2.0 days", "11,574 days",
    ]  # fmt: skip
    assert format_duration(None) == "-"


def test_an_unknown_name_comes_with_similar_or_all_or_no_names():
    assert describe_unknown("plan", ["plain", "tract"], "arm") == (
        "unknown arm 'plan'; did you mean 'plain'?"
    )
    assert describe_unknown("x", ["plain", "tract"], "arm") == (
        "unknown arm 'x'; there are plain, tract."
    )
    many = [f"model_{number}" for number in range(1000)]
    assert describe_unknown("x", many, "model") == (
        "unknown model 'x'; none of the 1000 known names is similar."
    )
