"""The content of a comparison's page, independent of Markdown and HTML."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import NamedTuple

from trainact.lab.analysis.answers import Answers
from trainact.lab.analysis.runs import list_differences
from trainact.lab.metric import ACCURACY
from trainact.lab.recipes.arms import PLAIN
from trainact.lab.records.record import Record
from trainact.lab.report import tables, wording
from trainact.lab.report.grid import Grid
from trainact.lab.text import count_epochs

__all__ = [
    "BulletList",
    "Chapter",
    "ChapterId",
    "Picture",
    "describe_comparison",
    "list_pictures",
    "make_chapters",
]

GRADIENT_NOTE = (
    "The norm is that of the gradient passed to the optimizer. TrAct multiplies the gradient by "
    "the inverse second moment of the layer's inputs, so its norm has a different scale than "
    "plain's."
)
MANY_CLASSES = 100
"""Classes from which on top-5 accuracy has a picture."""
MANY_LAMS = 4
"""Values of λ at one budget from which on accuracy by λ has a picture."""
NO_PAIR = "No seed was completed by both plain and another arm."
NO_SPEED_UP = "There is no speed-up; the summary lists the reasons."
ONE_BUDGET = "A speed-up needs runs with two or more budgets (epochs of a whole run)."


class ChapterId(Enum):
    """The chapters of all pages, with their titles."""

    OVERVIEW = "Overview"
    SUMMARY = "Summary"
    INCOMPLETE = "Diverged and interrupted runs"
    ACCURACY = "Final accuracy"
    PAPER = "Comparison with the paper"
    CURVES = "Curves"
    SPEED_UP = "Speed-up"
    CROSSINGS = "Crossing epoch within a run"
    TIME = "Training time"
    TUNING = "Learning-rate tuning"
    RUNS = "All runs"
    ENVIRONMENT = "Environment"
    REPRODUCE = "Commands to reproduce this"
    CLAIMS = "Claims of the paper"
    DAMAGED = "Damaged records"

    @property
    def anchor(self) -> str:
        """Return the target of links to the chapter."""
        return self.name.lower()


class Picture(StrEnum):
    """The pictures of a comparison; the value names the file."""

    ACCURACY = "accuracy"
    TOP5 = "top5"
    GRADIENTS = "gradients"
    BUDGETS = "budgets"
    LAMS = "lambda"

    @property
    def file(self) -> str:
        """Return the name of the PNG file."""
        return f"{self}.png"


class BulletList(NamedTuple):
    """Items under a heading."""

    heading: str
    items: tuple[str, ...]


@dataclass(frozen=True)
class Chapter:
    """A part of a page with a heading; its content is shown in the order of the fields."""

    id: ChapterId
    sentences: tuple[str, ...] = ()
    lists: tuple[BulletList, ...] = ()
    grids: tuple[Grid, ...] = ()
    pictures: tuple[Picture, ...] = ()
    notes: tuple[str, ...] = ()
    command: str = ""

    @property
    def title(self) -> str:
        """Return the heading."""
        return self.id.value


def describe_comparison(answers: Answers, records: Sequence[Record]) -> str:
    """Return what is compared, in one sentence."""
    if not records:
        return "There is nothing to compare: there are no records of runs."
    others = [arm.title for arm in answers.arms if arm != PLAIN] or ["no other arm"]
    models = tables.join_distinct([record["model"]["name"] for record in records])
    data = tables.join_distinct([tables.describe_data(record["data"]) for record in records])
    return (
        f"{models} on {data}: {'; '.join(others)}, each compared with plain training from the same "
        "seeds."
    )


def make_chapters(answers: Answers, records: Sequence[Record], command: str) -> tuple[Chapter, ...]:
    """Return all chapters of a comparison, with the command that reproduces it.

    A chapter without content says what is missing.
    """
    many_budgets = len(answers.budgets) > 1
    accuracy = (
        tables.make_accuracy_grid(answers),
        tables.make_pairwise_grid(answers),
        tables.make_secondary_grid(records),
    )
    return (
        Chapter(
            ChapterId.SUMMARY,
            lists=_list_results(answers),
            notes=(wording.describe_intervals(answers),)
            if any(d.n > 1 for d in answers.differences)
            else (),
        ),
        Chapter(ChapterId.ACCURACY, _describe_metric(answers), grids=_drop_empty(*accuracy)),
        _make_curves(answers),
        _make_chapter(
            ChapterId.SPEED_UP,
            tables.make_speed_up_grid(answers),
            wording.SPEED_UP_NOTE,
            NO_SPEED_UP if many_budgets else ONE_BUDGET,
            (Picture.BUDGETS,) if many_budgets else (),
        ),
        _make_chapter(
            ChapterId.CROSSINGS, tables.make_crossing_grid(answers), wording.CROSSING_NOTE, NO_PAIR
        ),
        _make_chapter(
            ChapterId.TIME,
            tables.make_time_grid(answers),
            wording.describe_timing(answers.jobs),
            NO_PAIR,
        ),
        Chapter(
            ChapterId.RUNS,
            grids=_drop_empty(tables.make_run_grid(answers)),
            notes=tuple(_describe_recipes(answers, records)),
        ),
        Chapter(ChapterId.ENVIRONMENT, grids=_drop_empty(tables.make_environment_grid(records))),
        Chapter(ChapterId.REPRODUCE, command=command),
    )


def _make_curves(answers: Answers) -> Chapter:
    pictures = _choose_curves(answers) if answers.runs else ()
    notes = (GRADIENT_NOTE,) if Picture.GRADIENTS in pictures else ()
    return Chapter(ChapterId.CURVES, pictures=pictures, notes=notes)


def _choose_curves(answers: Answers) -> tuple[Picture, ...]:
    """Return the curves of a comparison, without those that would show nothing."""
    many_classes = all(run.classes >= MANY_CLASSES and any(run.top5) for run in answers.runs)
    lams: dict[int, set[float | None]] = {}
    for run in answers.runs:
        if run.arm.kind == "tract":
            lams.setdefault(run.budget, set()).add(run.arm.lam)
    many_lams = max(map(len, lams.values()), default=0) >= MANY_LAMS
    return (
        Picture.ACCURACY,
        *([Picture.TOP5] if many_classes else []),
        *([Picture.GRADIENTS] if any(any(run.gradient_norms) for run in answers.runs) else []),
        *([Picture.LAMS] if many_lams else []),
    )


def list_pictures(chapters: Sequence[Chapter]) -> list[Picture]:
    """Return the pictures of the chapters, in order."""
    return [picture for chapter in chapters for picture in chapter.pictures]


def _list_results(answers: Answers) -> tuple[BulletList, ...]:
    """Return the results of each budget, the speed-ups at the largest, and what is missing."""
    by_budget: dict[int, list[str]] = {}
    for budget, text in wording.describe_results(answers):
        by_budget.setdefault(budget, []).append(text)
    largest = max((found.budget for found in answers.speed_ups), default=None)
    prefix = wording.SMOKE_PREFIX if answers.kind == "smoke" else ""
    speed_ups = tuple(
        prefix + wording.describe_speed_up(found)
        for found in (*answers.speed_ups, *answers.other_speed_ups)
        if found.budget == largest
    )
    budgets = [
        BulletList(f"Accuracy after {count_epochs(budget)}", tuple(texts))
        for budget, texts in by_budget.items()
    ]
    lists = [
        *budgets[:1],
        BulletList("Speed-up", speed_ups),
        *budgets[1:],
        BulletList("Not available", answers.missing),
    ]
    return tuple(entry for entry in lists if entry.items)


def _describe_metric(answers: Answers) -> tuple[str, ...]:
    """Return what accuracy means on this page, unless it is the share of correct images."""
    metrics = {run.metric for run in answers.runs} - {ACCURACY.name}
    return tuple(f"Accuracy means {metric} on this page, in per cent." for metric in metrics)


def _make_chapter(
    chapter: ChapterId, grid: Grid, note: str, empty: str, pictures: tuple[Picture, ...] = ()
) -> Chapter:
    """Return a chapter with a table and its note, or with a sentence if the table is empty."""
    if not grid.rows:
        return Chapter(chapter, (empty,), pictures=pictures)
    return Chapter(chapter, grids=(grid,), pictures=pictures, notes=(note,))


def _drop_empty(*grids: Grid) -> tuple[Grid, ...]:
    return tuple(grid for grid in grids if grid.rows)


def _describe_recipes(answers: Answers, records: Sequence[Record]) -> list[str]:
    """Return for each arm the fields in which its recipe differs from plain's at that budget."""
    firsts: dict[tuple[str, int], Record] = {}
    for record in records:
        firsts.setdefault((record["arm"], record["budget"]), record)
    sentences = []
    for arm in answers.arms:
        budgets_of: dict[str, list[int]] = {}
        for budget in answers.budgets:
            one, plain = firsts.get((arm.name, budget)), firsts.get((PLAIN.name, budget))
            if arm != PLAIN and one is not None and plain is not None:
                found = [d.describe(PLAIN.name) for d in list_differences(one, plain)]
                budgets_of.setdefault("; ".join(found) or "nothing", []).append(budget)
        for fields, budgets in budgets_of.items():
            where = f" at {', '.join(map(str, budgets))} epochs" if len(budgets_of) > 1 else ""
            sentences.append(f"The recipe of {arm.title} differs from plain's{where} in {fields}.")
    return sentences
