"""A training run as typed data: what is trained on what, how, and with which seed.

A recipe has six tables. TOML holds the same names, so ``optimizer.lr`` means the same in a file, on
the command line and here. A plain run is the TrAct run's recipe with ``tract.enabled`` off.
"""

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, Literal

from trainact.errors import TrActValueError
from trainact.lab.fields import build_table, name_nearest, parse_value

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
class DataFields:
    """The images, how they are split, and what a training batch does to them."""

    name: str = "photos"  # photos, a named set, a folder, shards, an .npz file or a hub id
    folder: str = ""  # where a named set lies: cifar10, cifar100, imagenet, flowers102, ...
    classes: int = 0  # how many there must be; 0 for any number
    train_images: int = 0  # the first of a shuffle by class; 0 for all
    test_images: int = 0
    held_out: int = 0  # images taken out of training, to tune on
    evaluate_on: Literal["test", "held-out"] = "test"
    image_size: int = 0  # pixels of a side; 0 for the images' own
    storage: Literal["auto", "memory", "stream"] = "auto"
    batch_size: int = 128  # of the whole step, over all ranks and micro-batches
    drop_last: bool = False
    crop: Literal["none", "pad", "resized"] = "pad"
    crop_padding: int = 4
    crop_fill: Literal["black", "reflect"] = "black"  # what the padding shows
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"  # where images are scaled
    test_crop: float = 0.0  # side of the test image's middle; 0: 0.875 if crop is resized, else 1
    flip: bool = True
    rotation: float = 0.0  # degrees to either side
    policy: Literal["none", "autoaugment-cifar10", "three-augment", "rand-augment"] = "none"
    colour_jitter: float = 0.0  # largest change of brightness, contrast and saturation
    mixup: float = 0.0  # Beta(mixup, mixup) for a batch's mixture; 0 for none
    cutmix: float = 0.0  # likewise for the area of a box; with both a coin decides
    repeats: int = 1  # of an image, each augmented anew, in an epoch of a fraction of the images
    values: Literal["standard", "unit", "raw"] = "standard"  # or [0, 1], or [0, 255]
    mean: tuple[float, ...] = ()  # of values in [0, 1]; empty: measured on the training images
    std: tuple[float, ...] = ()
    workers: int = 0

    def find_single(self) -> str:
        """Return a field that only images read one by one can have; an empty text if none is set.

        >>> DataFields(crop="resized").find_single()
        "data.crop='resized'"
        """
        single = {
            "crop": self.crop == "resized",
            "crop_fill": self.crop_fill == "reflect",
            "interpolation": self.interpolation == "bicubic",
            "test_crop": self.test_crop not in (0.0, 1.0),
            "policy": self.policy in ("three-augment", "rand-augment"),
            "colour_jitter": self.colour_jitter > 0,
        }
        found = [name for name, is_single in single.items() if is_single]
        return f"data.{found[0]}={getattr(self, found[0])!r}" if found else ""


@dataclass(frozen=True)
class ModelFields:
    """The network, by name, and its keyword arguments."""

    name: str = "lab:resnet18-tract"
    arguments: dict[str, Any] = field(default_factory=dict)
    weights: str = ""  # file of initial weights; {pretraining} and {seed} in its name are filled in
    pretraining: str = ""  # the arm that the weights were trained in
    weights_strict: bool = True  # whether every weight but the classifier's must be in the file


@dataclass(frozen=True)
class TractFields:
    """The method; with ``enabled`` off everything else here has no effect."""

    enabled: bool = True
    lam: float = 0.1  # λ in the paper
    layers: tuple[str, ...] = ()  # empty: found by tracing
    sync: bool = False  # share the second moment over ranks
    moment: Literal["float32", "float64"] = "float32"  # of its products; float64 for raw pixels


@dataclass(frozen=True)
class OptimizerFields:
    """The loss and what minimises it."""

    name: Literal["sgd", "adam", "adamw", "lamb"] = "sgd"
    lr: float = 0.08
    momentum: float = 0.9
    nesterov: bool = False
    betas: tuple[float, ...] = (0.9, 0.999)
    eps: float = 0.0  # added to the denominator of Adam and LAMB; 0 for the optimizer's own
    weight_decay: float = 0.0
    decay_vectors: bool = True  # whether biases, norms, class token and positions decay too
    first_layer_lr: float = 1.0  # multiplies lr for the first layer's parameters
    first_layer_name: Literal["same", "sgd"] = "same"  # another optimizer for the first layer
    first_layer_sgd_lr: float = 0.08
    clip_norm: float = 0.0  # of the whole gradient; 0 for none
    label_smoothing: float = 0.0
    loss: Literal["cross-entropy", "binary"] = "cross-entropy"  # binary: of each class by itself


@dataclass(frozen=True)
class ScheduleFields:
    """The learning rate over time."""

    epochs: int = 5
    name: Literal["cosine", "steps", "constant"] = "cosine"
    warmup_epochs: float = 0.0
    warmup_from: float = 0.0  # the rate at the start of the warm-up
    cosine_over: Literal["rest", "run"] = "rest"  # of the warm-up, or all with it hidden beneath
    final_lr: float = 0.0
    milestones: tuple[float, ...] = ()  # epochs
    decay: float = 0.1  # at each milestone
    per: Literal["step", "epoch"] = "step"


@dataclass(frozen=True)
class RunFields:
    """The seed, and everything about the machine."""

    seed: int = 0
    arm: str = ""  # what this run is called in a comparison
    device: str = "auto"
    precision: Literal["no", "bf16", "fp16"] = "no"
    accumulation: int = 1  # micro-batches of a step
    compile: bool = False
    channels_last: bool = False
    ema: float = 0.0  # decay of an average of the weights; 0 for none
    checkpoint_seconds: float = 60.0
    keep_weights: bool = True  # write them when the run has ended
    tracker: Literal["none", "tensorboard", "trackio", "wandb"] = "none"
    smoke: bool = False  # a run that only shows that everything works


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
