"""The generated parts of README.md and docs/."""

import pytest

pytest.importorskip("matplotlib", reason="pictures need matplotlib")
pytest.importorskip("rich", reason="the lab's tables need rich")

from tools import pages
from trainact.errors import TrActValueError


def test_the_pages_are_up_to_date_with_the_committed_records():
    assert pages.main(["--check"]) == 0


def test_a_page_with_an_unknown_mark_is_refused():
    with pytest.raises(TrActValueError, match="unknown marked place 'speed'; there are bench"):
        pages.fill_page("<!-- speed --><!-- /speed -->", {"bench": ""})
