"""Everything that a comparison leaves behind: data, pages and pictures in one folder."""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainact.lab.analysis.answers import Answers, answer
from trainact.lab.analysis.runs import Record
from trainact.lab.files import write_atomically
from trainact.lab.recipes.arms import name_arm
from trainact.lab.report.chapters import (
    ask_question,
    list_environments,
    list_pictures,
    write_chapters,
)
from trainact.lab.report.curves import draw_pictures
from trainact.lab.report.markdown import render_chapter
from trainact.lab.report.page import render_answers
from trainact.lab.report.tables import escape_markdown
from trainact.lab.report.wording import SMOKE, caution_about_time, give_verdicts

__all__ = ["Comparison", "render_data", "render_report", "write_comparison"]

FORMAT = 1


@dataclass(frozen=True)
class Comparison:
    """The answers, and the files that hold them."""

    answers: Answers
    folder: Path
    paths: tuple[Path, ...]


def write_comparison(
    records: Sequence[Record],
    folder: Path,
    command: str,
    jobs: int = 1,
    title: str = "TrAct against plain training",
) -> Comparison:
    """Write comparison.json, .md and .html and the pictures into a folder, each in one move.

    The same records give the same bytes. ``budgets.png`` needs two or more budgets; without them
    one from before is removed.

    Raises:
        TrActValueError: records that cannot be compared; then nothing is written.
        StorageError: the disk is full or the folder cannot be written.
    """
    answers = answer(records, jobs)
    held: dict[str, bytes] = {
        "comparison.json": render_data(answers, records, command).encode(),
        "comparison.md": render_report(title, answers, records, command).encode(),
        "comparison.html": render_answers(title, command, answers, records).encode(),
        **draw_pictures(answers, list_pictures(write_chapters(answers, records, command))),
    }
    for name, content in held.items():
        write_atomically(folder / name, content)
    if "budgets.png" not in held:
        (folder / "budgets.png").unlink(missing_ok=True)
    return Comparison(answers, folder, tuple(folder / name for name in held))


def render_data(answers: Answers, records: Sequence[Record], command: str) -> str:
    """Return every answer as JSON, with what the runs were made with."""
    verdicts = [{"budget": budget, "verdict": told} for budget, told in give_verdicts(answers)]
    data: dict[str, Any] = {
        "format": FORMAT,
        "kind": "comparison",
        "runs_are": answers.kind,
        "caution": SMOKE if answers.kind == "smoke" else None,
        "question": ask_question(answers, records),
        "command": command,
        "jobs": answers.jobs,
        "arms": {arm: name_arm(arm) for arm in answers.arms},
        "budgets": answers.budgets,
        "verdicts": verdicts,
        "missing": list(answers.missing),
        "about_time": caution_about_time(answers.jobs),
        "environments": list_environments(records),
    }
    for name in ("summaries", "differences", "speed_ups", "crossings"):
        data[name] = [dataclasses.asdict(item) for item in getattr(answers, name)]
    data["costs"] = [dataclasses.asdict(item) for item in answers.time_ratios]
    data["runs"] = [
        {
            "arm": run.arm,
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


def render_report(title: str, answers: Answers, records: Sequence[Record], command: str) -> str:
    """Return the Markdown page; its pictures lie beside it."""
    parts = [f"# {escape_markdown(title)}", escape_markdown(ask_question(answers, records))]
    if answers.kind == "smoke":
        parts.insert(1, f"# {SMOKE}")
    for chapter in write_chapters(answers, records, command):
        parts += render_chapter(chapter)
    return "\n\n".join(parts) + "\n"
