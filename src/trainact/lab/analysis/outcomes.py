"""What a finished run says: its record, checked, as typed data.

Records that do not belong together are refused here, before any number is made from them.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainact.errors import TrActValueError
from trainact.lab.metric import read_metric, read_percent
from trainact.lab.recipes.arms import BASELINE, order_arms
from trainact.lab.recipes.recipe import HARMLESS
from trainact.lab.text import count_epochs

__all__ = [
    "Outcome",
    "Record",
    "check_pair",
    "list_differences",
    "read_outcomes",
]

Record = Mapping[str, Any]
FORMAT = 1
FREE_FIELDS = HARMLESS | {"run.seed", "run.device"}
"""Fields of a recipe that may differ between the seeds of one arm at one budget."""
WHAT_ARMS_CHANGE = ("tract.", "optimizer.first_layer_lr ", "model.pretraining ", "model.weights ")
"""How the fields begin in which the usual arms differ from plain."""


@dataclass(frozen=True)
class Outcome:
    """One run: which it was, what it reached after every epoch, and what it started from."""

    arm: str
    budget: int  # epochs of its full schedule
    seed: int
    kind: str  # full or smoke
    complete: bool
    failure: str | None
    epochs: tuple[int, ...]
    accuracies: tuple[float, ...]  # percent of the test images, after each epoch, or the metric
    metric: str  # its name: accuracy, or another one
    gradient_norms: tuple[float | None, ...]  # of the first layer
    train_seconds: tuple[float, ...]
    seconds: float
    sessions: int
    recipe_id: str
    initial_weights: str
    order: str
    fingerprint: str
    machine: str
    pretraining: str = ""  # the arm that its initial weights were trained in
    arguments: str = ""  # of its network

    @property
    def accuracy(self) -> float | None:
        """Return percent correct after the last epoch; None if the run diverged."""
        return self.accuracies[-1] if self.complete else None

    @property
    def label(self) -> str:
        """Return what names this run in a message."""
        return f"{self.arm}, {count_epochs(self.budget)}, seed {self.seed}"


def read_outcomes(records: Sequence[Record]) -> tuple[Outcome, ...]:
    """Return the runs in order of arm, budget and seed.

    Raises:
        TrActValueError: a record lacks something, occurs twice, or does not belong to the others
            (another network, smoke runs among full ones, one arm and budget with two recipes).
    """
    outcomes = [_read(record, number) for number, record in enumerate(records, start=1)]
    networks = sorted({str(record["model"].get("name")) for record in records})
    if len(networks) > 1:
        raise TrActValueError(
            f"records of {len(networks)} networks ({', '.join(networks)}) cannot be compared: a "
            "difference between two networks says nothing of TrAct. Give records of one network."
        )
    kinds = Counter(outcome.kind for outcome in outcomes)
    if len(kinds) > 1:
        raise TrActValueError(
            f"{kinds['smoke']} smoke and {kinds['full']} full records cannot be compared: a smoke "
            "run says nothing about accuracy. Give records of one kind."
        )
    metrics = sorted({outcome.metric for outcome in outcomes})
    if len(metrics) > 1:
        raise TrActValueError(
            f"runs judged by {' and by '.join(metrics)} cannot be compared; give records of one "
            "experiment."
        )
    for key, times in Counter((o.arm, o.budget, o.seed) for o in outcomes).items():
        if times > 1:
            raise TrActValueError(
                f"{times} records are of {key[0]}, {count_epochs(key[1])}, seed {key[2]}; give one."
            )
    _check_recipes(records)
    _check_arms(records)
    arms = order_arms(outcome.arm for outcome in outcomes)
    return tuple(sorted(outcomes, key=lambda o: (arms.index(o.arm), o.budget, o.seed)))


def check_pair(one: Outcome, other: Outcome) -> None:
    """Check that two runs of one seed differ in nothing but what their arms change.

    Raises:
        TrActValueError: they started from other weights, though neither their network nor its
            pre-training is another, or saw other data; or, at one budget, in another order.
    """
    same_start = (one.pretraining, one.arguments) == (other.pretraining, other.arguments)
    shared = {
        "initial weights (model.initial_weights)": one.initial_weights == other.initial_weights
        or not same_start,
        "data (data.fingerprint)": one.fingerprint == other.fingerprint,
        "order of batches (order)": one.budget != other.budget or one.order == other.order,
    }
    differing = [what for what, same in shared.items() if not same]
    if differing:
        raise TrActValueError(
            f"the runs ({one.label}) and ({other.label}) are no pair: they differ in "
            f"{' and in '.join(differing)}. Train both again with the same recipe and seed."
        )


def list_differences(one: Record, other: Record, title: str) -> list[str]:
    """Return the fields of two records' recipes that differ, as ``name value (title: value)``."""
    mine, yours = _flatten(one["recipe"]), _flatten(other["recipe"])
    return [
        f"{name} {mine.get(name)} ({title}: {yours.get(name)})"
        for name in sorted(mine.keys() | yours.keys())
        if mine.get(name) != yours.get(name) and name not in FREE_FIELDS
    ]


