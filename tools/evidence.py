"""The project's own experiments, from the records that are committed under ``results/``.

``docs/evidence.md`` has a marked place for each of the recipes ``cifar10-cpu-*`` and
``imagenette-cpu-*``. What stands there is made from records alone, and says so where there is none
yet.
"""

import dataclasses
import hashlib
from pathlib import Path

from PIL import Image

from trainact.errors import TrActValueError
from trainact.lab.analysis.studies import find_studies
from trainact.lab.files import write_atomically
from trainact.lab.recipes.arms import BASELINE, name_arm
from trainact.lab.recipes.experiment import find_experiments
from trainact.lab.records.results import list_record_files
from trainact.lab.report.chapters import list_pictures
from trainact.lab.report.curves import draw_pictures
from trainact.lab.report.markdown import render_chapter
from trainact.lab.report.report_page import make_overview
from trainact.lab.report.study_chapters import StudyPage, write_study
from trainact.lab.report.tables import Grid, escape_markdown, render_markdown

__all__ = [
    "FAMILIES",
    "Evidence",
    "draw_evidence",
    "list_stale_pictures",
    "read_evidence",
    "write_evidence",
]

FAMILIES = ("cifar10-cpu", "imagenette-cpu")
NO_RECORD = "No record yet."
RECOMMENDED = name_arm("tract-0.1")
CHAPTERS = (
    "Verdict",
    "Runs that did not end well",
    "Accuracy at the end",
    "Curves",
    "How much sooner",
    "What it costs",
    "How the rates were chosen",
    "Made with",
    "To repeat it",
)
Evidence = dict[str, StudyPage | None]
"""By the name of the recipe; None where there is no record of it yet."""


def read_evidence(results: Path) -> Evidence:
    """Return what the committed records say of each recipe of the families.

    Raises:
        TrActValueError: a record is damaged, or records of one recipe do not belong together.
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
            page = write_study(study)
            if page.problem:
                raise TrActValueError(page.problem)
            evidence[study.name] = page
    return evidence


def write_evidence(evidence: Evidence) -> dict[str, str]:
    """Return what stands in each marked place, by its name."""
    overview = make_overview([page for page in evidence.values() if page is not None])
    places = {
        "evidence-overview": render_markdown(overview) if overview.rows else NO_RECORD,
        "evidence-summary": render_markdown(_shorten(overview)) if overview.rows else NO_RECORD,
    }
    for name, page in evidence.items():
        places[f"evidence-{name}"] = NO_RECORD if page is None else _write(page)
    return places


def draw_evidence(evidence: Evidence, folder: Path) -> None:
    """Write the pictures; each holds the digest of the records that it was drawn from."""
    for name, page in evidence.items():
        if page is not None and page.answers is not None:
            names = list_pictures(page.chapters)
            for picture, content in draw_pictures(page.answers, names, _digest(page)).items():
                write_atomically(folder / f"{name}-{picture}", content)


def list_stale_pictures(evidence: Evidence, folder: Path) -> list[str]:
    """Return the pictures that are not there, or were drawn from other records."""
    stale = []
    for name, page in evidence.items():
        if page is None or page.answers is None:
            continue
        for picture in sorted(list_pictures(page.chapters)):
            path = folder / f"{name}-{picture}.png"
            if not path.exists() or _read_source(path) != _digest(page):
                stale.append(path.name)
    return stale


def _shorten(overview: Grid) -> Grid:
    """Return the rows of the recommended λ and of the other rate, at the largest budget."""
    last = {row[0]: row[2] for row in overview.rows if row[1] == RECOMMENDED}
    rows = [
        row
        for row in overview.rows
        if (row[1] == RECOMMENDED or row[1].startswith(BASELINE)) and row[2] == last.get(row[0])
    ]
    return dataclasses.replace(overview, rows=tuple(rows))


def _write(page: StudyPage) -> str:
    parts = [*map(escape_markdown, page.question)]
    for chapter in page.chapters:
        if chapter.title in CHAPTERS:
            parts += render_chapter(chapter, 3, f"pictures/{page.study.name}-")
    return "\n\n".join(parts)


def _digest(page: StudyPage) -> str:
    seals = sorted(str(record["seal"]) for record in page.study.records)
    return hashlib.sha256(" ".join(seals).encode()).hexdigest()


def _read_source(path: Path) -> str | None:
    with Image.open(path) as image:
        return image.info.get("Source")
