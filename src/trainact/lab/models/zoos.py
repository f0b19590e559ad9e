"""Models by name from timm, torchvision, transformers and the lab, random or on meta."""

import importlib
import inspect
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from trainact.errors import TrActValueError
from trainact.lab.models.networks import NETWORKS, build_network
from trainact.lab.text import describe_unknown
from trainact.lab.torchvision_import import import_torchvision
from trainact.torch_internals import tree_map

__all__ = [
    *("NamedModel", "build_meta_model", "build_on_meta", "build_zoo_model", "copy_to_meta"),
    "list_names",
]

SOURCES = ("timm", "torchvision", "hf", "lab")

LAB_SIZE, LAB_CLASSES = 32, 10
"""Pixels per side and classes of the lab's networks, if nothing else is given."""


class NamedModel(NamedTuple):
    """A model, its library and its name there."""

    source: str
    name: str
    model: nn.Module


def build_meta_model(reference: str, image_size: int | None = None, **config: Any) -> NamedModel:
    """Build ``timm:NAME``, ``torchvision:NAME``, ``hf:NAME``, ``lab:NAME`` or NAME on meta.

    A bare name is looked up in timm, then in torchvision. For transformers it is a model type
    (``vit``) or a model class (``ViTForImageClassification``), built from its default config with
    the changes of ``config``. If ``image_size`` is None, it is the model's default; networks of the
    lab have 32 pixels and 10 classes.

    Raises:
        TrActValueError: there is no such source or model; the message names similar ones.
    """
    source, name = _resolve(reference)
    builders = {
        "timm": _build_timm,
        "torchvision": _build_torchvision,
        "hf": _build_hf,
        "lab": _build_lab,
    }
    build = builders[source]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = build_on_meta(lambda: build(name, image_size, config))
    return NamedModel(source, name, model)


def build_zoo_model(source: str, name: str, image_size: int, /, **options: Any) -> nn.Module:
    """Build a model of timm or torchvision with random weights.

    Raises:
        TrActValueError: the source has no such model; the message names similar ones.
    """
    source, name = _resolve(f"{source}:{name}")
    build = {"timm": _build_timm, "torchvision": _build_torchvision}[source]
    return build(name, image_size, options)


def build_on_meta(build: Callable[[], nn.Module]) -> nn.Module:
    """Build a model on the meta device: its parameters have shapes but need no memory."""
    try:
        with torch.device("meta"):
            return build()
    except (NotImplementedError, RuntimeError):  # the constructor reads a value
        hook = register_module_parameter_registration_hook(_move_to_meta)  # type: ignore[arg-type]
        try:
            return build()
        finally:
            hook.remove()


def _move_to_meta(module: nn.Module, name: str, parameter: nn.Parameter) -> nn.Parameter:
    del module, name
    return nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)


def copy_to_meta(call: Any) -> Any:
    """Return the arguments of a forward with their tensors on the meta device."""
    return tree_map(lambda leaf: leaf.to("meta") if isinstance(leaf, Tensor) else leaf, call)


def list_names(source: str) -> list[str]:
    """Return the names of all models of ``source``."""
    if source == "lab":
        return list(NETWORKS)
    torchvision = import_torchvision()
    if source == "timm":
        return importlib.import_module("timm").list_models()
    if source == "torchvision":
        return torchvision.models.list_models()
    auto = importlib.import_module("transformers.models.auto.modeling_auto")
    classes = (name if isinstance(name, str) else name[0] for name in _hf_classes(auto).values())
    return sorted({*_hf_classes(auto), *classes})


def _resolve(reference: str) -> tuple[str, str]:
    source, colon, name = reference.partition(":")
    if not colon:
        for source in ("timm", "torchvision"):
            if reference in list_names(source):
                return source, reference
        known = {*list_names("timm"), *list_names("torchvision")}
        raise TrActValueError(
            describe_unknown(reference, sorted(known), "model of timm and torchvision")
        )
    if source not in SOURCES:
        raise TrActValueError(
            f"{reference!r} names the source {source!r}; use timm:NAME, torchvision:NAME, hf:NAME, "
            "lab:NAME or a bare name of a model in timm or torchvision."
        )
    if source == "hf":
        import_torchvision()
        transformers = importlib.import_module("transformers")
        found = name in transformers.CONFIG_MAPPING or _is_hf_model_class(transformers, name)
    else:
        found = name in list_names(source)
    if not found:
        raise TrActValueError(describe_unknown(name, list_names(source), f"model of {source}"))
    return source, name


def _build_timm(name: str, image_size: int | None, config: dict[str, Any]) -> nn.Module:
    timm = importlib.import_module("timm")
    if image_size is None:
        return timm.create_model(name, **config)
    try:
        model = timm.create_model(name, img_size=image_size, **config)
    except TypeError:  # a convolutional network takes any size
        model = timm.create_model(name, **config)
    model.pretrained_cfg = dict(model.pretrained_cfg, input_size=(3, image_size, image_size))
    return model


def _build_torchvision(name: str, image_size: int | None, config: dict[str, Any]) -> nn.Module:
    models = import_torchvision().models
    builder = models.get_model_builder(name)
    accepted = inspect.signature(builder).parameters
    options: dict[str, Any] = {"weights": None}
    if "weights_backbone" in accepted:
        options["weights_backbone"] = None
    if image_size is not None and name.startswith("vit_"):
        options["image_size"] = image_size
    model = models.get_model(name, **options, **config)
    if image_size is not None:
        model.default_cfg = {"input_size": (3, image_size, image_size)}
    return model


def _build_hf(name: str, image_size: int | None, config: dict[str, Any]) -> nn.Module:
    transformers = importlib.import_module("transformers")
    if image_size is not None:
        config = {**config, "image_size": image_size}
    if _is_hf_model_class(transformers, name):
        model_class = getattr(transformers, name)
        return model_class(model_class.config_class(**config))
    return transformers.AutoModel.from_config(transformers.AutoConfig.for_model(name, **config))


def _build_lab(name: str, image_size: int | None, config: dict[str, Any]) -> nn.Module:
    size = image_size or LAB_SIZE
    model: Any = build_network(name, LAB_CLASSES, image_size=size, **config)
    model.default_cfg = {"input_size": (3, size, size)}
    return model


def _is_hf_model_class(transformers: Any, name: str) -> bool:
    model_class = getattr(transformers, name, None)
    return (
        isinstance(model_class, type)
        and issubclass(model_class, transformers.PreTrainedModel)
        and getattr(model_class, "config_class", None) is not None
    )


def _hf_classes(auto: Any) -> dict[str, Any]:
    return {
        **auto.MODEL_FOR_IMAGE_MAPPING_NAMES,
        **auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
        **auto.MODEL_MAPPING_NAMES,
    }
