"""Checkpoints of a run: saved at intervals and before a signal stops it, loaded when it resumes."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather_object
from torch import Tensor

from trainact.errors import TrActError
from trainact.lab.records.checkpoint import load_checkpoint, save_checkpoint
from trainact.lab.training.interruption import Interruption
from trainact.lab.training.progress import TOTALS, Progress
from trainact.lab.training.session import Session

__all__ = ["Saver", "read_checkpoint"]


def read_checkpoint(
    folder: Path, accelerator: Accelerator, note: Callable[[str], None]
) -> dict[str, Any] | None:
    """Return the newest checkpoint in a run's folder on every rank; None if there is none."""
    state = load_checkpoint(folder, note) if accelerator.is_main_process else None
    if accelerator.num_processes > 1:
        [state] = broadcast_object_list([state])
    return state


class Saver:
    """Saves a run in its folder and loads it. All ranks call its methods, after the same steps."""

    def __init__(self, session: Session, progress: Progress, folder: Path) -> None:
        self.session, self.progress, self.folder = session, progress, folder
        self.accelerator = session.accelerator
        self.interruption = Interruption()
        self.saved_at = time.monotonic()

    @contextlib.contextmanager
    def defer_signals(self, note: Callable[[str], None]) -> Iterator[None]:
        """Defer Ctrl-C and SIGTERM, while the context is open, until the run is saved.

        ``note`` receives the error that came after a signal, if one did.

        Raises:
            RunInterrupted: the signal also ended a process that the run needs.
        """
        try:
            with self.interruption.defer():
                yield
        except TrActError:
            raise
        except Exception as error:
            if self.interruption.requested:
                note(f"an error came after the signal: {type(error).__name__}: {error}")
                self.interruption.stop()
            raise

    def load(self, state: dict[str, Any]) -> None:
        """Continue from what `read_checkpoint` returned."""
        self.session.load(state)
        self.progress.load({**state, "totals": self._take_totals(state["totals"])})

    def save_if_due(self) -> float:
        """Save if the last checkpoint is old, or if a signal came; return the seconds it took.

        Raises:
            RunInterrupted: a signal came; the run is saved.
        """
        session, progress, started = self.session, self.progress, time.monotonic()
        due = started - self.saved_at >= session.recipe.run.checkpoint_seconds
        due, stop = self._any_rank(due, self.interruption.requested)
        if due or stop:
            state = {**session.state(), **progress.state(), "totals": self._gather_totals()}
            number = progress.epoch * (session.batches.steps + 1) + progress.step  # + 1: evaluation
            if self.accelerator.is_main_process:
                save_checkpoint(self.folder, number, state)
            self.saved_at = time.monotonic()
        if stop:
            self.interruption.stop()
        return time.monotonic() - started

    def save_if_interrupted(self) -> None:
        """Save and stop if a signal came; several ranks would have to communicate, and do not.

        Raises:
            RunInterrupted: a signal came; the run is saved.
        """
        if self.interruption.requested and self.accelerator.num_processes == 1:
            self.save_if_due()

    def stop_if_interrupted(self) -> None:
        """Stop, before another run starts, if a signal came while this run ended.

        Raises:
            RunInterrupted: a signal came.
        """
        [stop] = self._any_rank(self.interruption.requested)
        if stop:
            self.interruption.stop()

    def _gather_totals(self) -> Tensor:
        """Return the totals of every rank, [ranks, 6]; each has those of its own images."""
        totals = self.progress.totals
        if self.accelerator.num_processes == 1:
            return totals[None]
        rows = gather_object([totals.tolist()])
        return torch.tensor(rows, dtype=totals.dtype)

    def _take_totals(self, totals: Tensor) -> Tensor:
        """Return this rank's totals; on another number of ranks, the first has all of them."""
        rows = totals.reshape(-1, len(TOTALS))  # older checkpoints hold one row without a rank
        if len(rows) == self.accelerator.num_processes:
            return rows[self.accelerator.process_index]
        return rows.sum(0) if self.accelerator.is_main_process else torch.zeros_like(rows[0])

    def _any_rank(self, *flags: bool) -> list[bool]:
        """Return for each flag whether it is set on any rank."""
        ranks = gather_object([flags]) if self.accelerator.num_processes > 1 else [flags]
        return [any(column) for column in zip(*ranks, strict=True)]
