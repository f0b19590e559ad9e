"""Do one run with a training loop of the user's own, from its recipe to its record."""

import contextlib
import hashlib
import inspect
import runpy
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from trainact.defaults import DEFAULT_LAM
from trainact.errors import TrActError, TrActValueError
from trainact.lab.environment import describe_environment
from trainact.lab.files import write_atomically
from trainact.lab.randomness import seed_everything
from trainact.lab.recipes.arms import parse_arms
from trainact.lab.recipes.own_loops import (
    OWN_DATA,
    find_script,
    keep_own_fields,
    make_function_recipe,
    plan_loop,
)
from trainact.lab.recipes.recipe import Recipe, identify
from trainact.lab.records.events import Event, EventHandler
from trainact.lab.records.record import FORMAT, RunFolder, clear_failure, read_record
from trainact.lab.text import count_epochs
from trainact.lab.training.own_loop.run import PreparedModel, Run

__all__ = ["current_run", "hash_code", "in_run", "train_function", "train_script"]

METRIC = {"name": "accuracy", "field": "accuracy", "over": ""}
"""The metric of these records; the lab's own have numbers of images instead."""
_runs: list[Run] = []  # the run of this process, if it is doing one


def current_run(*, arm: str = "plain", seed: int = 0, epochs: int = 1) -> Run:
    """Return the run that ``trainact compare --script`` or `compare_runs` is doing.

    Outside a comparison it is a run that leaves no record, with the values of the arguments, so
    that the script also works alone.

    >>> current_run(epochs=90)
    Run(arm='plain', seed=0, epochs=90)
    """
    if _runs:
        return _runs[-1]
    recipe = make_function_recipe("the script", {})
    [planned] = plan_loop(recipe, parse_arms([arm], [DEFAULT_LAM]), (epochs,), (seed,))
    return Run(planned)


def in_run() -> bool:
    """Return whether this process is doing a run of a comparison."""
    return bool(_runs)


def hash_code(train: Callable[..., Any] | Path) -> str:
    """Return the SHA-256 of a script, or of the file with a function; empty if it is unknown."""
    try:
        if isinstance(train, Path):
            text = train.read_bytes()
        else:
            file = inspect.getsourcefile(train)
            known = file is not None and Path(file).is_file()
            text = Path(file or "").read_bytes() if known else inspect.getsource(train).encode()
    except (OSError, TypeError):
        return ""
    return hashlib.sha256(text).hexdigest()


def train_function(
    recipe: Recipe, root: Path, report: EventHandler, train: Callable[[Run], Any], code: str
) -> dict[str, Any]:
    """Do the run of a recipe with a function of the user, and return its record.

    A finished run is not repeated; an interrupted one starts again. The status of the record is
    ``diverged`` if the logged loss became NaN or infinite.

    Args:
        recipe: the run.
        root: folder of all runs; the run has a folder below it.
        report: receives the events.
        train: trains a model and calls the methods of the run.
        code: hash of the user's code, for the record.

    Raises:
        TrActError: the function did not do what a run needs.
        Exception: what the function raises.
    """
    folder = RunFolder(root, recipe)

    def note(text: str) -> None:
        report(Event("note", text=text))

    def check_start(initial: str) -> None:
        _check_start(folder, initial)

    with folder.hold(note):
        record = folder.load_record(note)
        if record is None:
            tables = tomli_w.dumps(keep_own_fields(recipe))
            write_atomically(folder.path / "recipe.toml", tables.encode())
            run, environment = Run(recipe, report, check_start), describe_environment()
            with _make_current(run):
                seed_everything(run.seed, "own loop")
                try:
                    train(run)
                except Exception:
                    if run.failure is None:
                        raise
            prepared = run.check_end()
            check_start(prepared.initial_weights)  # other runs may have ended meanwhile
            record = _make_record(run, prepared, code, environment)
            folder.write_record(record)
    clear_failure(folder.path)
    report(Event("end", record=record))
    return record


def train_script(recipe: Recipe, root: Path, report: EventHandler) -> dict[str, Any]:
    """Do the run of a recipe with a script of the user, in this process; see `train_function`."""
    found = find_script(recipe)
    assert found is not None
    script, arguments = found
    if not script.is_file():
        raise TrActValueError(f"there is no script {script} in {Path.cwd()}.")
    code = hash_code(script)
    return train_function(recipe, root, report, lambda _: _run_script(script, arguments), code)


def _run_script(script: Path, arguments: Sequence[str]) -> None:
    """Run a script as ``python SCRIPT ARGUMENTS`` does."""
    argv, path = sys.argv, sys.path
    sys.argv, sys.path = [str(script), *arguments], [str(script.resolve().parent), *path]
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            raise TrActError(
                f"{script} ended with exit code {end.code}; 'python {script}' with the same "
                "arguments shows why."
            ) from end
    finally:
        sys.argv, sys.path = argv, path


@contextlib.contextmanager
def _make_current(run: Run) -> Iterator[None]:
    _runs.append(run)
    try:
        yield
    finally:
        _runs.remove(run)


def _check_start(folder: RunFolder, initial: str) -> None:
    """Raise if a finished run of the same loop and seed had other weights before its arm."""
    recipe = folder.recipe
    model = {"name": recipe.model.name, "arguments": recipe.model.arguments}
    for path in sorted(folder.path.parent.glob(f"*-seed{recipe.run.seed}-*/record.json")):
        try:
            record = read_record(path)
        except TrActValueError:  # damaged: its own run says so
            continue
        theirs = record["recipe"].get("model", {})
        same_loop = {key: theirs.get(key) for key in model} == model
        if same_loop and record["model"]["initial_weights"] != initial:
            raise TrActValueError(
                "the weights that run.prepare got are not those of the finished run "
                f"({record['arm']}, {count_epochs(record['budget'])}, seed {record['seed']}), so "
                "the two are not a pair. Make the model in the same way for every arm, with random "
                "numbers from run.seed alone. If you have changed the model since, give another "
                f"folder for the results, or remove {path.parent}."
            )


def _make_record(
    run: Run, prepared: PreparedModel, code: str, environment: dict[str, Any]
) -> dict[str, Any]:
    """Return the record; ``environment`` is that before the run, whose device was not known yet."""
    recipe, network = run.recipe, prepared.network
    parameter = next(network.parameters(), None)
    device = "cpu" if parameter is None else str(parameter.device)
    at_start = {key: environment[key] for key in ("date", "trainact", "commit", "clean")}
    return {
        "format": FORMAT,
        "status": "complete" if run.failure is None else "diverged",
        "kind": "full",
        "arm": run.arm,
        "budget": run.epochs,
        "seed": run.seed,
        "recipe": keep_own_fields(recipe),
        "recipe_id": identify(recipe),
        "environment": {**describe_environment(device), **at_start, "ranks": 1},
        "data": {"name": OWN_DATA, "fingerprint": ""},
        "model": {
            "name": recipe.model.name,
            "class": type(network).__name__,
            "parameters": sum(p.numel() for p in network.parameters()),
            "first_layers": prepared.first_layers,
            "initial_weights": prepared.initial_weights,
            "trained_from": prepared.trained_from,
            "weights": None,
            "code": code,
        },
        "order": "",
        "metric": METRIC,
        "epochs": run.history,
        "failure": run.failure,
        "seconds": run.seconds,
        "sessions": 1,
    }
