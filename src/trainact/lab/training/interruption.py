"""Ctrl-C and SIGTERM, which are put off until the run is saved.

A scheduler that takes a job's machine away sends SIGTERM and waits; torchrun hands either on to all
ranks and waits for half a minute.
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
"""Written to directly: what shows a run may be in the middle of a line when a signal comes."""
STOPPING = "stopping once the run is saved"
Handler = Callable[[int, FrameType | None], None]


class RunInterrupted(KeyboardInterrupt):
    """A run was stopped after it was saved; ``code`` is what the process should end with."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.code = 128 + number


def take_term_as_interrupt() -> contextlib.AbstractContextManager[None]:
    """Let SIGTERM interrupt as Ctrl-C does, in a process that waits for those that do the runs."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        del frame
        signal.signal(number, _ignore)  # once is enough
        raise RunInterrupted(number)

    return _handle(interrupt, signal.SIGTERM)


def _ignore(number: int, frame: FrameType | None) -> None:
    """Do nothing; unlike SIG_IGN this is not handed on to a process that is just being started."""
    del number, frame


@contextlib.contextmanager
def _handle(handler: Handler, *numbers: int) -> Iterator[None]:
    """Give signals to a handler while this is open, but for those that are ignored.

    Only a main thread can; others do without.
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
    """Notes that a run is to stop; the run looks at ``asked`` where it can be saved.

    A second Ctrl-C stops at once, except among ranks, where torchrun sends it too.
    """

    def __init__(self) -> None:
        self.asked = False
        self.number = int(signal.SIGINT)
        self.process = os.getpid()

    def heed(self) -> contextlib.AbstractContextManager[None]:
        """Put both signals off while this is open."""
        return _handle(self._note, signal.SIGINT, signal.SIGTERM)

    def stop(self) -> None:
        """Stop, now that everything is saved.

        Raises:
            RunInterrupted: always.
        """
        raise RunInterrupted(self.number)

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        if os.getpid() != self.process:  # a process that was forked from the run's
            return
        if self.asked:
            if number == signal.SIGINT and count_ranks() == 1:
                raise KeyboardInterrupt
            return
        self.asked, self.number = True, number
        if is_first_rank():
            at_once = "" if count_ranks() > 1 else "; a second Ctrl-C stops at once"
            with contextlib.suppress(OSError):  # nobody listens
                os.write(STDERR, f"{STOPPING}{at_once}\n".encode())
