"""Chapters as Markdown and as HTML, and the HTML document around them."""

import base64
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from matplotlib.figure import Figure

from trainact.lab.analysis.answers import Answers
from trainact.lab.report.chapters import Chapter, Picture
from trainact.lab.report.curves import CURVES, draw_budgets, draw_lams, export_picture
from trainact.lab.report.grid import escape_markdown, render_markdown
from trainact.lab.report.html_parts import read_file, render_part
from trainact.lab.report.wording import SMOKE_WARNING, format_accuracy, format_reach
from trainact.lab.text import count_epochs

__all__ = ["render_html_chapter", "render_html_document", "render_markdown_chapter"]

CAPTIONS = {
    Picture.ACCURACY: "Test accuracy per epoch",
    Picture.TOP5: "Top-5 test accuracy per epoch",
    Picture.GRADIENTS: "Norm of the first layer's gradient per epoch",
    Picture.BUDGETS: "Final accuracy by epochs",
    Picture.LAMS: "Final accuracy by λ",
}
DETAILS = {
    Picture.ACCURACY: " (thick: mean over seeds)",
    Picture.TOP5: " (thick: mean over seeds)",
    Picture.GRADIENTS: "",
    Picture.BUDGETS: ": mean and standard deviation. Arrows: speed-up over plain at its largest "
    "budget",
    Picture.LAMS: ": mean and standard deviation. Dashed: plain",
}
"""The HTML page adds these to the captions."""


def render_markdown_chapter(chapter: Chapter, level: int = 2, folder: str = "") -> list[str]:
    """Return the blocks of a chapter, to be joined by empty lines.

    >>> from trainact.lab.report.chapters import ChapterId
    >>> render_markdown_chapter(Chapter(ChapterId.SUMMARY, ("TrAct is better.",)), level=3)
    ['### Summary', 'TrAct is better.']

    ``folder`` is the prefix of the picture files, with a slash at the end.
    """
    blocks = ["#" * level + f" {escape_markdown(chapter.title)}"]
    blocks += map(escape_markdown, chapter.sentences)
    for heading, items in chapter.lists:
        blocks.append("#" * (level + 1) + f" {escape_markdown(heading)}")
        blocks.append("\n".join(f"- {escape_markdown(item)}" for item in items))
    blocks += map(render_markdown, chapter.grids)
    blocks += [f"![{CAPTIONS[picture]}]({folder}{picture.file})" for picture in chapter.pictures]
    blocks += map(escape_markdown, chapter.notes)
    if chapter.command:
        blocks.append("\n".join(f"    {line}" for line in chapter.command.splitlines()))
    return blocks


def render_html_chapter(chapter: Chapter, answers: Answers | None = None, level: int = 2) -> str:
    """Return a chapter as a section; its pictures are drawn from the answers."""
    drawn = [] if answers is None else [list(_draw(one, answers)) for one in chapter.pictures]
    return render_part("section", chapter, drawn, level)


def render_html_document(
    title: str, description: str, parts: Iterable[str], *, smoke: bool = False
) -> str:
    """Return a complete HTML file without scripts or references to other files.

    ``parts`` come from `render_part`; other text is escaped.
    """
    warning = SMOKE_WARNING if smoke else ""
    return render_part("document", read_file("page.css"), warning, title, description, parts)


class _Figure(NamedTuple):
    """A picture of a page."""

    caption: str
    description: str
    encoded: str  # SVG in base64


def _draw(picture: Picture, answers: Answers) -> Iterator[_Figure]:
    """Yield the figures of a picture; curves have one per budget, so that a phone stacks them."""
    caption = CAPTIONS[picture] + DETAILS[picture]
    if picture is Picture.BUDGETS:
        yield _embed(draw_budgets(answers), caption, _describe_budgets(answers))
        return
    if picture is Picture.LAMS:
        yield _embed(draw_lams(answers), caption, _describe_lams(answers))
        return
    for budget in answers.budgets:
        title = f"{caption}, runs of {count_epochs(budget)}"
        finals = "; ".join(
            f"{s.arm.title} ends at {format_accuracy(s)}"
            for s in answers.summaries
            if s.budget == budget and picture is Picture.ACCURACY
        )
        yield _embed(CURVES[picture](answers, [budget]), title, f"{title}. {finals}".strip())


def _embed(figure: Figure, caption: str, description: str) -> _Figure:
    encoded = base64.b64encode(export_picture(figure, "svg")).decode("ascii")
    return _Figure(caption, description, encoded)


def _describe_lams(answers: Answers) -> str:
    finals = [
        f"{s.arm.title} with {count_epochs(s.budget)} {format_accuracy(s)}"
        for s in answers.summaries
        if s.arm.kind in ("plain", "tract")
    ]
    return f"Final accuracy in percent by λ: {'; '.join(finals)}."


def _describe_budgets(answers: Answers) -> str:
    finals = [
        f"{s.arm.title} with {count_epochs(s.budget)} {format_accuracy(s)}"
        for s in answers.summaries
    ]
    speed_ups = [
        f"{f.arm.title} against plain's {count_epochs(f.budget)} {format_reach(f.reach)}"
        for f in answers.speed_ups
    ]
    found = "; ".join(speed_ups) or "none"
    return f"Final accuracy in percent: {'; '.join(finals)}. Speed-up: {found}."
