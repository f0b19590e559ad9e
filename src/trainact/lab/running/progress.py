"""How runs come along: bars on a terminal, lines elsewhere."""

import contextlib
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from trainact.lab.records.events import Event

__all__ = ["Bars", "Display", "Lines", "Silence", "choose_display"]

Work = Sequence[tuple[str, int]]


class Display(Protocol):
    """Shows runs; may be told of several at once, from several threads."""

    def open(self, runs: Work) -> contextlib.AbstractContextManager[None]:
        """Show runs, given as (name, epochs), as long as the context is open."""
        ...

    def tell(self, name: str, event: Event) -> None:
        """Show news of a run."""
        ...


def choose_display() -> Display:
    """Return bars where standard error is a terminal, lines where it is not."""
    return Bars() if sys.stderr.isatty() else Lines()


class _Clock:
    """How much is done, and how long the rest takes at the pace so far."""

    def __init__(self, runs: Work) -> None:
        self.total = sum(epochs for _, epochs in runs)
        self.epochs = dict(runs)
        self.done: dict[str, float] = {}
        self.began: dict[str, float] = {}
        self.started = time.monotonic()

    def note(self, name: str, event: Event) -> None:
        """Take in how far a run has come; what it brought along from earlier took no time now."""
        if event.kind in ("step", "epoch"):
            at = event.epoch + event.part
            self.began.setdefault(name, max(at - 1, 0) if event.kind == "epoch" else event.epoch)
            self.done[name] = at
        elif event.kind in ("end", "failed"):
            self.began.setdefault(name, float(self.epochs[name]))
            self.done[name] = float(self.epochs[name])

    @property
    def part(self) -> float:
        """Return how much is done, from 0 to 1."""
        return sum(self.done.values()) / self.total

    def tell_left(self) -> str:
        """Return the time left, in words."""
        fresh = sum(at - self.began[name] for name, at in self.done.items())
        left = self.total - sum(self.done.values())
        if fresh <= 0:
            return ""
        return format_seconds((time.monotonic() - self.started) / fresh * left) + " left"


def format_seconds(seconds: float) -> str:
    """Return a duration as a person says it.

    >>> format_seconds(42), format_seconds(170), format_seconds(7300)
    ('42 s', '3 min', '2.0 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class Lines:
    """One line an epoch, for logs."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    @contextlib.contextmanager
    def open(self, runs: Work) -> Iterator[None]:
        """Begin to count."""
        self.clock = _Clock(runs)
        yield

    def tell(self, name: str, event: Event) -> None:
        """Print what is news."""
        with self.lock:
            self.clock.note(name, event)
            text = describe(event)
            if text:
                left = self.clock.tell_left() if event.kind == "epoch" else ""
                shown = f"{name}: {text}" + (f", {left} in all" if left else "")
                print(shown, file=sys.stderr, flush=True)


def describe(event: Event) -> str:
    """Return news in words; nothing for a step."""
    match event.kind:
        case "epoch":
            return (
                f"epoch {event.epoch}/{event.epochs}, loss {event.loss:.3f}, "
                f"{event.metric} {event.accuracy:.2f} %, {event.seconds:.1f} s"
            )
        case "end" if event.record is not None:
            return event.record["failure"] or ""
        case "failed":
            return f"FAILED: {event.text}"
        case "note":
            return event.text
    return ""


class Bars:
    """A bar for everything and one for each run that goes on."""

    def __init__(self) -> None:
        self.console = Console(stderr=True)
        self.lock = threading.Lock()

    @contextlib.contextmanager
    def open(self, runs: Work) -> Iterator[None]:
        """Show the bars."""
        self.clock = _Clock(runs)
        self.tasks: dict[str, TaskID] = {}
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[news]}"))
        with Progress(*columns, console=self.console) as self.bars:
            self.whole = self.bars.add_task(f"{len(runs)} runs", total=1.0, news="")
            yield

    def tell(self, name: str, event: Event) -> None:
        """Move the run's bar; remove it when the run has ended."""
        with self.lock:
            self.clock.note(name, event)
            if event.kind in ("step", "epoch"):
                if name not in self.tasks:
                    self.tasks[name] = self.bars.add_task(name, total=event.epochs, news="")
                news = f"epoch {event.epoch}/{event.epochs}  loss {event.loss:.3f}"
                if event.accuracy is not None:
                    news += f"  {event.metric} {event.accuracy:.2f} %"
                self.bars.update(self.tasks[name], completed=event.epoch + event.part, news=news)
            elif event.kind in ("end", "failed") and name in self.tasks:
                self.bars.remove_task(self.tasks.pop(name))
            if event.kind in ("note", "failed") or (event.kind == "end" and describe(event)):
                self.bars.console.print(f"{name}: {describe(event)}", markup=False)
            self.bars.update(self.whole, completed=self.clock.part, news=self.clock.tell_left())


class Silence:
    """Shows nothing: for ranks other than the first."""

    @contextlib.contextmanager
    def open(self, runs: Work) -> Iterator[None]:
        """Do nothing."""
        del runs
        yield

    def tell(self, name: str, event: Event) -> None:
        """Do nothing."""
        del name, event
