"""What a report says about one experiment: a comparison's chapters, and what is known besides."""

import dataclasses
from dataclasses import dataclass

from trainact.errors import TrActValueError
from trainact.lab.analysis.answers import Answers, answer
from trainact.lab.analysis.studies import Study
from trainact.lab.recipes.experiment import Experiment, find_experiment, list_experiments
from trainact.lab.report.beside_paper import compare_with_paper
from trainact.lab.report.chapters import Chapter, ask_question, write_chapters
from trainact.lab.report.tables import Grid
from trainact.lab.report.tuning_table import (
    HOW_RATES_ARE_CHOSEN,
    list_disagreements,
    make_tuning_grid,
)
from trainact.lab.running.plan import format_command

__all__ = ["StudyPage", "write_study"]


@dataclass(frozen=True)
class StudyPage:
    """One experiment of a report, before it is Markdown or HTML.

    Attributes:
        study: its runs.
        title: its heading.
        question: what was asked, and what a reader must know of the recipe.
        answers: None where its records cannot be compared.
        chapters: in order.
        problem: why its records cannot be compared, if they cannot.
    """

    study: Study
    title: str
    question: tuple[str, ...]
    answers: Answers | None
    chapters: tuple[Chapter, ...]
    problem: str = ""


def write_study(study: Study) -> StudyPage:
    """Return everything that the runs of one experiment say."""
    known = find_experiment(study.name) if study.name in list_experiments() else None
    title = known.title if known else study.name
    if study.network:
        title = f"{title}: {study.network.rpartition(':')[2]}"
    unsound = _list_unsound(study)
    tuning = _tell_tuning(study)
    if not study.records:
        about = _describe_recipe(known)
        told = "No run has ended yet, so that there is nothing to compare."
        chapters = (Chapter("Verdict", sentences=(told,)), *unsound, *tuning)
        return StudyPage(study, title, about, None, chapters)
    try:
        answers = answer(study.records, jobs=0, against=known.against if known else None)
    except TrActValueError as error:
        sentences = ("These records cannot be compared.", str(error))
        chapters = (Chapter("Verdict", sentences=sentences), *unsound, *tuning)
        about = _describe_recipe(known)
        return StudyPage(study, title, about, None, chapters, f"{study.name}: {error}")
    question = (ask_question(answers, study.records), *_describe_recipe(known))
    beside = compare_with_paper(study, answers)
    written: list[Chapter] = []
    for chapter in write_chapters(answers, study.records, _tell_command(study, known)):
        if chapter.title == "Every run":
            written += tuning
        if study.network:  # one of many: a page with all their pictures would not open on a phone
            kept = tuple(picture for picture in chapter.pictures if picture == "accuracy")
            chapter = dataclasses.replace(chapter, pictures=kept)
        written.append(chapter)
        if chapter.title == "Verdict":
            written += unsound
        if chapter.title == "Accuracy at the end" and beside is not None:
            written.append(beside)
    return StudyPage(study, title, question, answers, tuple(written))


def _describe_recipe(known: Experiment | None) -> tuple[str, ...]:
    if known is None:
        return ()
    place = f"{known.paper} of the paper. " if known.paper else "Not an experiment of the paper. "
    return ((place + known.note).strip(),)


def _list_unsound(study: Study) -> list[Chapter]:
    """Return the runs that diverged or have no record, if there are any."""
    diverged = [
        f"{record['arm']}, {record['budget']} epochs, seed {record['seed']}: {record['failure']}"
        for record in sorted(study.records, key=lambda r: (r["arm"], r["budget"], r["seed"]))
        if record["status"] == "diverged"
    ]
    lists = {
        "Diverged": diverged,
        "Interrupted, or still going on": sorted(study.interrupted),
    }
    kept = tuple((heading, tuple(items)) for heading, items in lists.items() if items)
    return [Chapter("Runs that did not end well", lists=kept)] if kept else []


def _tell_tuning(study: Study) -> list[Chapter]:
    if study.tuning is None:
        return []
    grid: Grid = make_tuning_grid(study.tuning)
    told = tuple(list_disagreements(study.tuning, study.records))
    notes = (HOW_RATES_ARE_CHOSEN, *told)
    return [Chapter("How the rates were chosen", grids=(grid,), notes=notes)]


def _tell_command(study: Study, known: Experiment | None) -> str:
    smoke = " --smoke" if study.kind == "smoke" else ""
    if known is not None:
        tune = f"trainact {format_command(known, 'tune')}\n" if study.tuning is not None else ""
        return f"{tune}trainact {format_command(known)}{smoke}"
    return "trainact run RUN/recipe.toml    # RUN: the folder of any of the runs"
