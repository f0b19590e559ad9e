"""Many runs: one after another in this process, or side by side in several processes."""

import concurrent.futures
import contextlib
import functools
import os
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from trainact.errors import TrActError, TrActValueError
from trainact.lab.data import load_data
from trainact.lab.data.images import Note
from trainact.lab.files import StorageError
from trainact.lab.ranks import count_ranks, is_first_rank
from trainact.lab.recipes.own_loops import describe_loop, find_script, has_own_loop
from trainact.lab.recipes.recipe import DataFields, Recipe, identify, read_recipe, write_recipe
from trainact.lab.records.checkpoint import has_checkpoint
from trainact.lab.records.events import Event, EventHandler, read_event, write_event
from trainact.lab.records.record import write_failure
from trainact.lab.records.unfinished import describe_unfinished
from trainact.lab.running.devices import GpuPool, check_jobs
from trainact.lab.running.display import Display
from trainact.lab.running.finished import take_finished
from trainact.lab.running.plan import PlannedRun
from trainact.lab.training.interruption import STOPPING, RunInterrupted, take_term_as_interrupt
from trainact.lab.training.own_loop.loop import train_script
from trainact.lab.training.resume_checks import check_record
from trainact.lab.training.train import find_session, train

__all__ = ["RunResult", "Trainer", "cache_data", "do_run", "make_note", "reuse_record", "run_all"]

Trainer = Callable[[Recipe, Path, EventHandler], dict[str, Any]]
"""Does the run of a recipe in a folder of runs, and returns its record."""

SAVED = (128 + signal.SIGINT, 128 + signal.SIGTERM)
"""Exit codes of a process that a signal stopped and that saves its run, unless an error came."""
STOPPED = (*SAVED, -signal.SIGINT, -signal.SIGTERM)
CACHED = 2
"""Data sets that `cache_data` keeps in memory."""
LINES_KEPT = 1000
"""Lines of a process's standard error that are kept for the file of its failure."""
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""Lets Linux give a process huge pages: large activations on a CPU then take fewer page faults."""


class RunResult(NamedTuple):
    """The result of a run: a record, or the reason why there is none."""

    run: PlannedRun
    record: dict[str, Any] | None
    failure: str | None


def run_all(
    runs: Sequence[PlannedRun],
    jobs: int,
    display: Display,
    roots: Sequence[Path] = (),
    trainer: Trainer | None = None,
) -> list[RunResult]:
    """Do all runs, ``jobs`` at a time, and return their results in the same order.

    A run that is finished below one of ``roots``, folders of results, is taken from there.

    With several jobs, each run has its own process, an equal share of the threads and, on a machine
    with GPUs, one of them. A user's script always has its own process. A run that fails does not
    stop the others. ``trainer`` does the runs of a user's function, one at a time.

    Raises:
        TrActError: ``jobs`` is not positive, more than the machine can take, or more than one under
            torchrun; the data or the model of all runs cannot be loaded.
    """
    check_jobs(jobs, (run.recipe.run.device for run in runs))
    if jobs > 1 and count_ranks() > 1:
        raise TrActValueError(
            f"--jobs must be 1 under torchrun, where all ranks do one run; got {jobs}."
        )
    load = cache_data(load_data)
    left = [run for run in runs if not run.folder.record_path.exists()]
    with display.open([(run.name, run.recipe.schedule.epochs) for run in runs]):
        own = [run for run in left if has_own_loop(run.recipe)]
        if not own and left and all(_name_network(run) == _name_network(left[0]) for run in left):
            recipe = left[0].recipe
            data = load(recipe.data, note=make_note(display, left[0]))
            find_session(data).build(recipe, data)  # an error of all runs is raised once
        elif not own and jobs > 1:
            _load_all(left, load, display)
        if jobs == 1 and not any(find_script(run.recipe) for run in runs):
            results = []
            for run in runs:
                if is_first_rank():
                    take_finished(run, roots, load, make_note(display, run))
                show = functools.partial(display.show, run.name)
                results.append(do_run(run, show, load, trainer))
            return results
        with take_term_as_interrupt(), concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            children = _Children(jobs, display, load, roots)
            try:
                return list(pool.map(children.run, runs))
            except BaseException:
                children.stop()
                raise


def cache_data(load: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``load`` with a cache of the last data sets; one thread loads at a time."""
    lock = threading.Lock()
    cached: dict[DataFields, Any] = {}

    def load_once(fields: DataFields, note: Note) -> Any:
        with lock:
            data = cached.pop(fields) if fields in cached else load(fields, note=note)
            cached[fields] = data  # moved to the end; the first is removed next
            while len(cached) > CACHED:
                del cached[next(iter(cached))]
            return data

    return load_once


