"""Every statistic against numbers computed by hand."""

import math

import pytest

from trainact.lab.statistics import (
    compute_median,
    compute_std,
    compute_t_interval,
    find_crossing,
    find_in_log,
)


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


def test_a_curve_is_linear_in_the_logarithm_of_the_epochs():
    assert find_in_log([(10, 60.0), (40, 80.0)], 70.0) == pytest.approx(20)
    assert find_in_log([(5, 50.0), (10, 60.0), (20, 90.0)], 75.0) == pytest.approx(200**0.5)
    assert find_in_log([(7, 60.0), (11, 80.0)], 80.0) == 11
    assert find_in_log([(7, 60.0), (11, 80.0)], 59.0) == 7
    assert find_in_log([(7, 60.0), (11, 80.0)], 81.0) is None


def test_the_first_time_counts_where_a_curve_falls_again():
    assert find_in_log([(10, 60.0), (20, 80.0), (40, 70.0)], 75.0) == pytest.approx(10 * 2**0.75)


def test_a_crossing_is_interpolated_between_epochs():
    assert find_crossing([(1, 50.0), (2, 60.0), (3, 70.0)], 65.0) == 2.5
    assert find_crossing([(1, 50.0), (2, 60.0)], 40.0) == 1
    assert find_crossing([(1, 50.0), (2, 60.0)], 61.0) is None


def test_never_is_later_than_every_epoch_in_a_median():
    assert compute_median([1.0, None, 3.0]) == 3
    assert compute_median([1.0, None]) is None
    assert compute_median([1.0, 2.0]) == 1.5
    assert compute_median([]) is None
