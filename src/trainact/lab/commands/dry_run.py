"""The option ``--dry-run``: runs are listed, not done."""

import sys
from collections.abc import Sequence
from pathlib import Path

from trainact.lab.cost.estimates import estimate_runs, read_throughputs
from trainact.lab.recipes.own_loops import has_own_loop
from trainact.lab.records.record import read_failure
from trainact.lab.running.plan import PlannedRun
from trainact.lab.text import count, format_duration

__all__ = ["DRY_RUN", "list_runs"]

DRY_RUN = "list the runs, and the data and weights that are missing"
KNOWN = ("lab:", "timm:", "torchvision:")
"""Networks whose work is estimated; those of users are not built for a list."""


def list_runs(runs: Sequence[PlannedRun], roots: Sequence[Path] = ()) -> None:
    """Print each run with its state and folder; what is missing goes to standard error.

    A run that is found in another experiment below one of ``roots`` has the folder that it will be
    taken from.
    """
    from trainact.lab.running.finished import find_copies
    from trainact.lab.running.missing import list_missing

    left = []
    for run in runs:
        path = run.folder.path
        state = "failed" if read_failure(path) else "to do"
        if run.folder.record_path.exists():
            state = "done"
        elif (copy := next(find_copies(run, roots), None)) is not None:
            state, path = "found", copy
        else:
            left.append(run.recipe)
        print(f"{state:6} {run.name}  {path}")
    read_here = [recipe for recipe in left if not has_own_loop(recipe)]
    notes = [f"missing: {text}" for text in list_missing(read_here)]
    if left and all(recipe.model.name.startswith(KNOWN) for recipe in left):
        cost = estimate_runs(left)
        suited = next((t for t in read_throughputs() if cost.suits(t)), None)
        if suited is not None and cost.total is not None:
            time = format_duration(suited.estimate_seconds(cost.total))
            notes.append(f"to do: {count(cost.new, 'run')}, about {time} on one {suited.kind}")
    for text in notes:
        print(text, file=sys.stderr)