def _name_network(run: PlannedRun) -> tuple[str, dict[str, Any]]:
    return run.recipe.model.name, run.recipe.model.arguments


def _load_all(runs: Sequence[PlannedRun], load: Callable[..., Any], display: Display) -> None:
    """Load the data of runs to show each message about them once: processes of runs show none.

    A run whose data cannot be loaded reports that itself.
    """
    shown: set[str] = set()

    def note(run: PlannedRun, text: str) -> None:
        if text not in shown:
            make_note(display, run)(text)
        shown.add(text)

    first = {run.recipe.data: run for run in reversed(runs)}
    for fields, run in first.items():
        with contextlib.suppress(TrActError):
            load(fields, note=functools.partial(note, run))


def make_note(display: Display, run: PlannedRun) -> Note:
    """Return a function that shows messages about a run."""
    return lambda text: display.show(run.name, Event("note", text=text))


def do_run(
    run: PlannedRun,
    report: EventHandler,
    load: Callable[..., Any],
    trainer: Trainer | None = None,
) -> RunResult:
    """Do a run in this process; if it fails, write the reason into its folder.

    ``trainer`` does it if it is a run of a user's function.

    Raises:
        StorageError: the disk is full, so the next run would fail too.
        Exception: any error under torchrun, where the other ranks would wait for this one.
    """
    folder, trace = run.folder.path, ""
    cause: Exception
    for message in describe_unfinished(run.folder) if is_first_rank() else ():
        report(Event("note", text=message))
    try:
        if has_own_loop(run.recipe):
            record = (trainer or _find_trainer(run.recipe))(run.recipe, run.root, report)
        else:
            record = train(run.recipe, run.root, report, load)
        return RunResult(run, record, None)
    except StorageError:
        raise
    except TrActError as error:
        failure, cause = str(error), error
    except Exception as error:
        failure, cause = f"{type(error).__name__}: {error}", error
        trace = traceback.format_exc()
    path = write_failure(folder, failure, trace) if is_first_rank() else None
    if count_ranks() > 1:
        raise cause
    failure += f" (the traceback is in {path})" if trace else ""
    report(Event("failed", text=failure))
    return RunResult(run, None, failure)


def _find_trainer(recipe: Recipe) -> Trainer:
    """Return what does a run of the user's own loop, if it can be found."""
    if find_script(recipe) is None:
        raise TrActValueError(
            f"this run is one of the Python function {describe_loop(recipe)!r}; call "
            "trainact.lab.compare_runs with it."
        )
    return train_script


def reuse_record(run: PlannedRun, display: Display, load: Callable[..., Any]) -> RunResult | None:
    """Return and show the result of a run that has its record; return None if it has none."""
    record = run.find_record()
    if record is None:
        return None
    try:
        note = make_note(display, run)
        check_record(record, run.recipe, functools.partial(load, note=note))
    except TrActError as error:
        display.show(run.name, Event("failed", text=str(error)))
        return RunResult(run, None, str(error))
    display.show(run.name, Event("end", record=record))
    return RunResult(run, record, None)


