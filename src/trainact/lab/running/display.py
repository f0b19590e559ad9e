"""Progress of runs on standard error: bars in a terminal, lines elsewhere."""

import contextlib
import sys
import threading
import time
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from trainact.lab.ranks import is_first_rank
from trainact.lab.records.events import Event
from trainact.lab.text import count, format_duration

__all__ = ["Bars", "Display", "Lines", "choose_display"]

NamesAndEpochs = Sequence[tuple[str, int]]


class Display:
    """Shows nothing; subclasses show the progress of runs. Several threads may call ``show``."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    @contextlib.contextmanager
    def open(self, runs: NamesAndEpochs) -> Iterator[None]:
        """Show runs, given as (name, epochs), while the context is open."""
        self.clock = _Clock(runs)
        yield

    def show(self, name: str, event: Event) -> None:
        """Show an event of a run."""


def choose_display() -> Display:
    """Return bars in a terminal, lines elsewhere; all ranks but the first show nothing."""
    if not is_first_rank():
        return Display()
    return Bars() if sys.stderr.isatty() else Lines()


class _Clock:
    """Counts finished epochs and estimates the time left."""

    def __init__(self, runs: NamesAndEpochs) -> None:
        self.total = sum(epochs for _, epochs in runs)
        self.epochs = dict(runs)
        self.done: dict[str, float] = {}
        self.first: dict[str, float] = {}
        self.started = time.monotonic()

    def update(self, name: str, event: Event) -> None:
        """Record how far a run is; epochs of an earlier process do not count as time spent."""
        if event.kind in ("step", "epoch"):
            at = event.epoch + event.part
            self.first.setdefault(name, max(at - 1, 0) if event.kind == "epoch" else event.epoch)
            self.done[name] = at
        elif event.kind in ("end", "failed"):
            self.first.setdefault(name, float(self.epochs[name]))
            self.done[name] = float(self.epochs[name])

    @property
    def part(self) -> float:
        """Return the finished part of all epochs, from 0 to 1."""
        return sum(self.done.values()) / self.total

    def format_time_left(self) -> str:
        """Return the estimated time left, or an empty string before there is an estimate."""
        fresh = sum(at - self.first[name] for name, at in self.done.items())
        if fresh <= 0:
            return ""
        left = self.total - sum(self.done.values())
        return format_duration((time.monotonic() - self.started) / fresh * left) + " left"


class Lines(Display):
    """Prints one line per epoch, for logs."""

    def show(self, name: str, event: Event) -> None:
        """Print the event, unless it is a step."""
        with self.lock:
            self.clock.update(name, event)
            text = describe(event)
            if text:
                left = self.clock.format_time_left() if event.kind == "epoch" else ""
                shown = f"{name}: {text}" + (f", {left} for all runs" if left else "")
                print(shown, file=sys.stderr, flush=True)


def describe(event: Event) -> str:
    """Return the text of an event; empty for a step and for a run that ended well."""
    match event.kind:
        case "epoch":
            loss = "" if event.loss is None else f"loss {event.loss:.3f}, "
            return (
                f"epoch {event.epoch}/{event.epochs}, {loss}"
                f"{event.metric} {event.accuracy:.2f} %, {event.seconds:.1f} s"
            )
        case "end" if event.record is not None:
            return event.record["failure"] or ""
        case "failed":
            return f"FAILED: {event.text}"
        case "note":
            return event.text
    return ""


class Bars(Display):
    """Shows a bar for all runs together and one for each active run."""

    @contextlib.contextmanager
    def open(self, runs: NamesAndEpochs) -> Iterator[None]:
        """Show the bars while the context is open."""
        self.tasks: dict[str, TaskID] = {}
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[news]}", markup=False),
        )
        with super().open(runs), Progress(*columns, console=Console(stderr=True)) as self.bars:
            self.whole = self.bars.add_task(count(len(runs), "run"), total=1.0, news="")
            yield

    def show(self, name: str, event: Event) -> None:
        """Move the run's bar; remove it when the run has ended."""
        with self.lock:
            self.clock.update(name, event)
            if event.kind in ("step", "epoch"):
                if name not in self.tasks:
                    self.tasks[name] = self.bars.add_task(name, total=event.epochs, news="")
                news = f"epoch {event.epoch}/{event.epochs}"
                if event.loss is not None:
                    news += f"  loss {event.loss:.3f}"
                if event.accuracy is not None:
                    news += f"  {event.metric} {event.accuracy:.2f} %"
                self.bars.update(self.tasks[name], completed=event.epoch + event.part, news=news)
            elif event.kind in ("end", "failed") and name in self.tasks:
                self.bars.remove_task(self.tasks.pop(name))
            if event.kind in ("note", "failed", "end") and (text := describe(event)):
                self.bars.console.print(f"{name}: {text}", markup=False)
            left = self.clock.format_time_left()
            self.bars.update(self.whole, completed=self.clock.part, news=left)
