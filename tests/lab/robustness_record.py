"""The figures of ``make test-thorough``, written where ``TRAINACT_ROBUSTNESS`` says."""

import json
import os
from pathlib import Path
from typing import Any

from trainact.lab.environment import describe_environment
from trainact.lab.files import write_atomically

THOROUGH = os.environ.get("TRAINACT_HYPOTHESIS") == "thorough"


def write_figures(name: str, rows: list[dict[str, Any]]) -> None:
    """Write one record of a whole campaign, with its environment."""
    folder = os.environ.get("TRAINACT_ROBUSTNESS")
    if folder:
        record = {"environment": describe_environment(), "rows": rows}
        write_atomically(
            Path(folder) / f"{name}.json", f"{json.dumps(record, indent=1)}\n".encode()
        )
