"""Runs on the machines of a Ray cluster; their records are collected in one place.

Each run is one task. If its process dies, Ray starts the task again, on any machine. A machine that
sees the folder of the runs trains in it, and an interrupted run resumes from its checkpoint. Any
other machine trains in a temporary folder, which it keeps until the run ends; the files are then
sent to this process, which writes them into the run's folder, the record last.

A run that has a record is not submitted. The lock of a run's folder prevents two processes that
share a disk from doing the same run twice. All machines need this package, the same data
(downloaded by name, or at the same ``data.folder``) and the modules of your own networks.
"""

import getpass
import importlib
import os
import platform
import shutil
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trainact.errors import TrActError, TrActValueError
from trainact.lab.data import load_data
from trainact.lab.files import write_atomically
from trainact.lab.ranks import count_ranks
from trainact.lab.records.events import Event, read_event, write_event
from trainact.lab.records.record import clear_failure, write_failure
from trainact.lab.running.display import Display
from trainact.lab.running.finished import take_finished
from trainact.lab.running.plan import PlannedRun
from trainact.lab.running.runner import RunResult, cache_data, do_run, make_note, reuse_record
from trainact.lab.training.interruption import RunInterrupted

__all__ = ["Cluster", "Delivery", "Mailbox", "do_task", "store"]

RETRIES = 3
"""How often a run is started again after its process or machine has died."""
SECONDS_BETWEEN_EVENTS = 0.5
_load = cache_data(load_data)


class Delivery(NamedTuple):
    """What a machine returns of a run: its result, and the files that are only there."""

    record: dict[str, Any] | None
    failure: str | None
    files: dict[str, bytes]


class Mailbox:
    """A Ray actor that collects the events of all runs."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []

    def put(self, name: str, line: str) -> None:
        """Add an event of a run."""
        self.events.append((name, line))

    def take(self) -> list[tuple[str, str]]:
        """Return the events since the last call."""
        events, self.events = self.events, []
        return events


def do_task(run: PlannedRun, marker: Path, mailbox: Any) -> Delivery:
    """Do a run on the machine of this process; ``marker`` exists if it sees the run's folder."""

    def report(event: Event) -> None:
        if event.kind not in ("end", "failed"):  # the result says so
            mailbox.put.remote(run.name, write_event(event))

    report(Event("note", text=f"on {platform.node()}, process {os.getpid()}"))
    placed = run
    if not marker.exists():
        user = getattr(os, "getuid", getpass.getuser)()
        placed = run._replace(root=Path(tempfile.gettempdir()) / f"trainact-runs-{user}")
        placed.root.mkdir(mode=0o700, exist_ok=True)
    try:
        _, record, failure = do_run(placed, report, _load)
    except RunInterrupted:  # Ray restarts a task that dies, not one that raises
        os._exit(1)
    if placed is run:
        return Delivery(record, failure, {})
    files = _pack(placed.folder.path)
    if record is not None:
        shutil.rmtree(placed.folder.path, ignore_errors=True)
    return Delivery(record, failure and failure.replace(str(placed.root), str(run.root)), files)


def _pack(folder: Path) -> dict[str, bytes]:
    """Return a run's files without lock and checkpoints, the record last."""
    files = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith((".", "checkpoint-", "run.lock"))
    }
    return {name: files[name] for name in sorted(files, key=lambda name: name == "record.json")}


def store(run: PlannedRun, delivery: Delivery) -> RunResult:
    """Write the files of another machine into the run's folder here; return the result."""
    folder = run.folder.path
    for name, content in delivery.files.items():
        write_atomically(folder / name, content)
    if delivery.record is not None:
        clear_failure(folder)
    return RunResult(run, delivery.record, delivery.failure)


def _reuse(
    runs: dict[str, PlannedRun], display: Display, roots: Sequence[Path]
) -> tuple[dict[str, RunResult], dict[str, PlannedRun]]:
    """Return the results of the runs that have ended, here or in another experiment; and the rest.

    Both are by the name of the run.
    """
    results, left = {}, {}
    for name, run in runs.items():
        take_finished(run, roots, _load, make_note(display, run))
        done = reuse_record(run, display, _load)
        if done is None:
            left[name] = run
        else:
            results[name] = done
    return results, left


