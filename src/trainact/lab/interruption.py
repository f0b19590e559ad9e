"""Ctrl-C and SIGTERM, which are put off until the run is saved.

A scheduler that takes a job's machine away sends SIGTERM and waits; torchrun hands either on to all
ranks and waits for half a minute.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from trainact.lab.settings import count_ranks, is_first_rank

__all__ = ["Interruption", "RunInterrupted"]

STDERR = 2
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class RunInterrupted(KeyboardInterrupt):
    """A run was stopped after it was saved; ``code`` is what the process should end with."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.code = 128 + number


class Interruption:
    """Notes that a run is to stop; the run looks at ``asked`` where it can be saved.

    A second Ctrl-C stops at once, except among ranks, where torchrun sends it too.
    """

    def __init__(self) -> None:
        self.asked = False
        self.number = int(signal.SIGINT)
        self.process = os.getpid()

    @contextlib.contextmanager
    def heed(self) -> Iterator[None]:
        """Put signals off while this is open; only a main thread can, others do without."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._note) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def stop(self) -> None:
        """Stop, now that everything is saved.

        Raises:
            RunInterrupted: always.
        """
        raise RunInterrupted(self.number)

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        if os.getpid() != self.process:  # a worker that reads images: its run tells it when to end
            return
        if self.asked:
            if number == signal.SIGINT and count_ranks() == 1:
                raise KeyboardInterrupt
            return
        self.asked, self.number = True, number
        if is_first_rank():
            told = "stopping once the run is saved; a second Ctrl-C stops at once\n"
            os.write(STDERR, told.encode())  # a display may be in the middle of a line
