"""Recipes: the complete description of a training run as typed data.

A recipe has six tables. TOML files, the command line and Python use the same names, for example
``optimizer.lr``. A plain run is the TrAct run's recipe with ``tract.enabled`` off.
"""

import copy
import dataclasses
import functools
import hashlib
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import tomli_w

from trainact.defaults import DEFAULT_LAM
from trainact.errors import TrActValueError
from trainact.lab.files import write_atomically
from trainact.lab.recipes.checks import check_recipe
from trainact.lab.schema import build_table, check_known, parse_value
from trainact.lab.text import count_epochs

__all__ = [
    "FIELDS_WITHOUT_EFFECT",
    "DataFields",
    "ModelFields",
    "OptimizerFields",
    "Recipe",
    "RunFields",
    "ScheduleFields",
    "Tracker",
    "TractFields",
    "can_split_batches",
    "change_recipe",
    "fill_later_fields",
    "identify",
    "identify_seeds",
    "make_recipe",
    "name_run",
    "read_recipe",
    "read_toml",
    "recipe_to_dict",
    "write_recipe",
]

Tracker = Literal[
    "none",
    "aim",
    "clearml",
    "comet_ml",
    "dvclive",
    "mlflow",
    "swanlab",
    "tensorboard",
    "trackio",
    "wandb",
]
"""The experiment trackers that Accelerate knows, by their names there."""


@dataclass(frozen=True)
class DataFields:
    """The data set, its splits, and the augmentation of training batches."""

    name: str = "photos"  # photos, a named data set, a folder, shards, an .npz file or a hub id
    folder: str = ""  # path of a named data set: cifar10, cifar100, imagenet, flowers102, ...
    classes: int = 0  # expected number of classes; 0: any
    train_images: int = 0  # size of a class-balanced random subset; 0: all
    test_images: int = 0
    held_out: int = 0  # training images set aside for tuning
    evaluate_on: Literal["test", "held-out"] = "test"
    image_size: int = 0  # side in pixels; 0: unchanged
    storage: Literal["auto", "memory", "stream"] = "auto"
    batch_size: int = 128  # images of an optimizer step, over all ranks and micro-batches
    drop_last: bool = False
    crop: Literal["none", "pad", "resized"] = "pad"
    crop_padding: int = 4
    crop_fill: Literal["black", "reflect"] = "black"  # content of the padding
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"  # of resizing
    test_crop: float = 0.0  # centre crop of test images, as a fraction of the side;
    # 0: 0.875 with crop="resized", otherwise 1
    flip: bool = True
    flip_order: Literal["random", "alternating"] = "random"  # alternating: random in the first
    # epoch, then each image is mirrored in every other epoch
    rotation: float = 0.0  # maximum angle in degrees
    policy: Literal[
        "none",
        "autoaugment-cifar10",  # as in torchvision
        "autoaugment-cifar10-upstream",  # as in the repository ViT-CIFAR
        "three-augment",
        "rand-augment",
    ] = "none"
    augment_fill: Literal["black", "grey"] = "black"  # pixels that rotation and AutoAugment uncover
    colour_jitter: float = 0.0  # maximum change of brightness, contrast and saturation
    mixup: float = 0.0  # α of Beta(α, α), one draw per batch; 0: off
    cutmix: float = 0.0  # likewise, for the area of the box; with both, one is chosen at random
    mixing_batch: int = 0  # images that are mixed with each other, by one draw; 0: the batch
    repeats: int = 1  # repeated augmentation: copies of an image, each augmented independently
    values: Literal["standard", "unit", "raw"] = "standard"  # standardised, [0, 1] or [0, 255]
    mean: tuple[float, ...] = ()  # of values in [0, 1]; empty: measured on the training images
    std: tuple[float, ...] = ()
    test_views: bool = False  # after the last epoch, also test the mean logits of six views
    workers: int = 0

    def find_single(self) -> str:
        """Return a field that needs images to be augmented one by one; empty if none is set.

        >>> DataFields(crop="resized").find_single()
        "data.crop='resized'"
        """
        single = {
            "crop": self.crop == "resized",
            "interpolation": self.interpolation == "bicubic",
            "test_crop": self.test_crop not in (0.0, 1.0),
            "policy": self.policy in ("three-augment", "rand-augment"),
            "colour_jitter": self.colour_jitter > 0,
        }
        found = [name for name, is_single in single.items() if is_single]
        return f"data.{found[0]}={getattr(self, found[0])!r}" if found else ""


