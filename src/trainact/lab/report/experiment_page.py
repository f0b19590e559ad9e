"""The content of a report's page on one experiment."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainact.errors import TrActValueError
from trainact.lab.analysis.answers import Answers, answer
from trainact.lab.analysis.studies import Study
from trainact.lab.recipes.arms import BASELINE
from trainact.lab.recipes.experiment import Experiment, find_experiment, list_experiments
from trainact.lab.recipes.parts import FIRST_LAYER_LR
from trainact.lab.records.record import Record
from trainact.lab.report.chapters import (
    BulletList,
    Chapter,
    ChapterId,
    Picture,
    describe_comparison,
    make_chapters,
)
from trainact.lab.report.paper_comparison import compare_with_paper
from trainact.lab.report.tables import make_tuning_grid
from trainact.lab.running.plan import format_command
from trainact.lab.text import count, count_epochs

__all__ = ["ExperimentPage", "count_planned", "make_page"]

TUNING_NOTE = (
    "Values were tried in plain training only, on training images held out for tuning. All arms "
    "use the learning rate that was best for plain training; the best multiplier of the first "
    "layer's rate is a separate arm. A value whose loss became NaN is never chosen."
)


ARM_TUNING_NOTE = (
    "Arms with an optimizer of their own for the first layer have the multiplier of its rate that "
    "was best in that arm; the general rate is the one for plain training."
)


@dataclass(frozen=True)
class ExperimentPage:
    """One experiment of a report."""

    study: Study
    title: str
    description: tuple[str, ...]  # what is compared, and notes on the recipe
    answers: Answers | None  # None if there are no records or they cannot be compared
    chapters: tuple[Chapter, ...]
    problem: str = ""  # why its records cannot be compared


def make_page(study: Study) -> ExperimentPage:
    """Return everything that a report says about one experiment."""
    experiment = find_experiment(study.name) if study.name in list_experiments() else None
    title = experiment.title if experiment else study.name
    if study.network:
        title = f"{title}: {study.network.rpartition(':')[2]}"
    about = _describe_experiment(experiment)
    incomplete, tuning = _list_incomplete(study), _describe_tuning(study)
    if not study.records:
        summary = Chapter(ChapterId.SUMMARY, ("No run has finished yet.",))
        return ExperimentPage(study, title, about, None, (summary, *incomplete, *tuning))
    try:
        against = experiment.against if experiment else None
        answers = answer(study.records, jobs=0, against=against)
    except TrActValueError as error:
        summary = Chapter(ChapterId.SUMMARY, ("These records cannot be compared.", str(error)))
        chapters = (summary, *incomplete, *tuning)
        return ExperimentPage(study, title, about, None, chapters, f"{study.name}: {error}")
    paper = compare_with_paper(study, answers)
    after = {
        ChapterId.SUMMARY: incomplete,
        ChapterId.ACCURACY: [paper] if paper is not None else [],
        ChapterId.TIME: tuning,
    }
    written: list[Chapter] = []
    for chapter in make_chapters(answers, study.records, _make_command(study, experiment)):
        if study.network:  # one of many: all their pictures would make the page too large
            kept = tuple(picture for picture in chapter.pictures if picture is Picture.ACCURACY)
            chapter = dataclasses.replace(chapter, pictures=kept)
        written += [chapter, *after.get(chapter.id, [])]
    progress = _describe_progress(study, experiment)
    description = (describe_comparison(answers, study.records), *about, *progress)
    return ExperimentPage(study, title, description, answers, tuple(written))


def _describe_experiment(experiment: Experiment | None) -> tuple[str, ...]:
    if experiment is None:
        return ()
    paper = experiment.paper
    place = f"{paper} of the paper. " if paper else "Not an experiment of the paper. "
    return ((place + experiment.note).strip(),)


def _describe_progress(study: Study, experiment: Experiment | None) -> tuple[str, ...]:
    """Return how many of the recipe's runs are done, if some are not."""
    if experiment is None or study.kind != "full":
        return ()
    done, planned = count_planned(experiment, study.records)
    text = f"{done} of the recipe's {count(planned, 'run')} are done."
    return (text,) if done < planned else ()


def count_planned(experiment: Experiment, records: Sequence[Record]) -> tuple[int, int]:
    """Return how many of a recipe's runs have a record, and how many it has."""
    plan = _list_planned(experiment)
    return len(plan & set(map(_identify, records))), len(plan)


