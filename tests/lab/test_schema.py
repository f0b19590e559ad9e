"""Numbers from the text of the command line."""

import pytest

from trainact.errors import TrActValueError
from trainact.lab.schema import parse_positive_numbers, parse_whole_numbers


def test_whole_numbers_are_listed_or_given_as_ranges():
    assert parse_whole_numbers("5,10-12", "--epochs") == (5, 10, 11, 12)
    for text in ("", "a", "1,,2", "3-", "1,1", "-1", "2-1"):
        with pytest.raises(TrActValueError, match="--epochs"):
            parse_whole_numbers(text, "--epochs")


def test_other_numbers_are_positive_and_finite():
    assert parse_positive_numbers("0.1,2", "--lam") == (0.1, 2.0)
    for text in ("", "0", "-1", "x", "inf", "nan"):
        with pytest.raises(TrActValueError, match="--lam takes positive numbers"):
            parse_positive_numbers(text, "--lam")