@dataclass(frozen=True)
class ModelFields:
    """The network: its name, its keyword arguments and its initial weights."""

    name: str = "lab:resnet18-tract"
    arguments: dict[str, Any] = field(default_factory=dict)
    weights: str = ""  # file of initial weights; {pretraining} and {seed} are filled in
    pretraining: str = ""  # arm in which the initial weights were trained
    weights_strict: bool = True  # whether the file must hold every weight but the classifier's
    positions: Literal["antialiased", "bicubic"] = "antialiased"  # how a ViT's are resized: as in
    # timm, or as in DeiT
    start: Literal["default", "eigen", "random", "scaled"] = "default"  # of the first layer: see
    # whiten(); scaled: the default weights times one factor, so that outputs have unit variance
    start_scale: Literal["keep", "unit"] = "keep"
    start_signs: bool = True  # both signs of each eigenvector
    start_images: int = 5000  # training images that a start is computed from

    @property
    def is_pretrained(self) -> bool:
        """Return whether the initial weights come from a file, or from timm or torchvision."""
        argument = "weights" if self.name.startswith("torchvision:") else "pretrained"
        return bool(self.weights or self.pretraining or self.arguments.get(argument))


@dataclass(frozen=True)
class TractFields:
    """The method; with ``enabled`` off the other fields have no effect.

    The first layer's rules and optimizers that need rows, such as FOOF, take ``lam`` and ``moment``
    from here, with ``enabled`` off.
    """

    enabled: bool = True
    lam: float = DEFAULT_LAM  # λ in the paper
    layers: tuple[str, ...] = ()  # empty: found by tracing
    sync: bool = False  # sum the second moment over ranks
    moment: Literal["float32", "float64"] = "float32"  # dtype of the second moment
    center: bool = False  # covariance instead of the second moment, jointly with the bias
    relative: bool = False  # λ times the mean eigenvalue
    moment_decay: float = 0.0  # of the second moment's moving average; 0: off


@dataclass(frozen=True)
class OptimizerFields:
    """The loss and the optimizer."""

    name: Literal["sgd", "adam", "adamw", "lamb"] = "sgd"
    units: Literal["step", "decoupled"] = "step"  # of lr and weight_decay; see scale_groups
    lr: float = 0.08
    momentum: float = 0.9
    nesterov: bool = False
    betas: tuple[float, ...] = (0.9, 0.999)
    eps: float = 0.0  # ε of Adam and LAMB; 0: the optimizer's default
    weight_decay: float = 0.0
    decay_vectors: bool = True  # weight decay of biases, norms, class token and positions
    first_layer_lr: float = 1.0  # learning-rate multiplier of the first layer
    first_layer_name: Literal["same", "sgd", "foof", "asgo", "muon"] = "same"  # its optimizer
    first_layer_sgd_lr: float = 0.08
    first_layer_frozen: bool = False  # whether its weight stays as it starts; the bias is trained
    first_layer_bias_epochs: int = 0  # epochs in which a frozen layer's bias is trained; 0: all
    first_layer_rule: Literal["none", "centralised", "mac", "norm-preserving"] = "none"
    body: Literal["same", "muon"] = "same"  # optimizer of hidden matrices and convolutions
    muon_lr: float = 0.02
    muon_momentum: float = 0.95
    muon_normalise: bool = False  # scale each weight [m, n] to the norm √m after every step
    norm_bias_lr: float = 1.0  # learning-rate multiplier of the biases of batch and layer norms
    lookahead_steps: int = 0  # steps between two averages of slow and fast weights; 0: off
    lookahead_decay: float = 0.95  # of the slow weights, for each step; see Lookahead
    lookahead_power: float = 3.0  # by which the decay grows to its value at the end of the run
    clip_norm: float = 0.0  # maximum norm of the whole gradient; 0: no clipping
    label_smoothing: float = 0.0
    reduction: Literal["mean", "sum"] = "mean"  # of the loss over the images of a batch
    smoothing_over: Literal["all", "others"] = "all"  # classes that share it; others: not the label
    loss: Literal["cross-entropy", "binary"] = "cross-entropy"  # binary: one-vs-rest per class


