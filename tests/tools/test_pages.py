"""The pages hold what the committed records say."""

import pytest

pytest.importorskip("rich", reason="the lab's tables need rich")

from tools import pages


def test_the_pages_hold_what_the_committed_record_says():
    assert pages.main(["--check"]) == 0


def test_a_page_with_an_unknown_mark_is_refused():
    with pytest.raises(ValueError, match="no table is named 'speed'; there are bench"):
        pages.fill_page("<!-- speed --><!-- /speed -->", {"bench": ""})
