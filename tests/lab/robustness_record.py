"""The figures of ``make test-thorough``, written where ``TRAINACT_ROBUSTNESS`` says."""

import json
import os
from pathlib import Path
from typing import Any

from trainact.lab.environment import describe_environment
from trainact.lab.files import write_atomically

THOROUGH = os.environ.get("TRAINACT_HYPOTHESIS") == "thorough"


def write_figures(name: str, rows: list[dict[str, Any]]) -> None:
    """Write rows of a campaign, with its environment; others of the same commit are kept.

    The first value of a row names it.
    """
    if not (THOROUGH and (folder := os.environ.get("TRAINACT_ROBUSTNESS"))):
        return
    path, environment = Path(folder) / f"{name}.json", describe_environment()
    before = json.loads(path.read_text()) if path.exists() else {"environment": {}}
    if before["environment"].get("commit") == environment["commit"]:
        new = [next(iter(row.values())) for row in rows]
        rows = [row for row in before["rows"] if next(iter(row.values())) not in new] + rows
    record = {"environment": environment, "rows": rows}
    write_atomically(path, f"{json.dumps(record, indent=1)}\n".encode())