@dataclass(frozen=True)
class ScheduleFields:
    """The learning-rate schedule."""

    epochs: int = 5
    name: Literal["cosine", "steps", "constant", "triangle"] = "cosine"
    warmup_epochs: float = 0.0
    warmup_from: float = 0.0  # learning rate at the start of the warm-up
    cosine_over: Literal["rest", "run", "late-run"] = "rest"  # epochs after the warm-up; all
    # epochs; or all, counted from one epoch after the warm-up, so that it ends above final_lr
    final_lr: float = 0.0
    milestones: tuple[float, ...] = ()  # in epochs
    first_epoch: int = 0  # number of the first epoch in milestones
    lag_epochs: int = 0  # epochs by which the learning rate is behind; it starts as in the first
    decay: float = 0.1  # factor at each milestone
    triangle_start: float = 0.2  # learning rate at the start, as a fraction of optimizer.lr
    triangle_peak: float = 0.23  # part of the run after which it is optimizer.lr
    triangle_end: float = 0.07  # learning rate at the end, as a fraction of optimizer.lr
    per: Literal["step", "epoch"] = "step"


@dataclass(frozen=True)
class RunFields:
    """The seed, the name of the arm, and the machine."""

    seed: int = 0
    arm: str = ""
    device: str = "auto"
    precision: Literal["no", "bf16", "fp16"] = "no"
    accumulation: int = 1  # micro-batches per optimizer step
    compile: bool = False
    channels_last: bool = False
    ema: float = 0.0  # decay of the weights' moving average; 0: off
    checkpoint_seconds: float = 60.0
    keep_weights: bool = True  # save the final weights
    tracker: Tracker = "none"
    smoke: bool = False  # a short run that only checks that everything works


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
        check_recipe(self, recipe_to_dict(self))

    @property
    def arm(self) -> str:
        """Return the name of the run's arm."""
        return self.run.arm or ("tract" if self.tract.enabled else "plain")

    @functools.cached_property
    def identity(self) -> str:
        """See `identify`."""
        return identify_seeds(self, [self.run.seed])[0]


TABLES: dict[str, Any] = {table.name: table.type for table in dataclasses.fields(Recipe)}
FIELDS_WITHOUT_EFFECT = {
    *("run.arm", "run.checkpoint_seconds", "run.keep_weights", "run.tracker"),
    *("data.workers", "data.folder"),
}
"""Fields that do not change what a run computes; a recipe's identity ignores them."""
FIELDS_ADDED_LATER = {
    "data": ("classes", "crop_fill", "interpolation", "test_crop", "colour_jitter", "mixup",
             "cutmix", "repeats", "flip_order", "test_views", "augment_fill", "mixing_batch"),
    "model": ("weights", "pretraining", "weights_strict", "start", "start_scale", "start_signs",
              "start_images", "positions"),
    "tract": ("center", "relative", "moment_decay"),
    "optimizer": ("eps", "decay_vectors", "loss", "first_layer_frozen", "first_layer_rule", "body",
                  "muon_lr", "muon_momentum", "muon_normalise", "units", "first_layer_bias_epochs",
                  "norm_bias_lr", "lookahead_steps", "lookahead_decay", "lookahead_power",
                  "reduction", "smoothing_over"),
    "schedule": ("cosine_over", "triangle_start", "triangle_peak", "triangle_end", "first_epoch",
                 "lag_epochs"),
}  # fmt: skip
"""Fields that older recipes lack. A recipe's identity ignores them at their defaults, so that older
runs keep theirs."""
WITHOUT_BATCH_NORM = ("vit-cifar", "deit3-small", "deit3-base")
"""Networks of the lab whose output for an image does not depend on the other images of a batch."""


def make_recipe(tables: Mapping[str, Any], where: str = "the recipe") -> Recipe:
    """Return the recipe of nested tables, as TOML gives them.

    >>> make_recipe({"optimizer": {"lr": 0.1}}).optimizer.lr
    0.1

    Raises:
        TrActValueError: a table or key is unknown, or a value has the wrong type or range.
    """
    check_known(tables, TABLES, f"table of {where}")
    built = {
        name: build_table(TABLES[name], table, f"{where}, table {name}")
        for name, table in tables.items()
    }
    return Recipe(**built)


