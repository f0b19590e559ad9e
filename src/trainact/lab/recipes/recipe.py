"""Recipes: the complete description of a training run as typed data.

A recipe has six tables. TOML files, the command line and Python use the same names, for example
``optimizer.lr``. A plain run is the TrAct run's recipe with ``tract.enabled`` off.
"""

import dataclasses
import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w

from trainact.errors import TrActValueError
from trainact.lab.files import write_atomically
from trainact.lab.recipes.fields import (
    DataFields,
    ModelFields,
    OptimizerFields,
    RunFields,
    ScheduleFields,
    TractFields,
)
from trainact.lab.schema import build_table, parse_value
from trainact.lab.text import count, describe_unknown

__all__ = [
    "FIELDS_WITHOUT_EFFECT",
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
    "name_run",
    "read_recipe",
    "read_toml",
    "recipe_to_dict",
    "write_recipe",
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

    @property
    def arm(self) -> str:
        """Return the name of the run's arm."""
        return self.run.arm or ("tract" if self.tract.enabled else "plain")


TABLES: dict[str, Any] = {
    "data": DataFields,
    "model": ModelFields,
    "tract": TractFields,
    "optimizer": OptimizerFields,
    "schedule": ScheduleFields,
    "run": RunFields,
}
FIELDS_WITHOUT_EFFECT = {
    *("run.arm", "run.checkpoint_seconds", "run.keep_weights", "run.tracker"),
    *("data.workers", "data.folder"),
}
"""Fields that do not change what a run computes; a recipe's identity ignores them."""
FIELDS_ADDED_LATER = {
    "data": ("classes", "crop_fill", "interpolation", "test_crop", "colour_jitter", "mixup",
             "cutmix", "repeats"),
    "model": ("weights", "pretraining", "weights_strict"),
    "optimizer": ("eps", "decay_vectors", "loss"),
    "schedule": ("cosine_over",),
}  # fmt: skip
"""Fields that older recipes lack. A recipe's identity ignores them at their defaults, so that older
runs keep theirs."""


def make_recipe(tables: Mapping[str, Any], where: str = "the recipe") -> Recipe:
    """Return the recipe of nested tables, as TOML gives them.

    >>> make_recipe({"optimizer": {"lr": 0.1}}).optimizer.lr
    0.1

    Raises:
        TrActValueError: a table or key is unknown, or a value has the wrong type or range.
    """
    for name in tables:
        if name not in TABLES:
            raise TrActValueError(describe_unknown(name, TABLES, f"table of {where}"))
    return Recipe(
        **{
            name: build_table(cls, tables.get(name, {}), f"{where}, table {name}")
            for name, cls in TABLES.items()
        }
    )


def change_recipe(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
    """Return the recipe with fields set by dotted name; text values are read as TOML.

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
            raise TrActValueError(describe_unknown(dotted, known, "field of a recipe"))
        given = parse_value(value) if isinstance(value, str) else value
        if key.startswith("arguments."):
            tables[table].setdefault("arguments", {})[key.removeprefix("arguments.")] = given
        else:
            tables[table][key] = given
    return make_recipe(tables)


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
    """Return ten hexadecimal digits; recipes that compute different numbers have different ones."""
    tables = recipe_to_dict(recipe)
    for dotted in FIELDS_WITHOUT_EFFECT:
        table, key = dotted.split(".")
        del tables[table][key]
    for table, keys in FIELDS_ADDED_LATER.items():
        defaults = TABLES[table]()
        for key in keys:
            if tables[table][key] == getattr(defaults, key):
                del tables[table][key]
    text = json.dumps(tables, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def name_run(recipe: Recipe) -> str:
    """Return the name of a run in messages.

    >>> name_run(Recipe())
    'tract, 5 epochs, seed 0'
    """
    return f"{recipe.arm}, {count(recipe.schedule.epochs, 'epoch')}, seed {recipe.run.seed}"


def read_toml(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file.

    Raises:
        TrActValueError: the file cannot be read, or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise TrActValueError(f"{path} cannot be read as TOML: {error}.") from error


def read_recipe(path: Path) -> Recipe:
    """Return the recipe of a TOML file.

    Raises:
        TrActValueError: the file cannot be read, or is not a recipe.
    """
    return make_recipe(read_toml(path), str(path))


def write_recipe(recipe: Recipe, path: Path) -> None:
    """Write all fields, including those at their defaults, because defaults may change later."""
    write_atomically(path, tomli_w.dumps(recipe_to_dict(recipe)).encode())


def _check(recipe: Recipe) -> None:
    """Check the ranges of fields and the fields that depend on each other."""
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
    for table, row in recipe_to_dict(recipe).items():
        for key, value in row.items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if is_number and not 0 <= value < float("inf"):
                raise TrActValueError(
                    f"{table}.{key} must be finite and not negative; got {value}."
                )
    if data.evaluate_on == "held-out" and not data.held_out:
        raise TrActValueError(
            "data.evaluate_on is 'held-out', but data.held_out is 0: set it to the number of "
            "training images to set aside for tuning."
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
            f"data.test_crop is a fraction of the side, at most 1; got {data.test_crop}."
        )
    if data.colour_jitter > 1:
        raise TrActValueError(f"data.colour_jitter is at most 1; got {data.colour_jitter}.")
    if optimizer.loss == "binary" and optimizer.label_smoothing:
        raise TrActValueError(
            "optimizer.loss='binary' needs targets of 0 and 1; set optimizer.label_smoothing=0."
        )
    if run.ema >= 1:
        raise TrActValueError(f"run.ema is a decay in [0, 1); got {run.ema}.")
    if run.accumulation > data.batch_size:
        raise TrActValueError(
            f"run.accumulation ({run.accumulation}) exceeds the images of a batch "
            f"({data.batch_size})."
        )
    if optimizer.first_layer_name == "sgd" and optimizer.name == "sgd":
        raise TrActValueError(
            "optimizer.first_layer_name='sgd' has no effect with optimizer.name='sgd'; set "
            "optimizer.first_layer_lr to change the first layer's learning rate."
        )
