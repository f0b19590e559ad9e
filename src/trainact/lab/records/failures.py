"""The reason why a run failed, kept in its folder until the run ends.

A failed run has no record, so the same command tries it again.
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
    """Write the reason, one sentence, into the run's folder if possible; return the file's path."""
    before = read_failure(folder)
    content = {
        "failure": failure,
        "attempts": 1 + (before["attempts"] if before else 0),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "host": platform.node(),
        "trace": trace.splitlines(),
    }
    with contextlib.suppress(StorageError):  # the failure is also printed
        write_atomically(folder / FILE, json.dumps(content, indent=1).encode())
    return folder / FILE


def read_failure(folder: Path) -> dict[str, Any] | None:
    """Return what the last ``write_failure`` wrote, or None."""
    try:
        content = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) and "attempts" in content else None


def clear_failure(folder: Path) -> None:
    """Remove the reason of an earlier failure, because the run has ended."""
    with contextlib.suppress(OSError):
        (folder / FILE).unlink(missing_ok=True)
