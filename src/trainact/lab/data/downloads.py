"""Downloads: sources that do not answer, and archives that are unpacked."""

import queue
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainact.lab.data.images import DataError

__all__ = ["ANSWER_SECONDS", "describe_error", "find_problem", "unpack"]

ANSWER_SECONDS = 10.0
"""A source that does not answer for so long is given up."""


def find_problem(request: Callable[[], Any]) -> str:
    """Return why a source does not answer; an empty string if it does.

    The request has its own thread, because some of its parts, such as looking up a name, have no
    time limit.
    """
    answer: queue.SimpleQueue[str] = queue.SimpleQueue()

    def ask() -> None:
        try:
            request()
        except Exception as error:  # raised by many libraries
            answer.put(describe_error(error))
        else:
            answer.put("")

    threading.Thread(target=ask, daemon=True).start()
    try:
        return answer.get(timeout=ANSWER_SECONDS)
    except queue.Empty:
        return f"no answer within {ANSWER_SECONDS:g} s"


def describe_error(error: Exception) -> str:
    """Return the kind and the text of an error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def unpack(archive: Path, folder: Path) -> None:
    """Unpack an archive; files that would lie outside ``folder`` are refused.

    Raises:
        DataError: the archive is damaged, or reaches outside.
    """
    try:
        with tarfile.open(archive) as opened:
            opened.extractall(folder, filter="data")
    except (tarfile.TarError, OSError, EOFError) as error:
        raise DataError(f"the archive {archive.name} is damaged ({error})") from error