class _Children:
    """Processes that do one run each and write its events line by line to standard output."""

    def __init__(
        self, jobs: int, display: Display, load: Callable[..., Any], roots: Sequence[Path]
    ) -> None:
        self.display, self.load, self.roots = display, load, roots
        self.threads = max(1, torch.get_num_threads() // jobs)
        self.gpus = GpuPool(jobs if jobs > 1 else 0)  # a script alone may use all
        self.lock = threading.Lock()
        self.turns: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self.running: set[subprocess.Popen[str]] = set()
        self.stopped = False

    def run(self, run: PlannedRun) -> RunResult:
        """Do a run in a new process; show its events and return its result.

        A second run of the same recipe waits for the first and then takes its files.
        """
        with self.lock:
            turn = self.turns[identify(run.recipe)]
        with turn:
            return self._run(run)

    def _run(self, run: PlannedRun) -> RunResult:
        if not self.stopped:
            take_finished(run, self.roots, self.load, make_note(self.display, run))
        ended = None if self.stopped else reuse_record(run, self.display, self.load)
        if ended is not None:
            return ended
        device = run.recipe.run.device
        with tempfile.TemporaryDirectory() as folder, self.gpus.take(device) as variables:
            file = Path(folder) / "recipe.toml"
            write_recipe(run.recipe, file)
            threads = {"OMP_NUM_THREADS": str(self.threads)}
            environment = {**HUGE_PAGES, **os.environ, **threads, **variables}
            with self.lock:
                if self.stopped:
                    return RunResult(run, None, "stopped before it started")
                process = subprocess.Popen(
                    [sys.executable, "-m", "trainact.lab.running.runner", str(file), str(run.root)],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    encoding="utf-8",
                    errors="replace",
                    env=environment,
                )
                self.running.add(process)
            return self._follow(run, process)

    def _follow(self, run: PlannedRun, process: "subprocess.Popen[str]") -> RunResult:
        assert process.stdout is not None
        assert process.stderr is not None
        record, failure = None, None
        lines: deque[str] = deque(maxlen=LINES_KEPT)
        reader = threading.Thread(target=lambda: lines.extend(process.stderr or []), daemon=True)
        reader.start()
        with process.stdout, process.stderr:
            for line in process.stdout:
                if not line.endswith("\n"):  # it was killed while writing
                    break
                event = read_event(line)
                record = event.record or record
                failure = event.text if event.kind == "failed" else failure
                self.display.show(run.name, event)
            code = process.wait()
            reader.join()
        with self.lock:
            self.running.discard(process)
        if record is None and failure is None:
            last = lines[-1].strip() if lines else "it printed nothing"
            failure = f"its process ended with code {code}: {last}"
            if self.stopped or code in STOPPED:
                is_saved = code in SAVED and has_checkpoint(run.folder.path)
                how = "" if code in STOPPED else f"; {failure}"
                failure = "stopped after it was saved" if is_saved else f"stopped{how}"
                self.display.show(run.name, Event("note", text=failure))
            else:
                write_failure(run.folder.path, failure, "".join(lines))
                self.display.show(run.name, Event("failed", text=failure))
        return RunResult(run, record, failure)

    def stop(self) -> None:
        """Ask all processes to save their runs and stop."""
        with self.lock:
            self.stopped = True
            if self.running:
                print(f"{STOPPING}; a second Ctrl-C stops at once", file=sys.stderr)
            for process in self.running:
                process.terminate()


def _main(file: str, root: str) -> int:
    """Do the run of a recipe file and write its events to standard output, which the parent reads.

    What a network or a library prints goes to standard error.
    """
    events = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def report(event: Event) -> None:
        try:
            print(write_event(event), file=events, flush=True)
        except BrokenPipeError:  # the parent is gone: stop here, the checkpoint is kept
            os._exit(3)

    def load(fields: DataFields, note: Note) -> Any:
        del note  # the parent has shown the messages about the data: they are the same for all runs
        return load_data(fields)

    run = PlannedRun(read_recipe(Path(file)), Path(root))
    try:
        result = do_run(run, report, load)
    except TrActError as error:
        report(Event("failed", text=str(error)))
        return 1
    except RunInterrupted as error:
        return error.code
    return 0 if result.failure is None else 1


if __name__ == "__main__":
    raise SystemExit(_main(*sys.argv[1:]))
