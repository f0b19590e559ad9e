"""Events of a running run: progress, messages and its end, as objects and as lines of JSON."""

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["Event", "EventHandler", "read_event", "write_event"]


@dataclass(frozen=True)
class Event:
    """A step or an epoch is done, the run has ended or failed, or there is a message."""

    kind: Literal["step", "epoch", "end", "note", "failed"]
    epoch: int = 0  # finished epochs, of ``epochs``
    epochs: int = 0
    part: float = 0.0  # finished part of the current epoch, from 0 to 1
    loss: float | None = None  # mean over the images of this epoch so far
    accuracy: float | None = None  # ``metric`` on the test images after an epoch, in per cent
    metric: str = "accuracy"
    seconds: float | None = None  # duration of the epoch, including testing
    text: str = ""  # of a message or a failure
    record: dict[str, Any] | None = None  # of a run that has ended


EventHandler = Callable[[Event], None]


def write_event(event: Event) -> str:
    """Return the event as one line of JSON."""
    return json.dumps(dataclasses.asdict(event))


def read_event(line: str) -> Event:
    """Return the event that ``write_event`` wrote."""
    return Event(**json.loads(line))
