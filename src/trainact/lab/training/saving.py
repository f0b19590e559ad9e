"""When a run is saved: from time to time, and before it stops because it is told to."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from accelerate.utils import gather_object

from trainact.errors import TrActError
from trainact.lab.records.checkpoint import save_checkpoint
from trainact.lab.training.interruption import Interruption
from trainact.lab.training.session import Session

__all__ = ["Saver"]


class Saver:
    """Saves a run; among ranks all of them call its methods, at the same steps.

    Args:
        session: the run.
        folder: of its checkpoints.
    """

    def __init__(self, session: Session, folder: Path) -> None:
        self.session, self.folder = session, folder
        self.interruption = Interruption()
        self.saved_at = time.monotonic()

    @contextlib.contextmanager
    def heed_signals(self) -> Iterator[None]:
        """Put Ctrl-C and SIGTERM off, while this is open, until the run is saved.

        Raises:
            RunInterrupted: one came, and has ended something that the run needs.
        """
        try:
            with self.interruption.heed():
                yield
        except TrActError:
            raise
        except Exception:
            if self.interruption.asked:
                self.interruption.stop()
            raise

    def save_in_time(self) -> float:
        """Save where the last time is long ago; return the seconds that it took.

        Raises:
            RunInterrupted: the run is to stop; it is saved.
        """
        session, started = self.session, time.monotonic()
        late = started - self.saved_at >= session.recipe.run.checkpoint_seconds
        late, stop = self._agree(late, self.interruption.asked)
        if late or stop:
            state = session.state()
            done = session.epoch * (session.batches.steps + 1) + session.step  # a test is a step
            if session.accelerator.is_main_process:
                save_checkpoint(self.folder, done, state)
            self.saved_at = time.monotonic()
        if stop:
            self.interruption.stop()
        return time.monotonic() - started

    def save_if_told_to_stop(self) -> None:
        """Save, and stop, where Ctrl-C or SIGTERM came; not among ranks, which would have to ask.

        Raises:
            RunInterrupted: the run is saved.
        """
        if self.interruption.asked and self.session.place.ranks == 1:
            self.save_in_time()

    def stop_if_told(self) -> None:
        """Let no other run begin where Ctrl-C or SIGTERM came while this one was ending.

        Raises:
            RunInterrupted: it did.
        """
        [stop] = self._agree(self.interruption.asked)
        if stop:
            self.interruption.stop()

    def _agree(self, *answers: bool) -> list[bool]:
        """Return for each question whether any rank says yes; all ranks must ask."""
        ranks = gather_object([answers]) if self.session.place.ranks > 1 else [answers]
        return [any(column) for column in zip(*ranks, strict=True)]
