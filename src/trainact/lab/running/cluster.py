"""Runs spread over the machines of a Ray cluster, their records brought together in one place.

Each run is one task. A task whose process dies is started again by Ray, on any machine. Where the
folder of the runs is seen by the machine, it trains there, and a run that was cut off goes on from
its checkpoint. Where it is not, it trains in a folder of its own, kept until the run ends, and the
files travel to this process, which writes them where they belong, the record last.

A run whose record is there is not given out, and the lock of its folder keeps two processes that
see the same disk from doing one run twice. All machines need this package, the same data
(downloaded by name, or at the same ``data.folder``) and the modules of a user's own networks.
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
from trainact.lab.records.events import Event, Report, read_event, write_event
from trainact.lab.records.failures import clear_failure, write_failure
from trainact.lab.running.plan import PlannedRun
from trainact.lab.running.progress import Display
from trainact.lab.running.runner import Outcome, do_run, remember, take_ended
from trainact.lab.training.interruption import RunInterrupted

__all__ = ["Cluster", "Delivery", "Mailbox", "carry_out", "store"]

RETRIES = 3
"""How often a run is taken up again after the process or machine that did it has died."""
SECONDS_BETWEEN_NEWS = 0.5
_load = remember(load_data)


class Delivery(NamedTuple):
    """What a machine hands back of a run: how it ended, and the files that only it has."""

    record: dict[str, Any] | None
    failure: str | None
    files: dict[str, bytes]


class Mailbox:
    """Collects what the runs tell until it is asked for; an actor."""

    def __init__(self) -> None:
        self.letters: list[tuple[str, str]] = []

    def tell(self, name: str, line: str) -> None:
        """Take in news of a run."""
        self.letters.append((name, line))

    def take(self) -> list[tuple[str, str]]:
        """Return the news since the last time."""
        letters, self.letters = self.letters, []
        return letters


def carry_out(run: PlannedRun, marker: Path, mailbox: Any) -> Delivery:
    """Do a run on the machine that this is called on.

    Args:
        run: with a root that is an absolute path of the machine that gave it out.
        marker: a file that is there if this machine sees the same disk.
        mailbox: the actor that is told what happens.
    """

    def report(event: Event) -> None:
        if event.kind not in ("end", "failed"):  # the outcome tells of these
            mailbox.tell.remote(run.name, write_event(event))

    report(Event("note", text=f"on {platform.node()}, process {os.getpid()}"))
    try:
        return _carry_out(run, marker, report)
    except RunInterrupted:  # Ray starts the run again where the process dies, not where it raises
        os._exit(1)


def _carry_out(run: PlannedRun, marker: Path, report: Report) -> Delivery:
    if marker.exists():
        _, record, failure = do_run(run, report, _load)
        return Delivery(record, failure, {})
    scratch = (
        Path(tempfile.gettempdir()) / f"trainact-runs-{getattr(os, 'getuid', getpass.getuser)()}"
    )
    scratch.mkdir(mode=0o700, exist_ok=True)
    own = run._replace(root=scratch)
    _, record, failure = do_run(own, report, _load)
    files = _pack(own.folder.path)
    if record is not None:
        shutil.rmtree(own.folder.path, ignore_errors=True)
    return Delivery(record, failure and failure.replace(str(scratch), str(run.root)), files)


def _pack(folder: Path) -> dict[str, bytes]:
    """Return a run's files without lock and checkpoints, the record last."""
    files = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith((".", "checkpoint-", "run.lock"))
    }
    return {name: files[name] for name in sorted(files, key=lambda name: name == "record.json")}


def store(run: PlannedRun, delivery: Delivery) -> Outcome:
    """Write what came from another machine into the run's folder here; return the outcome."""
    folder = run.folder.path
    for name, content in delivery.files.items():
        write_atomically(folder / name, content)
    if delivery.record is not None:
        clear_failure(folder)
    return Outcome(run, delivery.record, delivery.failure)


