"""One HTML file that holds a whole comparison: no script, and nothing from elsewhere."""

import base64
import html
from collections.abc import Iterable, Sequence
from importlib.resources import files

from matplotlib.figure import Figure

from trainact.lab.analysis.answers import Answers, answer
from trainact.lab.analysis.runs import Record
from trainact.lab.recipes.arms import name_arm
from trainact.lab.report.chapters import Chapter, ask_question, write_chapters
from trainact.lab.report.curves import draw_accuracy, draw_budgets, draw_gradients, export_picture
from trainact.lab.report.tables import render_html
from trainact.lab.report.wording import SMOKE, show_accuracy, show_reach
from trainact.lab.text import count_epochs

__all__ = ["SMOKE_BANNER", "render_answers", "render_chapter", "render_document", "render_page"]

SMOKE_BANNER = f'<p class="smoke">{html.escape(SMOKE)}</p>'

BUDGETS = (
    "Final accuracy over epochs: mean and standard deviation. Arrows: the speed-up against plain "
    "at its largest budget"
)


def render_page(title: str, command: str, records: Sequence[Record], jobs: int = 1) -> str:
    """Return the page: question, verdict, tables, pictures, every run, and how to repeat it.

    Args:
        title: of the page.
        command: which makes the same comparison again.
        records: of finished runs.
        jobs: how many runs shared the machine.

    Raises:
        TrActValueError: records that cannot be compared.
    """
    return render_answers(title, command, answer(records, jobs), records)


def render_answers(title: str, command: str, answers: Answers, records: Sequence[Record]) -> str:
    """Return the page of answers that are already there, made from these records."""
    body = "\n".join(render_chapter(c, answers) for c in write_chapters(answers, records, command))
    smoke = answers.kind == "smoke"
    return render_document(title, ask_question(answers, records), body, smoke=smoke)


def render_document(title: str, question: str, body: str, *, smoke: bool = False) -> str:
    """Return a whole HTML file.

    Args:
        title: of the page.
        question: the sentence under it.
        body: HTML, already escaped.
        smoke: whether all of it is about smoke runs.
    """
    style = files("trainact.lab.report").joinpath("page.css").read_text(encoding="utf-8")
    warning = f"{SMOKE_BANNER}\n" if smoke else ""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{html.escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        f"<header>\n{warning}<h1>{html.escape(title)}</h1>\n"
        f'<p class="question">{html.escape(question)}</p>\n</header>\n'
        f"{body}\n</main>\n</body>\n</html>\n"
    )


def render_chapter(chapter: Chapter, answers: Answers | None = None, level: int = 2) -> str:
    """Return a section of the page; its pictures are drawn from the answers."""
    parts = [f"<section>\n<h{level}>{html.escape(chapter.title)}</h{level}>"]
    parts += [f"<p>{html.escape(sentence)}</p>" for sentence in chapter.sentences]
    for heading, told in chapter.lists:
        items = "\n".join(f"<li>{html.escape(item)}</li>" for item in told)
        parts.append(f"<h{level + 1}>{html.escape(heading)}</h{level + 1}>\n<ul>\n{items}\n</ul>")
    parts += [render_html(grid) for grid in chapter.grids]
    for picture in chapter.pictures:
        figures = "\n".join(_draw(picture, answers))
        parts.append(f'<div class="pictures">\n{figures}\n</div>')
    parts += [f'<p class="note">{html.escape(note)}</p>' for note in chapter.notes]
    if chapter.command:
        parts.append(f"<pre><code>{html.escape(chapter.command)}</code></pre>")
    return "\n".join(parts) + "\n</section>"


def _draw(picture: str, answers: Answers | None) -> Iterable[str]:
    """Yield the figures of one picture: one for each budget, so that a phone stacks them."""
    if answers is None:
        return
    if picture == "budgets":
        yield _embed(draw_budgets(answers), BUDGETS, _describe(answers))
        return
    draw, what = {
        "accuracy": (draw_accuracy, "Test accuracy per epoch (thick: mean over seeds)"),
        "gradients": (draw_gradients, "Norm of the first layer's gradient per epoch"),
    }[picture]
    for budget in answers.budgets:
        ends = "; ".join(
            f"{name_arm(s.arm)} ends at {show_accuracy(s)}"
            for s in answers.summaries
            if s.budget == budget and picture == "accuracy"
        )
        caption = f"{what}, runs of {count_epochs(budget)}"
        yield _embed(draw(answers, [budget]), caption, f"{caption}. {ends}".strip())


def _embed(figure: Figure, caption: str, described: str) -> str:
    encoded = base64.b64encode(export_picture(figure, "svg")).decode("ascii")
    return (
        f'<figure><img alt="{html.escape(described)}" '
        f'src="data:image/svg+xml;base64,{encoded}">'
        f"<figcaption>{html.escape(caption)}</figcaption></figure>"
    )


def _describe(answers: Answers) -> str:
    ends = [
        f"{name_arm(s.arm)} with {count_epochs(s.budget)} {show_accuracy(s)}"
        for s in answers.summaries
    ]
    sooner = [
        f"{name_arm(f.arm)} against plain's {count_epochs(f.budget)} {show_reach(f.reach)}"
        for f in answers.speed_ups
    ]
    return f"Final accuracy in percent: {'; '.join(ends)}. Speed-up: {'; '.join(sooner) or 'none'}."
