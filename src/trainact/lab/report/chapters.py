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
from trainact.lab.report.grid import Grid
from trainact.lab.report.tables import (
    describe_data,
    join_distinct,
    make_accuracy_grid,
    make_crossing_grid,
    make_environment_grid,
    make_pairwise_grid,
    make_run_grid,
    make_secondary_grid,
    make_speed_up_grid,
    make_time_grid,
)
from trainact.lab.report.wording import (
    CROSSING_NOTE,
    INTERVAL_NOTE,
    SMOKE_PREFIX,
    SPEED_UP_NOTE,
    describe_results,
    describe_speed_up,
    describe_timing,
)
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
NO_PAIR = "No seed was completed by both plain and another arm."


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
    GRADIENTS = "gradients"
    BUDGETS = "budgets"

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
    models = join_distinct([record["model"]["name"] for record in records])
    data = join_distinct([describe_data(record["data"]) for record in records])
    return (
        f"{models} on {data}: final accuracy, speed-up and training time of {' / '.join(others)} "
        "compared with plain training from the same seeds."
    )


def make_chapters(answers: Answers, records: Sequence[Record], command: str) -> tuple[Chapter, ...]:
    """Return all chapters of a comparison; an empty one says what is missing.

    Args:
        answers: statistics of the records.
        records: of all runs.
        command: reproduces the comparison.
    """
    several = len(answers.budgets) > 1
    curves = (Picture.ACCURACY, Picture.GRADIENTS) if answers.runs else ()
    accuracy = make_accuracy_grid(answers), make_pairwise_grid(answers)
    speed_ups, crossings = make_speed_up_grid(answers), make_crossing_grid(answers)
    times = make_time_grid(answers)
    return (
        Chapter(
            ChapterId.SUMMARY,
            lists=_list_results(answers),
            notes=(INTERVAL_NOTE,) if any(d.n > 1 for d in answers.differences) else (),
        ),
        Chapter(
            ChapterId.ACCURACY,
            sentences=_describe_metric(answers),
            grids=_drop_empty(*accuracy, make_secondary_grid(records)),
        ),
        Chapter(ChapterId.CURVES, pictures=curves, notes=(GRADIENT_NOTE,) if curves else ()),
        Chapter(
            ChapterId.SPEED_UP,
            sentences=() if speed_ups.rows else (_explain_no_speed_up(several),),
            grids=_drop_empty(speed_ups),
            pictures=(Picture.BUDGETS,) if several else (),
            notes=(SPEED_UP_NOTE,) if speed_ups.rows else (),
        ),
        Chapter(
            ChapterId.CROSSINGS,
            sentences=() if crossings.rows else (NO_PAIR,),
            grids=_drop_empty(crossings),
            notes=(CROSSING_NOTE,) if crossings.rows else (),
        ),
        Chapter(
            ChapterId.TIME,
            sentences=() if times.rows else (NO_PAIR,),
            grids=_drop_empty(times),
            notes=(describe_timing(answers.jobs),) if times.rows else (),
        ),
        Chapter(
            ChapterId.RUNS,
            grids=_drop_empty(make_run_grid(answers)),
            notes=tuple(_describe_recipes(answers, records)),
        ),
        Chapter(ChapterId.ENVIRONMENT, grids=_drop_empty(make_environment_grid(records))),
        Chapter(ChapterId.REPRODUCE, command=command),
    )


def list_pictures(chapters: Sequence[Chapter]) -> list[Picture]:
    """Return the pictures of the chapters, in order."""
    return [picture for chapter in chapters for picture in chapter.pictures]


def _list_results(answers: Answers) -> tuple[BulletList, ...]:
    """Return the results of each budget, the speed-ups at the largest, and what is missing."""
    by_budget: dict[int, list[str]] = {}
    for budget, text in describe_results(answers):
        by_budget.setdefault(budget, []).append(text)
    largest = max((found.budget for found in answers.speed_ups), default=None)
    prefix = SMOKE_PREFIX if answers.kind == "smoke" else ""
    speed_ups = tuple(
        prefix + describe_speed_up(found) for found in answers.speed_ups if found.budget == largest
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


def _drop_empty(*grids: Grid) -> tuple[Grid, ...]:
    return tuple(grid for grid in grids if grid.rows)


def _explain_no_speed_up(several: bool) -> str:
    if several:
        return "There is no speed-up; the summary lists the reasons."
    return "A speed-up needs runs with two or more budgets (epochs of a whole run)."


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
