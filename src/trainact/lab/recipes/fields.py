"""The six tables of a recipe: their fields, kinds and defaults."""

from dataclasses import dataclass, field
from typing import Any, Literal

from trainact.options import DEFAULT_LAM

__all__ = [
    "DataFields",
    "ModelFields",
    "OptimizerFields",
    "RunFields",
    "ScheduleFields",
    "TractFields",
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
    lam: float = DEFAULT_LAM  # λ in the paper
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
