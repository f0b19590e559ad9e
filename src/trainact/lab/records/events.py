"""What a run tells while it goes on, and how that crosses from one process to another."""

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["Event", "Report", "read_event", "write_event"]


@dataclass(frozen=True)
class Event:
    """One piece of news.

    Attributes:
        kind: a step or an epoch is done, the run has ended or failed, or there is a word to say.
        epoch: epochs done, of ``epochs``.
        part: how much of the next one is done, from 0 to 1.
        loss: mean over the images of this epoch so far.
        accuracy: per cent of the test images, after an epoch, or what ``metric`` names instead.
        metric: what is told as ``accuracy``.
        seconds: that the epoch took, testing included.
        text: of a note or a failure.
        record: of the run that has ended.
    """

    kind: Literal["step", "epoch", "end", "note", "failed"]
    epoch: int = 0
    epochs: int = 0
    part: float = 0.0
    loss: float | None = None
    accuracy: float | None = None
    metric: str = "accuracy"
    seconds: float | None = None
    text: str = ""
    record: dict[str, Any] | None = None


Report = Callable[[Event], None]


def write_event(event: Event) -> str:
    """Return the event as one line."""
    return json.dumps(dataclasses.asdict(event))


def read_event(line: str) -> Event:
    """Return the event of a line."""
    return Event(**json.loads(line))
