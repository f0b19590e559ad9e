"""The figures of ``make test-thorough``, written where ``TRAINACT_ROBUSTNESS`` says."""

import json
import os
from pathlib import Path
from typing import Any

from trainact.lab.environment import describe_environment
from trainact.lab.files import write_atomically

THOROUGH = os.environ.get("TRAINACT_HYPOTHESIS") == "thorough"


def write_figures(name: str, rows: list[dict[str, Any]]) -> None:
    """Write rows of a campaign, each with its commit, and the environment; other rows are kept.

    The first value of a row names it.
    """
    if not (THOROUGH and (folder := os.environ.get("TRAINACT_ROBUSTNESS"))):
        return
    path, environment = Path(folder) / f"{name}.json", describe_environment()
    before = json.loads(path.read_text())["rows"] if path.exists() else []
    new = {next(iter(row.values())): row | {"commit": environment["commit"]} for row in rows}
    kept = [row for row in before if next(iter(row.values())) not in new]
    record = {"environment": environment, "rows": [*kept, *new.values()]}
    write_atomically(path, f"{json.dumps(record, indent=1)}\n".encode())
