"""Folders of results with made-up records."""

import json
from functools import cache
from pathlib import Path

from comparison_records import make_study
from trainact.lab.data.published import count_images
from trainact.lab.recipes.experiment import find_experiment
from trainact.lab.recipes.recipe import recipe_to_dict
from trainact.lab.records.record import seal
from trainact.lab.records.results import find_runs

PAPER_ARMS = ("plain", "tract-0.05", "tract-0.1", "tract-0.2")


def find_records(root: Path) -> list[dict]:
    """Return the records of all ended runs below a folder."""
    runs = find_runs([root])
    assert not any(run.damage for run in runs)
    return [run.record for run in runs if run.record]


def write_record(experiment: Path, record: dict) -> Path:
    """Write a sealed record where its run would have written it; return the folder."""
    kind = "smoke" if record["kind"] == "smoke" else "runs"
    name = f"{record['arm']}-{record['budget']}ep-seed{record['seed']}-{record['recipe_id']}"
    folder = experiment / kind / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "record.json").write_text(json.dumps({**record, "seal": seal(record)}))
    return folder


def make_faithful(name: str, record: dict) -> dict:
    """Return the record with the recipe of the named experiment for its arm and budget."""
    key = record["model"]["name"], record["arm"], record["budget"]
    runs, several = _plan(name)
    run = next(
        run
        for run in runs
        if (run.model.name if several else key[0], run.run.arm, run.schedule.epochs) == key
    )
    model = record["model"] | {"name": run.model.name}
    counts = count_images(run.data)
    images = {"train_images": counts.train, "test_images": counts.test}
    data = record["data"] | images
    return record | {"recipe": recipe_to_dict(run), "model": model, "data": data}


@cache
def _plan(name):
    """Return the runs of a recipe, and whether it has several networks."""
    experiment = find_experiment(name)
    return experiment.plan(), len(experiment.split()) > 1


def write_study(experiment: Path, **options) -> list[dict]:
    """Write the records of a whole comparison."""
    records = make_study(**options)
    for record in records:
        write_record(experiment, record)
    return records


def write_tuning(
    experiment: Path, chosen=0.08, budgets=(2, 4), rates=(0.02, 0.04, 0.08, 0.16)
) -> dict:
    """Write the file that ``trainact tune`` writes."""
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
        for rate in rates
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


def find_chapter(page, id):
    """Return the chapter of an experiment's page with this id."""
    (chapter,) = [chapter for chapter in page.chapters if chapter.id is id]
    return chapter
