"""Finished runs: records, checked and read into typed data.

Records that cannot be compared with each other are refused here, before any statistic.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from trainact.errors import TrActValueError
from trainact.lab.metric import TOP5, read_metric, read_percent
from trainact.lab.recipes.arms import BASELINE, Arm, arm_of_recipe
from trainact.lab.recipes.differences import FieldDifference, compare_tables
from trainact.lab.recipes.recipe import (
    FIELDS_WITHOUT_EFFECT,
    can_split_batches,
    fill_later_fields,
    make_recipe,
)
from trainact.lab.records.record import FORMAT, Record, list_environments
from trainact.lab.text import count_epochs

__all__ = ["FinishedRun", "check_pair", "list_differences", "read_runs"]

FREE_FIELDS = FIELDS_WITHOUT_EFFECT | {"run.seed", "run.device"}
"""Recipe fields that may differ between the seeds of one arm at one budget."""
ACCUMULATION = "run.accumulation"
ARM_FIELDS = {
    *("tract.lam", "tract.layers", "tract.sync", "tract.moment"),
    *("model.pretraining", "model.weights"),
}
"""Recipe fields in which any standard arm may differ from plain, besides those it names."""


@dataclass(frozen=True)
class FinishedRun:
    """One finished run: its arm, budget and seed, its metric after every epoch, and its inputs."""

    arm: Arm
    budget: int  # epochs of its full schedule
    seed: int
    kind: str  # full or smoke
    complete: bool
    failure: str | None
    epochs: tuple[int, ...]
    accuracies: tuple[float, ...]  # percent of the test images, or the metric, after each epoch
    metric: str  # name of the metric
    top5: tuple[float | None, ...]  # percent of the test images; None where not recorded
    gradient_norms: tuple[float | None, ...]  # first layer, per epoch
    train_seconds: tuple[float, ...]
    seconds: float
    sessions: int
    recipe_id: str
    initial_weights: str
    order: str
    fingerprint: str
    machine: str  # processor, GPU and threads of all its sessions
    pretraining: str = ""  # the arm that trained the initial weights
    arguments: str = ""  # of the network
    classes: int = 0  # of the data; 0 if unknown

    @property
    def accuracy(self) -> float | None:
        """Return the accuracy after the last epoch in percent; None if the run diverged."""
        return self.accuracies[-1] if self.complete else None

    @property
    def label(self) -> str:
        """Return arm, budget and seed, for messages."""
        return f"{self.arm.name}, {count_epochs(self.budget)}, seed {self.seed}"


def read_runs(records: Sequence[Record]) -> tuple[FinishedRun, ...]:
    """Return the runs, ordered by arm, budget and seed.

    Raises:
        TrActValueError: a record lacks a key or occurs twice, or the records mix networks, metrics,
            full and smoke runs, or two recipes for one arm and budget.
    """
    runs = [_read(record, number) for number, record in enumerate(records, start=1)]
    networks = sorted({str(record["model"].get("name")) for record in records})
    if len(networks) > 1:
        raise TrActValueError(
            f"records of {len(networks)} networks ({', '.join(networks)}) cannot be compared: a "
            "difference between networks is not an effect of TrAct. Give records of one network."
        )
    kinds = Counter(run.kind for run in runs)
    if len(kinds) > 1:
        raise TrActValueError(
            f"{kinds['smoke']} smoke and {kinds['full']} full records cannot be compared: the "
            "accuracy of a smoke run means nothing. Give records of one kind."
        )
    metrics = sorted({run.metric for run in runs})
    if len(metrics) > 1:
        raise TrActValueError(
            f"runs with the metrics {' and '.join(metrics)} cannot be compared; give records of "
            "one experiment."
        )
    for label, times in Counter(run.label for run in runs).items():
        if times > 1:
            raise TrActValueError(f"{times} records are of {label}; give one.")
    _check_recipes(records)
    _check_arms(records)
    keys = {run.arm: run.arm.sort_key for run in reversed(runs)}
    return tuple(sorted(runs, key=lambda run: (keys[run.arm], run.budget, run.seed)))


def check_pair(one: FinishedRun, other: FinishedRun) -> None:
    """Check that two runs of one seed differ only in what their arms change.

    Raises:
        TrActValueError: they differ in data, in initial weights although network and pre-training
            are the same, or in the order of batches although the budget is the same. Runs of
            different budgets on different machines may differ in initial weights: processors round
            the same random numbers differently.
    """
    same_start = (one.pretraining, one.arguments) == (other.pretraining, other.arguments)
    may_round = one.budget != other.budget and one.machine != other.machine
    shared = {
        "initial weights (model.initial_weights)": one.initial_weights == other.initial_weights
        or not same_start
        or may_round,
        "data (data.fingerprint)": one.fingerprint == other.fingerprint,
        "order of batches (order)": one.budget != other.budget or one.order == other.order,
    }
    differing = [what for what, same in shared.items() if not same]
    if differing:
        raise TrActValueError(
            f"the runs ({one.label}) and ({other.label}) are not a pair: they differ in "
            f"{' and in '.join(differing)}. Train both again with the same recipe and seed."
        )


def list_differences(one: Record, other: Record) -> list[FieldDifference]:
    """Return the recipe fields in which two records differ, except those free for every run.

    Fields that were added after a record was written have their defaults in it. Micro-batches are
    free if they change a run by rounding alone.
    """
    mine, yours = (fill_later_fields(record["recipe"]) for record in (one, other))
    found = compare_tables(mine, yours, FREE_FIELDS)
    if any(d.field == ACCUMULATION for d in found) and _can_split(one) and _can_split(other):
        found = [difference for difference in found if difference.field != ACCUMULATION]
    return found


def _can_split(record: Record) -> bool:
    return can_split_batches(make_recipe(record["recipe"]))


def _check_recipes(records: Sequence[Record]) -> None:
    first: dict[tuple[str, int], Record] = {}
    for record in records:
        before = first.setdefault((record["arm"], record["budget"]), record)
        title = f"seed {before['seed']}"
        differing = [d.describe(title) for d in list_differences(record, before)]
        if differing:
            raise TrActValueError(
                f"runs of {record['arm']} with {count_epochs(record['budget'])} do not share a "
                f"recipe. Seed {record['seed']} has {', '.join(differing)}. Give records of one "
                "recipe."
            )


def _check_arms(records: Sequence[Record]) -> None:
    """Check that the standard arms differ from plain only in what they name and ``ARM_FIELDS``."""
    plain = {record["budget"]: record for record in records if record["arm"] == BASELINE}
    for record in records:
        arm = _read_arm(record)
        if record["budget"] not in plain or arm.kind == "other":
            continue
        found = list_differences(record, plain[record["budget"]])
        differing = [d.describe(BASELINE) for d in found if not d.is_in(ARM_FIELDS | arm.claims)]
        if differing:
            raise TrActValueError(
                f"{record['arm']} and plain do not share a recipe at "
                f"{count_epochs(record['budget'])}, so their difference is not an effect of the "
                f"arm. {record['arm']} has {', '.join(differing)}. Train both with the same recipe."
            )


def _read_arm(record: Record) -> Arm:
    return arm_of_recipe(record["arm"], record["recipe"])


def _read(record: Record, number: int) -> FinishedRun:
    try:
        run = _build(record)
    except (KeyError, TypeError, ValueError, ZeroDivisionError, AttributeError) as error:
        what = f"lacks {error}" if isinstance(error, KeyError) else f"cannot be read: {error}"
        raise TrActValueError(f"record {number} of the comparison {what}.") from None
    if run.complete and not run.epochs:
        raise TrActValueError(f"the run ({run.label}) is complete but has no epochs.")
    if run.complete and run.kind == "full" and run.epochs[-1] != run.budget:
        raise TrActValueError(
            f"the run ({run.label}) is complete but ended after epoch {run.epochs[-1]}."
        )
    return run


def _build(record: Record) -> FinishedRun:
    choices = {"format": (FORMAT,), "status": ("complete", "diverged"), "kind": ("full", "smoke")}
    for key, known in choices.items():
        if record[key] not in known:
            raise ValueError(f"{key} is {record[key]!r}, not {' or '.join(map(str, known))}")
    epochs, metric = record["epochs"], read_metric(record)
    machines = {
        str([environment.get(key) for key in ("processor", "accelerator", "threads")])
        for environment in list_environments(record)
    }
    return FinishedRun(
        arm=_read_arm(record),
        budget=int(record["budget"]),
        seed=int(record["seed"]),
        kind=record["kind"],
        complete=record["status"] == "complete",
        failure=record.get("failure"),
        epochs=tuple(int(row["epoch"]) for row in epochs),
        accuracies=tuple(read_percent(metric, row) for row in epochs),
        metric=metric.name,
        top5=tuple(read_percent(TOP5, row) if TOP5.field in row else None for row in epochs),
        gradient_norms=tuple(row.get("first_layer_grad_norm") for row in epochs),
        train_seconds=tuple(float(row["train_seconds"]) for row in epochs),
        seconds=float(record["seconds"]),
        sessions=int(record.get("sessions", 1)),
        recipe_id=str(record["recipe_id"]),
        initial_weights=record["model"]["initial_weights"],
        order=record["order"],
        fingerprint=record["data"]["fingerprint"],
        pretraining=str(record["recipe"].get("model", {}).get("pretraining", "")),
        arguments=str(record["recipe"].get("model", {}).get("arguments", "")),
        classes=int(record["data"].get("classes", 0)),
        machine=" ".join(sorted(machines)),
    )
