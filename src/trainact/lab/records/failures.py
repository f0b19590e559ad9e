"""Runs that failed: why, in a file of their folder, until the same run comes to its end.

A run that failed has no record, so the same command tries it again.
"""

import contextlib
import datetime
import json
import platform
from pathlib import Path
from typing import Any

from trainact.lab.files import StorageError, write_atomically

__all__ = ["clear_failure", "read_failure", "write_failure"]

FILE = "failure.json"


def write_failure(folder: Path, failure: str, trace: str = "") -> Path:
    """Write why a run failed into its folder; a folder that cannot be written is let be.

    Args:
        folder: the run's.
        failure: one sentence.
        trace: where it happened, as Python tells it.
    """
    before = read_failure(folder)
    content = {
        "failure": failure,
        "attempts": 1 + (before["attempts"] if before else 0),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "host": platform.node(),
        "trace": trace.splitlines(),
    }
    with contextlib.suppress(StorageError):  # it is told on the screen all the same
        write_atomically(folder / FILE, json.dumps(content, indent=1).encode())
    return folder / FILE


def read_failure(folder: Path) -> dict[str, Any] | None:
    """Return what was written when the run failed last, or None."""
    try:
        content = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) and "attempts" in content else None


def clear_failure(folder: Path) -> None:
    """Forget an earlier failure: the run has come to its end."""
    with contextlib.suppress(OSError):
        (folder / FILE).unlink(missing_ok=True)
