"""Checks of a recipe: the range of each field, and fields that depend on each other."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trainact.errors import TrActTypeError, TrActValueError

if TYPE_CHECKING:
    from trainact.lab.recipes.recipe import OptimizerFields, Recipe, ScheduleFields, TractFields

__all__ = ["check_recipe"]

POSITIVE = {
    *("data.batch_size", "data.repeats", "schedule.epochs", "schedule.decay", "tract.lam"),
    *("optimizer.lr", "optimizer.first_layer_lr", "optimizer.first_layer_sgd_lr"),
    *("optimizer.norm_bias_lr", "optimizer.muon_lr", "model.start_images"),
    *("data.std", "run.accumulation", "run.checkpoint_seconds"),
}

LONGEST_ARM = 150


def check_recipe(recipe: "Recipe", tables: Mapping[str, Mapping[str, Any]]) -> None:
    """Check the ranges of fields and the fields that depend on each other.

    ``tables`` has all fields by table and name.

    Raises:
        TrActValueError: a field is out of its range, or two fields contradict each other.
        TrActTypeError: an argument of the network cannot be written to a file.
    """
    data, optimizer, run = recipe.data, recipe.optimizer, recipe.run
    for table, row in tables.items():
        for key, value in row.items():
            name = f"{table}.{key}"
            for number in value if isinstance(value, list) else [value]:
                if isinstance(number, int | float):
                    _require(
                        number > 0 or name not in POSITIVE,
                        f"{name} must be positive; got {number}.",
                    )
                    message = f"{name} must be finite and not negative; got {number}."
                    _require(0 <= number < float("inf"), message)
    _check_names(recipe)
    _require(
        data.evaluate_on == "test" or data.held_out > 0,
        "data.evaluate_on is 'held-out', but data.held_out is 0: set it to the number of training "
        "images to set aside for tuning.",
    )
    betas, accumulation = optimizer.betas, run.accumulation
    _require(
        len(betas) == 2 and all(0 <= beta < 1 for beta in betas),
        f"optimizer.betas takes two numbers in [0, 1); got {betas}.",
    )
    _require(
        len(data.mean) == len(data.std),
        f"data.mean and data.std need the same number of channels; got {data.mean}, {data.std}.",
    )
    _require(
        data.test_crop <= 1,
        f"data.test_crop is a fraction of the side, at most 1; got {data.test_crop}.",
    )
    jitter = data.colour_jitter
    _require(jitter <= 1, f"data.colour_jitter is at most 1; got {jitter}.")
    momentum, smoothing = optimizer.momentum, optimizer.label_smoothing
    _require(momentum < 1, f"optimizer.momentum is in [0, 1); got {momentum}.")
    _require(
        not optimizer.nesterov or momentum > 0,
        "optimizer.nesterov needs momentum: set optimizer.momentum above 0, such as 0.9, or "
        "optimizer.nesterov=false; got optimizer.momentum=0.",
    )
    _require(
        smoothing < 1,
        f"optimizer.label_smoothing is the share taken from the label, in [0, 1); got {smoothing}.",
    )
    _require(
        optimizer.loss != "binary" or not smoothing,
        "optimizer.loss='binary' needs targets of 0 and 1; set optimizer.label_smoothing=0.",
    )
    _check_speed(optimizer, recipe.schedule)
    _require(
        optimizer.smoothing_over == "all" or smoothing <= 0.5,
        "optimizer.smoothing_over='others' leaves the label the largest share: "
        f"optimizer.label_smoothing is at most 0.5; got {smoothing}.",
    )
    _require(run.ema < 1, f"run.ema is a decay in [0, 1); got {run.ema}.")
    _require(
        accumulation <= data.batch_size,
        f"run.accumulation ({accumulation}) exceeds the images of a batch ({data.batch_size}).",
    )
    model = recipe.model
    _require(
        model.start == "default" or not model.is_pretrained,
        f"model.start={model.start!r} would replace the first layer's pretrained weights; use arms "
        "without a start, such as plain,tract.",
    )
    _check_first_layer(recipe.tract, optimizer)


def _check_names(recipe: "Recipe") -> None:
    """Check what becomes a part of a path or of a file: the arm and the network's arguments."""
    arm = recipe.run.arm
    _require(
        arm.isprintable() and not set(arm) & set("/\\") and len(arm.encode()) <= LONGEST_ARM,
        f"run.arm names a folder: it takes at most {LONGEST_ARM} bytes of printable characters, "
        f"without slashes; got {arm[:LONGEST_ARM]!r}.",
    )
    try:
        json.dumps(recipe.model.arguments)
    except (TypeError, ValueError) as error:
        raise TrActTypeError(
            f"model.arguments takes numbers, text, lists and tables: {error}."
        ) from error


