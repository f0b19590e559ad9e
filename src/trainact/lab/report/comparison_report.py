"""The files of one comparison: JSON, Markdown, HTML and pictures in one folder."""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainact.lab.analysis.answers import Answers, answer
from trainact.lab.files import write_atomically
from trainact.lab.recipes.arms import Arm
from trainact.lab.records.record import Record, list_environments
from trainact.lab.report.chapters import Picture, describe_comparison, list_pictures, make_chapters
from trainact.lab.report.curves import draw_pictures
from trainact.lab.report.grid import escape_markdown
from trainact.lab.report.render import (
    render_html_chapter,
    render_html_document,
    render_markdown_chapter,
)
from trainact.lab.report.wording import SMOKE_WARNING, describe_results, describe_timing

__all__ = ["Comparison", "write_comparison"]

FORMAT = 1


@dataclass(frozen=True)
class Comparison:
    """The statistics of a comparison and the files that hold them."""

    answers: Answers
    folder: Path
    paths: tuple[Path, ...]


def write_comparison(
    records: Sequence[Record],
    folder: Path,
    command: str,
    jobs: int = 1,
    title: str = "TrAct compared with plain training",
) -> Comparison:
    """Write comparison.json, .md and .html and the pictures, each atomically.

    The same records give the same bytes. ``budgets.png`` needs two or more budgets; with fewer, an
    old one is removed. ``command`` reproduces the comparison; ``jobs`` runs shared the machine (0
    if unknown).

    Raises:
        TrActValueError: the records cannot be compared; nothing is written then.
        StorageError: the disk is full or the folder is not writable.
    """
    answers = answer(records, jobs)
    smoke = answers.kind == "smoke"
    description = describe_comparison(answers, records)
    chapters = make_chapters(answers, records, command)
    parts = [render_html_chapter(chapter, answers) for chapter in chapters]
    blocks = [f"# {escape_markdown(title)}", *([f"# {SMOKE_WARNING}"] if smoke else [])]
    blocks.append(escape_markdown(description))
    for chapter in chapters:
        blocks += render_markdown_chapter(chapter)
    files: dict[str, bytes] = {
        "comparison.json": _render_json(answers, records, command).encode(),
        "comparison.md": ("\n\n".join(blocks) + "\n").encode(),
        "comparison.html": render_html_document(title, description, parts, smoke=smoke).encode(),
        **draw_pictures(answers, list_pictures(chapters)),
    }
    for name, content in files.items():
        write_atomically(folder / name, content)
    for picture in Picture:
        if picture.file not in files:  # left by an earlier comparison
            (folder / picture.file).unlink(missing_ok=True)
    return Comparison(answers, folder, tuple(folder / name for name in files))


def _render_json(answers: Answers, records: Sequence[Record], command: str) -> str:
    data: dict[str, Any] = {
        "format": FORMAT,
        "kind": "comparison",
        "runs_are": answers.kind,
        "caution": SMOKE_WARNING if answers.kind == "smoke" else None,
        "question": describe_comparison(answers, records),
        "command": command,
        "jobs": answers.jobs,
        "arms": {arm.name: arm.title for arm in answers.arms},
        "budgets": answers.budgets,
        "verdicts": [
            {"budget": budget, "verdict": text} for budget, text in describe_results(answers)
        ],
        "missing": list(answers.missing),
        "about_time": describe_timing(answers.jobs),
        "environments": _list_environments(records),
    }
    for name in ("summaries", "differences", "speed_ups", "crossings"):
        data[name] = [_to_dict(item) for item in getattr(answers, name)]
    data["costs"] = [_to_dict(item) for item in answers.time_ratios]
    data["runs"] = [
        {
            "arm": run.arm.name,
            "budget": run.budget,
            "seed": run.seed,
            "accuracy": run.accuracy,
            "status": "complete" if run.complete else "diverged",
            "failure": run.failure,
            "seconds": run.seconds,
            "sessions": run.sessions,
            "recipe_id": run.recipe_id,
        }
        for run in answers.runs
    ]
    return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _to_dict(item: Any) -> dict[str, Any]:
    """Return the fields of a statistic, with the names of its arms."""
    values = {field.name: getattr(item, field.name) for field in dataclasses.fields(item)}
    names = {key: value.name for key, value in values.items() if isinstance(value, Arm)}
    return dataclasses.asdict(item) | names


def _list_environments(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return the distinct environments of the records, ignoring the date."""
    distinct: list[dict[str, Any]] = []
    for environment in (dict(row) for record in records for row in list_environments(record)):
        if not any({**environment, "date": None} == {**one, "date": None} for one in distinct):
            distinct.append(environment)
    return distinct
