"""The six tables of a recipe: their fields, types and defaults."""

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
    rotation: float = 0.0  # maximum angle in degrees
    policy: Literal["none", "autoaugment-cifar10", "three-augment", "rand-augment"] = "none"
    colour_jitter: float = 0.0  # maximum change of brightness, contrast and saturation
    mixup: float = 0.0  # α of Beta(α, α), one draw per batch; 0: off
    cutmix: float = 0.0  # likewise, for the area of the box; with both, one is chosen at random
    repeats: int = 1  # repeated augmentation: copies of an image, each augmented independently
    values: Literal["standard", "unit", "raw"] = "standard"  # standardised, [0, 1] or [0, 255]
    mean: tuple[float, ...] = ()  # of values in [0, 1]; empty: measured on the training images
    std: tuple[float, ...] = ()
    workers: int = 0

    def find_single(self) -> str:
        """Return a field that needs images to be augmented one by one; empty if none is set.

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
    """The network: its name, its keyword arguments and its initial weights."""

    name: str = "lab:resnet18-tract"
    arguments: dict[str, Any] = field(default_factory=dict)
    weights: str = ""  # file of initial weights; {pretraining} and {seed} are filled in
    pretraining: str = ""  # arm in which the initial weights were trained
    weights_strict: bool = True  # whether the file must hold every weight but the classifier's


@dataclass(frozen=True)
class TractFields:
    """The method; with ``enabled`` off the other fields have no effect."""

    enabled: bool = True
    lam: float = DEFAULT_LAM  # λ in the paper
    layers: tuple[str, ...] = ()  # empty: found by tracing
    sync: bool = False  # sum the second moment over ranks
    moment: Literal["float32", "float64"] = "float32"  # dtype of the second moment


@dataclass(frozen=True)
class OptimizerFields:
    """The loss and the optimizer."""

    name: Literal["sgd", "adam", "adamw", "lamb"] = "sgd"
    lr: float = 0.08
    momentum: float = 0.9
    nesterov: bool = False
    betas: tuple[float, ...] = (0.9, 0.999)
    eps: float = 0.0  # ε of Adam and LAMB; 0: the optimizer's default
    weight_decay: float = 0.0
    decay_vectors: bool = True  # weight decay of biases, norms, class token and positions
    first_layer_lr: float = 1.0  # learning-rate multiplier of the first layer
    first_layer_name: Literal["same", "sgd"] = "same"  # optimizer of the first layer
    first_layer_sgd_lr: float = 0.08
    clip_norm: float = 0.0  # maximum norm of the whole gradient; 0: no clipping
    label_smoothing: float = 0.0
    loss: Literal["cross-entropy", "binary"] = "cross-entropy"  # binary: one-vs-rest per class


@dataclass(frozen=True)
class ScheduleFields:
    """The learning-rate schedule."""

    epochs: int = 5
    name: Literal["cosine", "steps", "constant"] = "cosine"
    warmup_epochs: float = 0.0
    warmup_from: float = 0.0  # learning rate at the start of the warm-up
    cosine_over: Literal["rest", "run"] = "rest"  # epochs after the warm-up, or all epochs
    final_lr: float = 0.0
    milestones: tuple[float, ...] = ()  # in epochs
    decay: float = 0.1  # factor at each milestone
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
    tracker: Literal["none", "tensorboard", "trackio", "wandb"] = "none"
    smoke: bool = False  # a short run that only checks that everything works