def _list_planned(experiment: Experiment) -> set[tuple[str, int, int]]:
    """Return arm, budget and seed of each run of a recipe."""
    return {(run.run.arm, run.schedule.epochs, run.run.seed) for run in experiment.plan()}


def _identify(record: Record) -> tuple[str, int, int]:
    return record["arm"], record["budget"], record["seed"]


def _list_incomplete(study: Study) -> list[Chapter]:
    """Return a chapter on the runs that diverged or have no record, if there are any."""
    diverged = [
        f"{record['arm']}, {count_epochs(record['budget'])}, seed {record['seed']}: "
        f"{record['failure']}"
        for record in sorted(study.records, key=lambda r: (r["arm"], r["budget"], r["seed"]))
        if record["status"] == "diverged"
    ]
    lists = (
        BulletList("Diverged", tuple(diverged)),
        BulletList("Interrupted or still running", tuple(sorted(study.interrupted))),
    )
    kept = tuple(entry for entry in lists if entry.items)
    return [Chapter(ChapterId.INCOMPLETE, lists=kept)] if kept else []


def _describe_tuning(study: Study) -> list[Chapter]:
    tunings = [*([] if study.tuning is None else [study.tuning]), *study.arm_tunings]
    if not tunings:
        return []
    notes: list[str] = []
    if study.tuning is not None:
        notes += [TUNING_NOTE, *_list_untuned(study.tuning, study.records)]
    if study.arm_tunings:
        notes.append(ARM_TUNING_NOTE)
    grids = tuple(map(make_tuning_grid, tunings))
    return [Chapter(ChapterId.TUNING, grids=grids, notes=tuple(notes))]


def _list_untuned(tuning: Mapping[str, Any], records: Sequence[Record]) -> list[str]:
    """Return a sentence for each budget without tuning, and where plain lacks a chosen value."""
    budgets = sorted({r["budget"] for r in records} - {int(b) for b in tuning["chosen"]})
    sentences = [f"Nothing was tuned for runs of {count_epochs(budget)}." for budget in budgets]
    for budget, chosen in tuning["chosen"].items():
        plain = [r for r in records if (r["arm"], str(r["budget"])) == (BASELINE, budget)]
        for dotted, value in chosen.items():
            table, _, key = dotted.partition(".")
            others = {r["recipe"].get(table, {}).get(key) for r in plain} - {value}
            if dotted != FIRST_LAYER_LR and others:
                shown = ", ".join(map(str, sorted(others, key=str)))
                sentences.append(
                    f"The runs of {count_epochs(int(budget))} have {dotted} {shown}, not the "
                    f"chosen {value}."
                )
    return sentences


def _make_command(study: Study, experiment: Experiment | None) -> str:
    if experiment is None:
        return "trainact run RUN/recipe.toml    # RUN: the folder of any of the runs"
    smoke = " --smoke" if study.kind == "smoke" else ""
    tune = f"trainact {format_command(experiment, 'tune')}"
    tunings = [*([] if study.tuning is None else [study.tuning]), *study.arm_tunings]
    commands = [tune + _list_tuning_options(tuning, experiment) for tuning in tunings]
    run = f"trainact {format_command(experiment)}{smoke}"
    return "\n".join([*commands, run, *_list_further_runs(run, study, experiment)])


def _list_tuning_options(tuning: Mapping[str, Any], experiment: Experiment) -> str:
    """Return the options for the budgets and the arm that were tuned, if not the recipe's own."""
    budgets = sorted(map(int, tuning["chosen"]))
    epochs = f" --epochs {','.join(map(str, budgets))}"
    arm = f" --arms {tuning['arm']}" if "arm" in tuning else ""
    return ("" if budgets == sorted(experiment.budgets) else epochs) + arm


def _list_further_runs(run: str, study: Study, experiment: Experiment) -> list[str]:
    """Return the commands for the runs with arms, budgets or seeds beyond the recipe's."""
    planned = _list_planned(experiment)
    records = [record for record in study.records if _identify(record) not in planned]
    arms_of: dict[str, list[str]] = {}
    for arm in dict.fromkeys(record["arm"] for record in records):
        budgets, seeds = (
            ",".join(map(str, sorted({r[key] for r in records if r["arm"] == arm})))
            for key in ("budget", "seed")
        )
        arms_of.setdefault(f"--epochs {budgets} --seeds {seeds}", []).append(arm)
    return [f"{run} {options} --arms {','.join(arms)}" for options, arms in arms_of.items()]
