"""Whole comparisons: the runs, the page and what is printed; and `compare_runs` for Python."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainact.defaults import DEFAULT_LAM
from trainact.errors import TrActError, TrActTypeError, TrActValueError
from trainact.lab.ranks import count_ranks
from trainact.lab.recipes.arms import parse_arms
from trainact.lab.recipes.own_loops import make_function_recipe, plan_loop
from trainact.lab.recipes.recipe import Recipe, name_run
from trainact.lab.records.events import EventHandler
from trainact.lab.records.record import Record
from trainact.lab.report.comparison_report import Comparison, write_comparison
from trainact.lab.report.tables import print_accuracy
from trainact.lab.report.wording import describe_results, describe_speed_up, describe_timing
from trainact.lab.running.display import choose_display
from trainact.lab.running.plan import place_runs
from trainact.lab.running.runner import RunResult, run_all
from trainact.lab.schema import parse_positive_numbers, parse_whole_numbers
from trainact.lab.text import count, count_epochs
from trainact.lab.training.own_loop.loop import hash_code, in_run, train_function
from trainact.lab.training.own_loop.run import Run

__all__ = ["compare_runs", "finish_comparison", "split_results"]

Numbers = str | float | Iterable[float]


def compare_runs(
    train: Callable[[Run], Any],
    *,
    arms: str | Iterable[str] = ("plain", "tract"),
    seeds: Numbers = "0-2",
    epochs: Numbers,
    lam: Numbers = DEFAULT_LAM,
    settings: Mapping[str, Any] | None = None,
    out: str | Path = "trainact-compare",
) -> Comparison:
    """Compare arms in a training loop of your own, as ``trainact compare`` does in the lab's.

    ``train`` is called once for each arm, budget and seed, in this process::

        def train(run):
            torch.manual_seed(run.seed)
            model = run.prepare(make_model())
            optimizer = run.optimizer(model, lambda p: torch.optim.SGD(p, lr=0.1))
            for epoch in range(run.epochs):
                loss = train_epoch(model, optimizer)
                run.log(epoch + 1, accuracy=test(model), loss=loss)

        compare_runs(train, arms="plain,tract,lr=0.1", seeds="0-4", epochs=10)

    Each finished run is kept in ``out`` and not repeated: if the process is killed or a run fails,
    call it again. The result is printed and written to ``out``, with one HTML page.

    Args:
        train: trains one model; see `Run` for what it is given.
        arms: names of arms; docs/lab.md lists their parts.
        seeds: such as ``range(5)`` or ``"0-4"``.
        epochs: of a run; several numbers are several budgets, each for a run of its own.
        lam: λ of the arms ``tract`` and ``lr``; each value is an arm.
        settings: what else the runs depend on, such as a learning rate. Runs with other settings
            are other runs.
        out: folder for the runs and the page.

    Returns:
        The statistics and the paths of the files.

    Raises:
        TrActError: an argument is not accepted; or a run failed, in which case the others are
            compared and kept first.
    """
    if not callable(train):
        raise TrActTypeError(f"compare_runs takes a function; got {type(train).__name__}.")
    name = getattr(train, "__name__", type(train).__name__)
    recipe = make_function_recipe(name, settings or {})
    lams = parse_positive_numbers(_join(lam), "lam")
    chosen = parse_arms(_join(arms).replace(" ", "").split(","), lams)
    budgets = parse_whole_numbers(_join(epochs), "epochs")
    numbers = parse_whole_numbers(_join(seeds), "seeds")
    recipes = plan_loop(recipe, chosen, budgets, numbers)
    code = hash_code(train)

    def train_run(planned: Recipe, root: Path, report: EventHandler) -> dict[str, Any]:
        return train_function(planned, root, report, train, code)

    _check_place()
    results = run_all(place_runs(recipes, Path(out)), 1, choose_display(), trainer=train_run)
    records, failures = split_results(results)
    command = (
        f"trainact.lab.compare_runs({name}, arms={','.join(arm.name for arm in chosen)!r}, "
        f"seeds={list(numbers)}, epochs={list(budgets)})"
    )
    comparison = finish_comparison(records, Path(out), command, code=code) if records else None
    if failures or comparison is None:
        raise TrActError(
            f"{len(failures)} of {count(len(results), 'run')} failed; those that are finished are "
            f"kept in {out} and not repeated:\n" + "\n".join(failures)
        )
    return comparison


def split_results(results: Sequence[RunResult]) -> tuple[list[Record], list[str]]:
    """Return the records of the runs that ended, and a line for each that failed."""
    failed = [result for result in results if result.failure is not None]
    lines = [f"{name_run(result.run.recipe)}: {result.failure}" for result in failed]
    return [result.record for result in results if result.record is not None], lines


def finish_comparison(
    records: Sequence[Record], out: Path, command: str, jobs: int = 1, code: str = ""
) -> Comparison:
    """Write the pages of runs that ended into ``out`` and print the comparison.

    ``command`` reproduces it; ``code`` is the hash of the user's code, if the runs have one.
    """
    older = sum(record["model"].get("code", "") != code for record in records) if code else 0
    if older:
        print(
            f"trainact: the code has changed since {older} of {count(len(records), 'run')} ended. "
            f"They are kept; to repeat them, give another folder than {out}.",
            file=sys.stderr,
        )
    comparison = write_comparison(records, out, command, jobs)
    _print(comparison)
    return comparison


def _print(comparison: Comparison) -> None:
    """Print the table, the verdicts, the speed-ups and the path of the page."""
    answers = comparison.answers
    print_accuracy(answers)
    for budget, verdict in describe_results(answers):
        print(f"{count_epochs(budget)}: {verdict}")
    for speed_up in answers.speed_ups:
        print(describe_speed_up(speed_up))
    for message in answers.missing:
        print(message)
    if answers.jobs > 1:
        print(describe_timing(answers.jobs))
    print(f"Page with curves, cost and all runs: {comparison.folder / 'comparison.html'}")


def _check_place() -> None:
    """Check that this process may start runs of a user's loop."""
    if in_run():
        raise TrActError("a comparison cannot be started inside a run of another one.")
    if count_ranks() > 1:
        raise TrActValueError("compare_runs does not work under torchrun: a run has one process.")


def _join(values: Any) -> str:
    """Return values as the command line takes them, separated by commas."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        return str(values)
    return ",".join(map(str, values))