class Cluster:
    """Machines that Ray reaches.

    Args:
        address: of a running cluster; without it that of ``RAY_ADDRESS``, and without that a Ray
            that is started here and ends with the runs.
        jobs: runs at a time in a Ray that is started here; 1 for as many as there are cores.

    Raises:
        TrActValueError: ``jobs`` with a cluster that is there already, or under torchrun.
        TrActError: Ray is not installed.
    """

    def __init__(self, address: str | None = None, jobs: int = 1) -> None:
        self.address, self.jobs = address or os.environ.get("RAY_ADDRESS") or "local", jobs
        if jobs < 1 or (jobs > 1 and self.address != "local"):
            raise TrActValueError(
                f"--jobs takes a positive number, and none with a cluster, which does as many runs "
                f"as it has cores for; got {jobs}."
            )
        if count_ranks() > 1:
            raise TrActValueError("--on ray is for one process; under torchrun all do one run.")
        try:
            self.ray: Any = importlib.import_module("ray")
        except ModuleNotFoundError as error:
            raise TrActError(
                "--on ray needs the package 'ray', which comes with the extra 'ray': "
                "pip install 'trainact[ray]'"
            ) from error

    def run_all(self, runs: Sequence[PlannedRun], display: Display) -> list[Outcome]:
        """Do all runs that have no record here; a run that fails does not stop the others.

        Raises:
            TrActError: the cluster cannot be reached.
        """
        placed = {run.name: run._replace(root=run.root.resolve()) for run in runs}
        outcomes: dict[str, Outcome] = {}
        with display.open([(run.name, run.recipe.schedule.epochs) for run in runs]):
            for name, run in placed.items():
                ended = take_ended(run, display, _load)
                if ended is not None:
                    outcomes[name] = ended
            left = {name: run for name, run in placed.items() if name not in outcomes}
            if left:
                self._connect()
                try:
                    outcomes |= self._give_out(left, display)
                finally:
                    self.ray.shutdown()
        return [outcomes[run.name] for run in runs]

    def _connect(self) -> None:
        options: dict[str, Any] = {"address": self.address, "log_to_driver": False}
        if self.address == "local":
            options |= {"num_cpus": self.jobs if self.jobs > 1 else None}
            options |= {"include_dashboard": False}
        try:
            self.ray.init(logging_level="ERROR", configure_logging=True, **options)
        except (OSError, ValueError, RuntimeError) as error:
            raise TrActError(f"Ray at {self.address!r} cannot be used: {error}") from error

    def _give_out(self, runs: dict[str, PlannedRun], display: Display) -> dict[str, Outcome]:
        """Give every run to the cluster, show the news, and store what comes back."""
        ray, outcomes = self.ray, {}
        mailbox = ray.remote(num_cpus=0, max_restarts=-1)(Mailbox).remote()
        root = next(iter(runs.values())).root
        marker = root / f".seen-from-{uuid.uuid4().hex}"
        write_atomically(marker, b"")
        try:
            has_gpus = bool(ray.cluster_resources().get("GPU"))
            pending = {}
            for name, run in runs.items():
                gpus = int(has_gpus and run.recipe.run.device.split(":")[0] in ("auto", "cuda"))
                task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=RETRIES)(carry_out)
                pending[task.remote(run, marker, mailbox)] = name
            while pending:
                ready, _ = ray.wait(list(pending), timeout=SECONDS_BETWEEN_NEWS)
                self._tell_news(mailbox, display, set(pending.values()))
                for reference in ready:
                    name = pending.pop(reference)
                    outcome = outcomes[name] = self._receive(runs[name], reference)
                    kind: Any = "failed" if outcome.failure is not None else "end"
                    news = Event(kind, text=outcome.failure or "", record=outcome.record)
                    display.tell(name, news)
        finally:
            marker.unlink(missing_ok=True)
        return outcomes

    def _tell_news(self, mailbox: Any, display: Display, going_on: set[str]) -> None:
        try:
            letters = self.ray.get(mailbox.take.remote())
        except self.ray.exceptions.RayError:  # it died with its machine, and is started again
            return
        for name, line in letters:
            if name in going_on:
                display.tell(name, read_event(line))

    def _receive(self, run: PlannedRun, reference: Any) -> Outcome:
        try:
            delivery: Delivery = self.ray.get(reference)
        except self.ray.exceptions.RayError as error:
            failure = f"the machine did not end it: {type(error).__name__}: {error}"
            write_failure(run.folder.path, failure)
            return Outcome(run, None, failure.splitlines()[0])
        return store(run, delivery)