def _check_first_layer(tract: "TractFields", optimizer: "OptimizerFields") -> None:
    """Check that the first layer's gradient and its optimizer do not contradict each other."""
    rule, own = optimizer.first_layer_rule, optimizer.first_layer_name
    _require(
        own != "sgd" or optimizer.name != "sgd",
        "optimizer.first_layer_name='sgd' has no effect with optimizer.name='sgd'; set "
        "optimizer.first_layer_lr to change the first layer's learning rate.",
    )
    _require(
        rule == "none" or not tract.enabled,
        f"optimizer.first_layer_rule={rule!r} replaces TrAct's gradient; set tract.enabled=false, "
        "or optimizer.first_layer_rule=none.",
    )
    _require(
        own != "foof" or not tract.enabled,
        "optimizer.first_layer_name='foof' would apply the inverse second moment a second time; "
        "set tract.enabled=false.",
    )
    matrix_optimizers = ("foof", "asgo", "muon")
    _require(
        rule == "none" or own not in matrix_optimizers,
        f"optimizer.first_layer_rule={rule!r} and optimizer.first_layer_name={own!r} are two rules "
        "for one gradient; set one of them.",
    )
    trains = "TrAct" if tract.enabled else rule if own == "same" else own
    _require(
        not optimizer.first_layer_frozen or trains == "none",
        f"optimizer.first_layer_frozen leaves {trains!r} no weight to train; set it to false, or "
        "tract.enabled=false, optimizer.first_layer_name=same and optimizer.first_layer_rule=none.",
    )
    _require(
        not optimizer.muon_normalise or optimizer.body == "muon",
        "optimizer.muon_normalise scales the layers that Muon trains: set optimizer.body='muon'.",
    )
    _require(
        own != "muon" or optimizer.body == "muon" or optimizer.muon_lr == type(optimizer).muon_lr,
        f"optimizer.muon_lr is the rate of a Muon body; got {optimizer.muon_lr}. A Muon first "
        "layer has the rate optimizer.lr times optimizer.first_layer_lr: set these instead.",
    )
    _require(
        optimizer.muon_momentum < 1,
        f"optimizer.muon_momentum is in [0, 1); got {optimizer.muon_momentum}.",
    )
    _require(
        tract.moment_decay < 1,
        f"tract.moment_decay is a decay in [0, 1); got {tract.moment_decay}.",
    )


def _check_speed(optimizer: "OptimizerFields", schedule: "ScheduleFields") -> None:
    """Check decoupled units, the lookahead average and the triangular schedule."""
    _require(
        optimizer.units == "step"
        or (optimizer.name == "sgd" and optimizer.nesterov and optimizer.reduction == "sum"),
        "optimizer.units='decoupled' is defined for Nesterov SGD on the summed loss: set "
        "optimizer.name='sgd', optimizer.nesterov=true and optimizer.reduction='sum'.",
    )
    _require(
        optimizer.units == "step" or optimizer.first_layer_name == "same",
        "optimizer.units='decoupled' is not defined for optimizer.first_layer_name="
        f"{optimizer.first_layer_name!r}: the recipe's rate would be far too large for it.",
    )
    _require(
        not optimizer.lookahead_steps or optimizer.lookahead_decay <= 1,
        f"optimizer.lookahead_decay is at most 1; got {optimizer.lookahead_decay}.",
    )
    if schedule.name == "triangle":
        _require(
            0 < schedule.triangle_peak < 1,
            "schedule.triangle_peak is a part of the run between 0 and 1; got "
            f"{schedule.triangle_peak}.",
        )
        _require(
            not schedule.warmup_epochs,
            "schedule.name='triangle' begins with its own warm-up: set schedule.warmup_epochs=0.",
        )


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise TrActValueError(message)