def change_recipe(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
    """Return the recipe with fields set by dotted name.

    Text is read as TOML, except for fields that hold text.

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
            check_known([dotted], known, "field of a recipe")
        given = _read_text(value, table, key) if isinstance(value, str) else value
        if key.startswith("arguments.") and isinstance(
            arguments := tables[table].setdefault("arguments", {}), dict
        ):
            arguments[key.removeprefix("arguments.")] = given
        else:
            tables[table][key] = given
    return make_recipe(tables)


def _read_text(text: str, table: str, key: str) -> Any:
    """Return the value of a field that is given as text."""
    hint = next(
        (field.type for field in dataclasses.fields(TABLES[table]) if field.name == key), None
    )
    is_text = hint is str or (hint == tuple[str, ...] and not text.startswith("["))
    return text if is_text else parse_value(text)


def recipe_to_dict(recipe: Recipe) -> dict[str, dict[str, Any]]:
    """Return nested plain tables, ready for TOML or JSON."""
    return {
        table: {key: _make_plain(value) for key, value in vars(getattr(recipe, table)).items()}
        for table in TABLES
    }


def _make_plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return copy.deepcopy(value) if isinstance(value, dict) else value


def identify(recipe: Recipe) -> str:
    """Return ten hexadecimal digits; recipes that compute different numbers have different ones.

    Rounding does not count: if `can_split_batches`, ``run.accumulation`` counts as 1.
    """
    return recipe.identity


def identify_seeds(recipe: Recipe, seeds: Iterable[int]) -> list[str]:
    """Return the identity of the recipe with each of the seeds; see `identify`."""
    tables = recipe_to_dict(recipe)
    if can_split_batches(recipe):
        tables["run"]["accumulation"] = 1
    for dotted in FIELDS_WITHOUT_EFFECT:
        table, key = dotted.split(".")
        del tables[table][key]
    for table, keys in FIELDS_ADDED_LATER.items():
        defaults = TABLES[table]()
        for key in keys:
            if tables[table][key] == getattr(defaults, key):
                del tables[table][key]
    identities = []
    for seed in seeds:
        tables["run"]["seed"] = seed
        text = json.dumps(tables, sort_keys=True)
        identities.append(hashlib.sha256(text.encode()).hexdigest()[:10])
    return identities


def can_split_batches(recipe: Recipe) -> bool:
    """Return whether micro-batches change the numbers of a run by rounding alone.

    They do if the network has no batch norm and the first layer no rule, optimizer or moving
    average with statistics of its own; TrAct uses the second moment of all micro-batches together.
    Networks that are not known are assumed to have batch norm. Dropout and stochastic depth draw
    other numbers, as they do on other numbers of ranks.

    >>> vit = change_recipe(Recipe(), {"model.name": "lab:vit-cifar"})
    >>> can_split_batches(vit), can_split_batches(Recipe())
    (True, False)
    """
    rule, name = recipe.optimizer.first_layer_rule, recipe.optimizer.first_layer_name
    own = rule != "none" or name not in ("same", "sgd") or recipe.tract.moment_decay > 0
    return recipe.model.name.removeprefix("lab:") in WITHOUT_BATCH_NORM and not own


def fill_later_fields(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe's tables with the defaults of the fields that older records lack.

    >>> fill_later_fields({"tract": {"lam": 0.1}})["tract"]["center"]
    False
    """
    filled = dict(tables)
    for table, keys in FIELDS_ADDED_LATER.items():
        defaults = TABLES[table]()
        later = {key: getattr(defaults, key) for key in keys}
        filled[table] = {**later, **tables.get(table, {})}
    return filled


def name_run(recipe: Recipe) -> str:
    """Return the name of a run in messages.

    >>> name_run(Recipe())
    'tract, 5 epochs, seed 0'
    """
    return f"{recipe.arm}, {count_epochs(recipe.schedule.epochs)}, seed {recipe.run.seed}"


def read_toml(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file.

    Raises:
        TrActValueError: the file cannot be read, or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise TrActValueError(f"{path} cannot be read as TOML: {error}.") from error


def read_recipe(path: Path) -> Recipe:
    """Return the recipe of a TOML file."""
    return make_recipe(read_toml(path), str(path))


def write_recipe(recipe: Recipe, path: Path) -> None:
    """Write all fields, including those at their defaults, because defaults may change later."""
    write_atomically(path, tomli_w.dumps(recipe_to_dict(recipe)).encode())
