"""Folders of results as runs leave them, from records that are made up."""

import json
from pathlib import Path

from comparison_records import make_study

from trainact.lab.record import seal

PAPER_ARMS = ("plain", "tract-0.05", "tract-0.1", "tract-0.2")


def write_record(experiment: Path, record: dict) -> Path:
    """Write a record, sealed, where its run would have; return its folder."""
    kind = "smoke" if record["kind"] == "smoke" else "runs"
    name = f"{record['arm']}-{record['budget']}ep-seed{record['seed']}-{record['recipe_id']}"
    folder = experiment / kind / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "record.json").write_text(json.dumps({**record, "seal": seal(record)}))
    return folder


def write_study(experiment: Path, **options) -> list[dict]:
    """Write the records of a whole comparison."""
    records = make_study(**options)
    for record in records:
        write_record(experiment, record)
    return records


def write_tuning(experiment: Path, chosen=0.08, budgets=(2, 4)) -> dict:
    """Write what ``trainact tune`` would have."""
    tried = [
        {
            "budget": budget,
            "field": "optimizer.lr",
            "value": rate,
            "with": {},
            "accuracy": None if rate == 0.16 else 60.0 - 100 * abs(rate - chosen),
            "seeds": [0],
        }
        for budget in budgets
        for rate in (0.02, 0.04, 0.08, 0.16)
    ]
    tuning = {
        "experiment": experiment.name,
        "held_out": 5000,
        "chosen": {str(budget): {"optimizer.lr": chosen} for budget in budgets},
        "tried": tried,
        "environment": {},
    }
    (experiment / "tuning").mkdir(parents=True, exist_ok=True)
    (experiment / "tuning" / "tuning.json").write_text(json.dumps(tuning))
    return tuning
