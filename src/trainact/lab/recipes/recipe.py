"""A training run as typed data: what is trained on what, how, and with which seed.

A recipe has six tables. TOML holds the same names, so ``optimizer.lr`` means the same in a file, on
the command line and here. A plain run is the TrAct run's recipe with ``tract.enabled`` off.
"""

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from trainact.errors import TrActValueError
from trainact.lab.recipes.fields import (
    DataFields,
    ModelFields,
    OptimizerFields,
    RunFields,
    ScheduleFields,
    TractFields,
)
from trainact.lab.schema import build_table, name_nearest, parse_value

__all__ = [
    "DataFields",
    "ModelFields",
    "OptimizerFields",
    "Recipe",
    "RunFields",
    "ScheduleFields",
    "TractFields",
    "change_recipe",
    "identify",
    "make_recipe",
    "recipe_to_dict",
]


@dataclass(frozen=True)
class Recipe:
    """Everything that a run depends on."""

    data: DataFields = field(default_factory=DataFields)
    model: ModelFields = field(default_factory=ModelFields)
    tract: TractFields = field(default_factory=TractFields)
    optimizer: OptimizerFields = field(default_factory=OptimizerFields)
    schedule: ScheduleFields = field(default_factory=ScheduleFields)
    run: RunFields = field(default_factory=RunFields)

    def __post_init__(self) -> None:
        _check(self)


TABLES: dict[str, Any] = {
    "data": DataFields,
    "model": ModelFields,
    "tract": TractFields,
    "optimizer": OptimizerFields,
    "schedule": ScheduleFields,
    "run": RunFields,
}
HARMLESS = {
    *("run.arm", "run.checkpoint_seconds", "run.keep_weights", "run.tracker"),
    *("data.workers", "data.folder"),
}
"""Fields that do not change what a run computes, and so not what it is."""
LATER = {
    "data": ("classes", "crop_fill", "interpolation", "test_crop", "colour_jitter", "mixup",
             "cutmix", "repeats"),
    "model": ("weights", "pretraining", "weights_strict"),
    "optimizer": ("eps", "decay_vectors", "loss"),
    "schedule": ("cosine_over",),
}  # fmt: skip
"""Fields that runs of before did not have: at their defaults they are no part of an identity."""


def make_recipe(tables: dict[str, Any], where: str = "the recipe") -> Recipe:
    """Return the recipe of nested tables, as they come from TOML.

    >>> make_recipe({"optimizer": {"lr": 0.1}}).optimizer.lr
    0.1

    Raises:
        TrActValueError: a table or key is unknown, or a value is of the wrong kind or out of range.
    """
    for name in tables:
        if name not in TABLES:
            raise TrActValueError(name_nearest(name, TABLES, f"table of {where}"))
    return Recipe(
        **{
            name: build_table(TABLES[name], tables.get(name, {}), f"{where}, table {name}")
            for name in TABLES
        }
    )


def change_recipe(recipe: Recipe, changes: dict[str, Any]) -> Recipe:
    """Return the recipe with fields set by their dotted names; text is read as TOML would be.

    >>> change_recipe(Recipe(), {"optimizer.lr": "0.3", "model.arguments.width": 16}).optimizer.lr
    0.3

    Raises:
        TrActValueError: there is no such field, or the value does not fit it.
    """
    tables = recipe_to_dict(recipe)
    for dotted, value in changes.items():
        table, _, key = dotted.partition(".")
        if table not in TABLES or not key:
            known = [f"{t}.{f.name}" for t in TABLES for f in dataclasses.fields(TABLES[t])]
            raise TrActValueError(name_nearest(dotted, known, "field of a recipe"))
        given = parse_value(value) if isinstance(value, str) else value
        if key.startswith("arguments."):
            tables[table].setdefault("arguments", {})[key.removeprefix("arguments.")] = given
        else:
            tables[table][key] = given
    return make_recipe(tables, "the recipe")


def recipe_to_dict(recipe: Recipe) -> dict[str, dict[str, Any]]:
    """Return nested plain tables, ready for TOML or JSON."""
    tables = dataclasses.asdict(recipe)
    return {
        table: {
            key: list(value) if isinstance(value, tuple) else value for key, value in row.items()
        }
        for table, row in tables.items()
    }


def identify(recipe: Recipe) -> str:
    """Return ten letters that differ wherever two recipes would compute different numbers."""
    tables = recipe_to_dict(recipe)
    for dotted in HARMLESS:
        table, key = dotted.split(".")
        del tables[table][key]
    for table, keys in LATER.items():
        usual = TABLES[table]()
        for key in keys:
            if tables[table][key] == getattr(usual, key):
                del tables[table][key]
    text = json.dumps(tables, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def _check(recipe: Recipe) -> None:
    """Check what a single field's type cannot say."""
    data, optimizer, schedule, run = recipe.data, recipe.optimizer, recipe.schedule, recipe.run
    positive = {
        "data.batch_size": data.batch_size,
        "data.repeats": data.repeats,
        "schedule.epochs": schedule.epochs,
        "run.accumulation": run.accumulation,
        "optimizer.lr": optimizer.lr,
        "optimizer.first_layer_lr": optimizer.first_layer_lr,
        "optimizer.first_layer_sgd_lr": optimizer.first_layer_sgd_lr,
        "tract.lam": recipe.tract.lam,
        "schedule.decay": schedule.decay,
        "run.checkpoint_seconds": run.checkpoint_seconds,
    }
    for name, value in positive.items():
        if not value > 0:
            raise TrActValueError(f"{name} must be positive; got {value}.")
    not_negative = {
        f"{table}.{key}": value
        for table, row in recipe_to_dict(recipe).items()
        for key, value in row.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    for name, value in not_negative.items():
        if not 0 <= value < float("inf"):
            raise TrActValueError(f"{name} must be finite and not negative; got {value}.")
    if data.evaluate_on == "held-out" and not data.held_out:
        raise TrActValueError(
            "data.evaluate_on is 'held-out', but data.held_out is 0: set it to the number of "
            "training images to keep for tuning."
        )
    if len(optimizer.betas) != 2 or not all(0 <= beta < 1 for beta in optimizer.betas):
        raise TrActValueError(
            f"optimizer.betas takes two numbers in [0, 1); got {optimizer.betas}."
        )
    if len(data.mean) != len(data.std):
        raise TrActValueError(
            f"data.mean and data.std need the same number of channels; got {data.mean} and "
            f"{data.std}."
        )
    if data.test_crop > 1:
        raise TrActValueError(
            f"data.test_crop is a part of the side, up to 1; got {data.test_crop}."
        )
    if data.colour_jitter > 1:
        raise TrActValueError(f"data.colour_jitter is at most 1; got {data.colour_jitter}.")
    if optimizer.loss == "binary" and optimizer.label_smoothing:
        raise TrActValueError(
            "optimizer.loss='binary' has targets of 0 and 1; set optimizer.label_smoothing=0."
        )
    if run.ema >= 1:
        raise TrActValueError(f"run.ema is a decay in [0, 1); got {run.ema}.")
    if run.accumulation > data.batch_size:
        raise TrActValueError(
            f"run.accumulation ({run.accumulation}) is more than the images of a batch "
            f"({data.batch_size})."
        )
    if optimizer.first_layer_name == "sgd" and optimizer.name == "sgd":
        raise TrActValueError(
            "optimizer.first_layer_name='sgd' has no meaning where optimizer.name is 'sgd'; use "
            "optimizer.first_layer_lr for another rate."
        )
