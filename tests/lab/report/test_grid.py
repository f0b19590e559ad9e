"""A table of text in a terminal, in a file, in Markdown and in HTML."""

import io

import pytest

pytest.importorskip("rich", reason="terminal tables need rich")
from rich.console import Console

from trainact.lab.report.grid import (
    Grid,
    print_grid,
    render_markdown,
    render_text,
)
from trainact.lab.report.html_parts import render_part

GRID = Grid("Final accuracy", ("arm", "accuracy"), (("plain", "60.00 ± 1.00"), ("a|b", "7.00")))


class Screen(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def test_all_forms_have_the_same_cells():
    assert render_text(GRID).splitlines() == [
        "Final accuracy",
        "arm        accuracy",
        "plain  60.00 ± 1.00",
        "a|b            7.00",
    ]
    assert render_markdown(GRID).splitlines() == [
        "| arm | accuracy |",
        "| --- | ---: |",
        "| plain | 60.00 ± 1.00 |",
        "| a\\|b | 7.00 |",
    ]
    assert '<th scope="row">plain</th><td>60.00 ± 1.00</td>' in render_part("grid", GRID)


def test_text_columns_are_left_aligned():
    grid = Grid("", ("claim", "section", "n"), (("better", "4.1", "3"),), text_columns=2)
    assert "| --- | --- | ---: |" in render_markdown(grid)
    assert '<td class="text">4.1</td><td>3</td>' in render_part("grid", grid)


def test_a_cell_of_a_page_says_whether_it_is_text_or_long_and_is_escaped():
    grid = Grid('<"a">', ("claim", "<section>", "n"), (("<b>", "x" * 27, "1 < 2"),), text_columns=2)
    page = render_part("grid", grid)
    assert 'aria-label="&lt;&#34;a&#34;&gt;"' in page
    assert '<th scope="col">claim</th><th scope="col" class="text">&lt;section&gt;</th>' in page
    assert f'<th scope="row">&lt;b&gt;</th><td class="long text">{"x" * 27}</td>' in page
    assert "<td>1 &lt; 2</td></tr>\n</tbody></table>" in page


def test_forced_colours_do_not_draw_tables_in_a_file(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    shown = io.StringIO()
    print_grid(GRID, Console(file=shown))
    assert shown.getvalue() == render_text(GRID) + "\n"


def test_cells_are_never_markup_in_a_terminal():
    shown = Screen()
    grid = Grid("[bold]", ("[red]",), (("<b>[red]</b>",),))
    print_grid(grid, Console(file=shown, width=160, height=50))
    assert "<b>[red]</b>" in shown.getvalue()
    assert "[bold]" in shown.getvalue()
    assert "│" in shown.getvalue()