def _check_recipes(records: Sequence[Record]) -> None:
    first: dict[tuple[str, int], Record] = {}
    for record in records:
        before = first.setdefault((record["arm"], record["budget"]), record)
        differing = list_differences(record, before, f"seed {before['seed']}")
        if differing:
            raise TrActValueError(
                f"runs of {record['arm']} with {count_epochs(record['budget'])} do not share a "
                f"recipe. Seed {record['seed']} has {', '.join(differing)}."
            )


def _check_arms(records: Sequence[Record]) -> None:
    """Check that plain, TrAct and other rates of the first layer differ in nothing else."""
    usual = re.compile(rf"{BASELINE}|tract|tract-.*|lr-.*")
    plain = {record["budget"]: record for record in records if record["arm"] == BASELINE}
    for record in records:
        if record["budget"] not in plain or not usual.fullmatch(record["arm"]):
            continue
        found = list_differences(record, plain[record["budget"]], BASELINE)
        differing = [told for told in found if not told.startswith(WHAT_ARMS_CHANGE)]
        if differing:
            raise TrActValueError(
                f"{record['arm']} and plain do not share a recipe at "
                f"{count_epochs(record['budget'])}, so that a difference says nothing of TrAct. "
                f"{record['arm']} has {', '.join(differing)}."
            )


def _flatten(tables: Mapping[str, Any], place: str = "") -> dict[str, Any]:
    """Return values by dotted names, those of a network's arguments too."""
    flat: dict[str, Any] = {}
    for key, value in tables.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{place}{key}.")
        else:
            flat[f"{place}{key}"] = value
    return flat


def _read(record: Record, number: int) -> Outcome:
    try:
        outcome = _build(record)
    except (KeyError, TypeError, ValueError, ZeroDivisionError, AttributeError) as error:
        what = f"lacks {error}" if isinstance(error, KeyError) else f"cannot be read: {error}"
        raise TrActValueError(f"record {number} of the comparison {what}.") from None
    if outcome.complete and not outcome.epochs:
        raise TrActValueError(f"the run ({outcome.label}) is complete but has no epochs.")
    if outcome.complete and outcome.kind == "full" and outcome.epochs[-1] != outcome.budget:
        raise TrActValueError(
            f"the run ({outcome.label}) is complete but ended after epoch {outcome.epochs[-1]}."
        )
    return outcome


def _build(record: Record) -> Outcome:
    choices = {"format": (FORMAT,), "status": ("complete", "diverged"), "kind": ("full", "smoke")}
    for key, known in choices.items():
        if record[key] not in known:
            raise ValueError(f"{key} is {record[key]!r}, not {' or '.join(map(str, known))}")
    epochs, environment = record["epochs"], record["environment"]
    metric = read_metric(record)
    return Outcome(
        arm=str(record["arm"]),
        budget=int(record["budget"]),
        seed=int(record["seed"]),
        kind=record["kind"],
        complete=record["status"] == "complete",
        failure=record.get("failure"),
        epochs=tuple(int(row["epoch"]) for row in epochs),
        accuracies=tuple(read_percent(metric, row) for row in epochs),
        metric=metric.name,
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
        machine=str([environment.get(key) for key in ("processor", "accelerator", "threads")]),
    )
