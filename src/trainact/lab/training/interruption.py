"""Ctrl-C and SIGTERM, deferred until the run is saved.

A scheduler sends SIGTERM some time before it takes the machine away. torchrun passes either signal
on to all ranks and waits for 30 seconds.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from trainact.lab.ranks import count_ranks, is_first_rank

__all__ = ["STOPPING", "Interruption", "RunInterrupted", "take_term_as_interrupt"]

STDERR = 2
"""Written to directly: a signal may come while the display is printing a line."""
STOPPING = "stopping once the run is saved"
Handler = Callable[[int, FrameType | None], None]


class RunInterrupted(KeyboardInterrupt):
    """A signal stopped a run; ``code`` is the exit code for the process."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.code = 128 + number


def take_term_as_interrupt() -> contextlib.AbstractContextManager[None]:
    """Raise `RunInterrupted` on SIGTERM, in a process that waits for those that do the runs."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        del frame
        signal.signal(number, _ignore)  # once is enough
        raise RunInterrupted(number)

    return _handle(interrupt, signal.SIGTERM)


def _ignore(number: int, frame: FrameType | None) -> None:
    """Do nothing; new processes do not inherit this, as they would SIG_IGN."""
    del number, frame


@contextlib.contextmanager
def _handle(handler: Handler, *numbers: int) -> Iterator[None]:
    """Handle signals while the context is open; those that are ignored stay ignored.

    Only the main thread can do this; in other threads nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in numbers}
    before = {number: now for number, now in before.items() if now not in (None, signal.SIG_IGN)}
    for number in before:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


class Interruption:
    """A request to stop; the run checks ``requested`` at points where it can be saved.

    A second Ctrl-C stops at once, except with several ranks: torchrun itself sends it twice.
    """

    def __init__(self) -> None:
        self.requested = False
        self.number = int(signal.SIGINT)
        self.process = os.getpid()

    def defer(self) -> contextlib.AbstractContextManager[None]:
        """Defer both signals while the context is open."""
        return _handle(self._request, signal.SIGINT, signal.SIGTERM)

    def stop(self) -> None:
        """Raise `RunInterrupted`; call this after saving, or if an error prevents it."""
        raise RunInterrupted(self.number)

    def _request(self, number: int, frame: FrameType | None) -> None:
        del frame
        if os.getpid() != self.process:  # a fork of the run's process
            return
        if self.requested:
            if number == signal.SIGINT and count_ranks() == 1:
                raise KeyboardInterrupt
            return
        self.requested, self.number = True, number
        if is_first_rank():
            at_once = "" if count_ranks() > 1 else "; a second Ctrl-C stops at once"
            with contextlib.suppress(OSError):  # standard error may be closed
                os.write(STDERR, f"{STOPPING}{at_once}\n".encode())