class Cluster:
    """A Ray cluster.

    Args:
        address: of a running cluster; by default ``RAY_ADDRESS``, and if that is not set, a local
            Ray is started and shut down after the runs.
        jobs: runs at a time in a local Ray; 1 means one per core.

    Raises:
        TrActValueError: ``jobs`` is given for a running cluster, or this is one of several ranks.
        TrActError: Ray is not installed.
    """

    def __init__(self, address: str | None = None, jobs: int = 1) -> None:
        self.address, self.jobs = address or os.environ.get("RAY_ADDRESS") or "local", jobs
        if jobs < 1 or (jobs > 1 and self.address != "local"):
            raise TrActValueError(
                f"--jobs takes a positive number, and only 1 with a running cluster, which does as "
                f"many runs at a time as it has cores; got {jobs}."
            )
        if count_ranks() > 1:
            raise TrActValueError(
                "--on ray does not work under torchrun, where all ranks do one run."
            )
        try:
            self.ray: Any = importlib.import_module("ray")
        except ModuleNotFoundError as error:
            raise TrActError(
                "--on ray needs the package 'ray', which is in the extra 'ray': "
                "pip install 'trainact[ray]'"
            ) from error

    def run_all(
        self, runs: Sequence[PlannedRun], display: Display, roots: Sequence[Path] = ()
    ) -> list[RunResult]:
        """Do all runs that have no record; a run that fails does not stop the others.

        A run that is finished below one of ``roots``, folders of results, is taken from there.
        """
        placed = {run.name: run._replace(root=run.root.resolve()) for run in runs}
        with display.open([(run.name, run.recipe.schedule.epochs) for run in runs]):
            results, left = _reuse(placed, display, roots)
            first = {run.folder.identity: name for name, run in reversed(left.items())}
            once = {name: left[name] for name in left if name in first.values()}
            if once:
                self._connect()
                try:
                    results |= self._submit(once, display)
                    again = {name: run for name, run in left.items() if name not in once}
                    reused, again = _reuse(again, display, roots)  # the same runs elsewhere
                    results |= reused | (self._submit(again, display) if again else {})
                finally:
                    self.ray.shutdown()
        return [results[run.name] for run in runs]

    def _connect(self) -> None:
        options: dict[str, Any] = {"address": self.address, "log_to_driver": False}
        if self.address == "local":
            cores = self.jobs if self.jobs > 1 else None
            options |= {"num_cpus": cores, "include_dashboard": False}
        try:
            self.ray.init(logging_level="ERROR", configure_logging=True, **options)
        except (OSError, ValueError, RuntimeError) as error:
            raise TrActError(f"Ray at {self.address!r} cannot be used: {error}") from error

    def _submit(self, runs: dict[str, PlannedRun], display: Display) -> dict[str, RunResult]:
        """Submit every run to the cluster, show the events, and store the results."""
        ray, results = self.ray, {}
        mailbox = ray.remote(num_cpus=0, max_restarts=-1)(Mailbox).remote()
        root = next(iter(runs.values())).root
        marker = root / f".seen-from-{uuid.uuid4().hex}"
        write_atomically(marker, b"")
        try:
            has_gpus = bool(ray.cluster_resources().get("GPU"))
            pending = {}
            for name, run in runs.items():
                gpus = int(has_gpus and run.recipe.run.device.split(":")[0] in ("auto", "cuda"))
                task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=RETRIES)(do_task)
                pending[task.remote(run, marker, mailbox)] = name
            while pending:
                ready, _ = ray.wait(list(pending), timeout=SECONDS_BETWEEN_EVENTS)
                self._show_events(mailbox, display, set(pending.values()))
                for reference in ready:
                    name = pending.pop(reference)
                    result = results[name] = self._receive(runs[name], reference)
                    kind: Any = "failed" if result.failure is not None else "end"
                    event = Event(kind, text=result.failure or "", record=result.record)
                    display.show(name, event)
        finally:
            marker.unlink(missing_ok=True)
        return results

    def _show_events(self, mailbox: Any, display: Display, pending: set[str]) -> None:
        try:
            events = self.ray.get(mailbox.take.remote())
        except self.ray.exceptions.RayError:  # it died with its machine and is restarted
            return
        for name, line in events:
            if name in pending:
                display.show(name, read_event(line))

    def _receive(self, run: PlannedRun, reference: Any) -> RunResult:
        try:
            delivery: Delivery = self.ray.get(reference)
        except self.ray.exceptions.RayError as error:
            failure = f"the task died: {type(error).__name__}: {error}"
            write_failure(run.folder.path, failure)
            return RunResult(run, None, failure.splitlines()[0])
        return store(run, delivery)
