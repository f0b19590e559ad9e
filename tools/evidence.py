"""Fill ``docs/evidence.md`` from the records that are committed under ``results/``.

The page has a marked place for each recipe of our own. It shows the recipe's arms, TrAct and
whitened starts; the other arms of the trial of first layers are on ``docs/rivals.md``.
"""

import dataclasses
import hashlib
from pathlib import Path

from PIL import Image

from trainact.errors import TrActValueError
from trainact.lab.analysis.studies import Study, find_studies
from trainact.lab.files import write_atomically
from trainact.lab.recipes.arms import arm_of_recipe
from trainact.lab.recipes.experiment import find_experiment, find_experiments
from trainact.lab.records.results import list_record_files
from trainact.lab.report.chapters import ChapterId, list_pictures
from trainact.lab.report.curves import draw_pictures
from trainact.lab.report.experiment_page import ExperimentPage, count_planned, make_page
from trainact.lab.report.experiments_report import list_overview, make_overview_grid
from trainact.lab.report.grid import Grid, escape_markdown, render_markdown
from trainact.lab.report.render import render_markdown_chapter

__all__ = [
    "FAMILIES",
    "NO_RECORD",
    "Evidence",
    "draw_evidence",
    "hash_records",
    "is_current",
    "list_stale_pictures",
    "read_evidence",
    "write_evidence",
]

FAMILIES = (
    *("cifar10-speed", "cifar10-speed93", "cifar10-speed-vit", "cifar10-speed-muon"),
    *("cifar10-cpu", "imagenette-cpu"),
)
"""Recipes and families of recipes, in the order of the page."""
NO_RECORD = "No records yet."
STARTS = ("eigen", "eigen+tract-0.1", "eigen+frozen")
"""Arms that the page shows of every recipe, beside the recipe's own."""
OMITTED = {ChapterId.PAPER, ChapterId.CROSSINGS, ChapterId.RUNS, ChapterId.TIME}
"""Chapters that the page does not have; the runs shared the machine, so their times mean little."""
Evidence = dict[str, ExperimentPage | None]
"""By recipe; None if it has no records yet."""


def read_evidence(results: Path) -> Evidence:
    """Return the page of each recipe, from the records below a folder.

    Raises:
        TrActValueError: a record is damaged, or the records of a recipe cannot be compared.
    """
    evidence: Evidence = {
        experiment.name: None for family in FAMILIES for experiment in find_experiments(family)
    }
    folders = [folder for name in evidence for folder in results.rglob(name) if folder.is_dir()]
    if not list_record_files(folders):
        return evidence
    studies, damages = find_studies(folders)
    if damages:
        raise TrActValueError(damages[0].reason)
    for study in studies:
        if study.name in evidence and study.kind == "full" and study.records:
            page = make_page(_select_arms(study))
            if page.problem:
                raise TrActValueError(page.problem)
            evidence[study.name] = page
    return evidence


def _select_arms(study: Study) -> Study:
    """Return a study without the records of arms that belong to the trial of first layers alone."""
    shown = {*STARTS, *(arm.name for arm in find_experiment(study.name).arms)}
    records = [
        record
        for record in study.records
        if record["arm"] in shown
        or arm_of_recipe(record["arm"], record["recipe"]).kind in ("tract", "lr")
    ]
    tunings = [tuning for tuning in study.arm_tunings if tuning["arm"] in shown]
    return dataclasses.replace(study, records=records, arm_tunings=tunings)


def write_evidence(evidence: Evidence) -> dict[str, str]:
    """Return the text of each marked place, by its name."""
    pages = [page for page in evidence.values() if page is not None]
    places = {
        "evidence-recipes": _render_recipes(evidence),
        "evidence-overview": (
            render_markdown(make_overview_grid(list_overview(pages))) if pages else NO_RECORD
        ),
    }
    for name, page in evidence.items():
        places[f"evidence-{name}"] = NO_RECORD if page is None else _render_page(page)
    return places


def draw_evidence(evidence: Evidence, folder: Path) -> None:
    """Write the pictures, each with the hash of its records as metadata."""
    for name, page in evidence.items():
        if page is not None and page.answers is not None:
            drawn = draw_pictures(page.answers, list_pictures(page.chapters), hash_records(page))
            for file, content in drawn.items():
                write_atomically(folder / f"{name}-{file}", content)


def list_stale_pictures(evidence: Evidence, folder: Path) -> list[str]:
    """Return the pictures that are missing or were drawn from other records."""
    stale = []
    for name, page in evidence.items():
        if page is None or page.answers is None:
            continue
        for picture in sorted(list_pictures(page.chapters)):
            path = folder / f"{name}-{picture.file}"
            if not is_current(path, hash_records(page)):
                stale.append(path.name)
    return stale


def _render_recipes(evidence: Evidence) -> str:
    """Return the recipes of the page and how many of their runs are done."""
    rows = []
    for name, page in evidence.items():
        experiment = find_experiment(name)
        records = page.study.records if page else ()
        done, planned = count_planned(experiment, records)
        budgets = " and ".join(map(str, experiment.budgets))
        counts = (f"{done} of {planned}", str(len(records) - done))
        rows.append((f"`{name}`", experiment.title, budgets, *counts))
    head = ("recipe", "content", "epochs", "runs done", "other runs")
    return render_markdown(Grid("", head, tuple(rows), text_columns=3))


def _render_page(page: ExperimentPage) -> str:
    blocks = [*map(escape_markdown, page.description)]
    for chapter in page.chapters:
        if chapter.id not in OMITTED:
            blocks += render_markdown_chapter(chapter, 3, f"pictures/{page.study.name}-")
    return "\n\n".join(blocks)


def hash_records(page: ExperimentPage) -> str:
    """Return a hash of all records of an experiment."""
    seals = sorted(str(record["seal"]) for record in page.study.records)
    return hashlib.sha256(" ".join(seals).encode()).hexdigest()


def is_current(path: Path, source: str) -> bool:
    """Return whether a picture exists and was drawn from this source."""
    if not path.exists():
        return False
    with Image.open(path) as image:
        return image.info.get("Source") == source
