"""Many runs: one after another in this process, or side by side in processes of their own."""

import concurrent.futures
import functools
import os
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trainact.errors import TrActError, TrActValueError
from trainact.lab.data import load_data
from trainact.lab.events import Event, read_event, write_event
from trainact.lab.files import StorageError, write_atomically
from trainact.lab.naming import name_run
from trainact.lab.progress import Display
from trainact.lab.recipe import Recipe
from trainact.lab.recipe_file import read_recipe, write_recipe
from trainact.lab.record import RunFolder
from trainact.lab.settings import count_ranks
from trainact.lab.tasks import find_session
from trainact.lab.train import train

__all__ = ["Outcome", "run_all"]


class Outcome(NamedTuple):
    """How a run ended: with a record, or with a reason why there is none."""

    recipe: Recipe
    record: dict[str, Any] | None
    failure: str | None


def run_all(recipes: Sequence[Recipe], root: Path, jobs: int, display: Display) -> list[Outcome]:
    """Do all runs; a run that fails does not stop the others.

    Args:
        recipes: the runs.
        root: where their folders are.
        jobs: how many at a time; more than one take a process and their share of the cores each.
        display: shows how they come along.

    Raises:
        TrActError: ``jobs`` is not positive, or more than one under torchrun; there is no such data
            or model.
    """
    if jobs < 1:
        raise TrActValueError(f"--jobs takes a positive number; got {jobs}.")
    if jobs > 1 and count_ranks() > 1:
        raise TrActValueError("--jobs is for one process; under torchrun all ranks do one run.")
    load = functools.lru_cache(maxsize=2)(load_data)
    left = [r for r in recipes if not RunFolder(root, r).record_path.exists()]
    if left:
        data = load(left[0].data)
        find_session(data).build(left[0], data)  # what is wrong with all runs is told once
    names = [name_run(recipe) for recipe in recipes]
    with display.open([(name, r.schedule.epochs) for name, r in zip(names, recipes, strict=True)]):
        if jobs == 1:
            return [
                _run_here(recipe, root, functools.partial(display.tell, name), load)
                for name, recipe in zip(names, recipes, strict=True)
            ]
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            children = _Children(root, jobs, display)
            try:
                return list(pool.map(children.run, names, recipes))
            except BaseException:
                children.stop()
                raise


def _run_here(recipe: Recipe, root: Path, report: Any, load: Any) -> Outcome:
    failure = None
    try:
        return Outcome(recipe, train(recipe, root, report, load), None)
    except StorageError:
        raise  # the next run would meet the same disk
    except TrActError as error:
        if count_ranks() > 1:
            raise  # the other ranks would wait for this one
        failure = str(error)
    except Exception as error:
        if count_ranks() > 1:
            raise
        failure = f"{type(error).__name__}: {error}"
        log = RunFolder(root, recipe).path / "failure.log"
        write_atomically(log, traceback.format_exc().encode())
        failure += f" (the whole trace is in {log})"
    report(Event("failed", text=failure))
    return Outcome(recipe, None, failure)


class _Children:
    """Processes that do one run each and tell of it line by line."""

    def __init__(self, root: Path, jobs: int, display: Display) -> None:
        self.root, self.display = root, display
        self.threads = max(1, (os.cpu_count() or 1) // jobs)
        self.lock = threading.Lock()
        self.running: set[subprocess.Popen[str]] = set()
        self.stopped = False

    def run(self, name: str, recipe: Recipe) -> Outcome:
        """Do a run in a new process; what it says is shown, and how it ends is returned."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "recipe.toml"
            write_recipe(recipe, file)
            environment = {**os.environ, "OMP_NUM_THREADS": str(self.threads)}
            with self.lock:
                if self.stopped:
                    return Outcome(recipe, None, "stopped before it began")
                process = subprocess.Popen(
                    [sys.executable, "-m", "trainact.lab.runner", str(file), str(self.root)],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    env=environment,
                )
                self.running.add(process)
            return self._follow(name, recipe, process)

    def _follow(self, name: str, recipe: Recipe, process: "subprocess.Popen[str]") -> Outcome:
        assert process.stdout is not None
        assert process.stderr is not None
        record, failure = None, None
        said: list[str] = []
        reader = threading.Thread(target=lambda: said.extend(process.stderr or []), daemon=True)
        reader.start()
        for line in process.stdout:
            event = read_event(line)
            record = event.record or record
            failure = event.text if event.kind == "failed" else failure
            self.display.tell(name, event)
        code = process.wait()
        reader.join()
        with self.lock:
            self.running.discard(process)
        if record is None and failure is None:
            last = said[-1].strip() if said else "it said nothing"
            failure = f"its process ended with code {code}: {last}"
            self.display.tell(name, Event("failed", text=failure))
        return Outcome(recipe, record, failure)

    def stop(self) -> None:
        """End all processes; their checkpoints stay."""
        with self.lock:
            self.stopped = True
            for process in self.running:
                process.terminate()


def _main(file: str, root: str) -> int:
    """Do the run of a recipe file and print its events; the parent reads them."""

    def report(event: Event) -> None:
        try:
            print(write_event(event), flush=True)
        except BrokenPipeError:  # the parent has gone: stop here, the checkpoint stays
            os._exit(3)

    recipe = read_recipe(Path(file))
    try:
        outcome = _run_here(recipe, Path(root), report, load_data)
    except TrActError as error:
        report(Event("failed", text=str(error)))
        return 1
    return 0 if outcome.failure is None else 1


if __name__ == "__main__":
    raise SystemExit(_main(*sys.argv[1:]))
