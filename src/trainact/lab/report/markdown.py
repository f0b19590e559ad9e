"""Chapters as Markdown; their pictures are PNG files that lie beside the page or below it."""

from trainact.lab.report.chapters import Chapter
from trainact.lab.report.tables import escape_markdown, render_markdown

__all__ = ["PICTURES", "render_chapter"]

PICTURES = {
    "accuracy": "Test accuracy per epoch",
    "budgets": "Final accuracy over epochs",
    "gradients": "Norm of the first layer's gradient per epoch",
}


def render_chapter(chapter: Chapter, level: int = 2, folder: str = "") -> list[str]:
    """Return the parts of a chapter, to be joined by empty lines.

    >>> render_chapter(Chapter("Ends", sentences=("Well.",)), level=3)
    ['### Ends', 'Well.']

    Args:
        chapter: what to say.
        level: of its heading.
        folder: of the pictures, as the page sees it, with a slash at its end.
    """
    parts = ["#" * level + f" {escape_markdown(chapter.title)}"]
    parts += map(escape_markdown, chapter.sentences)
    for heading, told in chapter.lists:
        parts.append("#" * (level + 1) + f" {escape_markdown(heading)}")
        parts.append("\n".join(f"- {escape_markdown(item)}" for item in told))
    parts += [render_markdown(grid) for grid in chapter.grids]
    parts += [f"![{PICTURES[picture]}]({folder}{picture}.png)" for picture in chapter.pictures]
    parts += map(escape_markdown, chapter.notes)
    if chapter.command:
        parts.append("\n".join(f"    {line}" for line in chapter.command.splitlines()))
    return parts
