"""Which layers of a model train with TrAct, and which lost it.

Some functions replace a layer by a new one without TrAct, for example timm's ``set_input_size``
with another patch size. So a model stores the names of its TrAct layers in its ``__dict__``: they
are copied and pickled with the model and are not in the state dict.
"""

from collections.abc import Iterable

from torch import nn

from trainact.errors import TrActTypeError, TrActValueError
from trainact.layers import TrActLayer

__all__ = [
    "check_tract",
    "describe_lost_layers",
    "find_lost_layers",
    "forget_layers",
    "list_tract_layers",
    "remember_layers",
    "split_first_layer",
]

_NAMES = "_tract_layer_names"


def list_tract_layers(model: nn.Module) -> dict[str, TrActLayer]:
    """Return the TrAct layers of a model by their names in ``model.named_modules()``."""
    return {name: m for name, m in model.named_modules() if isinstance(m, TrActLayer)}


def check_tract(model: nn.Module) -> list[str]:
    """Return the names of the model's TrAct layers; raise if one was lost.

    A layer is lost when it is replaced by a plain one after `trainact.apply_tract`.
    ``accumulate`` and the trainer callbacks check this themselves. In your own training loop, call
    it once before training.

    >>> from trainact import apply_tract
    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())
    >>> apply_tract(model), check_tract(model)
    (['0'], ['0'])

    Raises:
        TrActValueError: a layer was lost; the message names it.
    """
    if not isinstance(model, nn.Module):
        raise TrActTypeError(f"check_tract takes an nn.Module; got {type(model).__name__}.")
    lost = find_lost_layers(model)
    if lost:
        raise TrActValueError(describe_lost_layers(lost))
    return list(list_tract_layers(model))


def split_first_layer(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Return the trainable parameters as (those of the TrAct layers, all others).

    Use it to give the first layer its own optimizer. Weight and bias of a layer stay together. A
    shared parameter appears once, in the first list if a TrAct layer has it; frozen parameters are
    left out::

        first, rest = split_first_layer(model)
        optimizers = torch.optim.SGD(first, lr=0.1), torch.optim.AdamW(rest, lr=1e-3)

    Raises:
        TrActValueError: the model has no TrAct layer.
    """
    layers = list_tract_layers(model).values()
    if not layers:
        raise TrActValueError(
            "split_first_layer found no TrAct layer in the model; call trainact.apply_tract(model) "
            "first."
        )
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    ids = {id(parameter) for layer in layers for parameter in layer.parameters()}
    first = [parameter for parameter in trained if id(parameter) in ids]
    rest = [parameter for parameter in trained if id(parameter) not in ids]
    return first, rest


def remember_layers(model: nn.Module, names: Iterable[str]) -> None:
    """Add ``names`` to those stored in the model, and drop those of lost layers."""
    lost = _list_lost_names(model)
    kept = [name for name in vars(model).get(_NAMES, ()) if name not in lost]
    stored = tuple(dict.fromkeys([*kept, *(name for name in names if name)]))
    if stored:
        vars(model)[_NAMES] = stored


def forget_layers(model: nn.Module) -> None:
    """Delete the names stored in the model and its submodules."""
    for module in model.modules():
        vars(module).pop(_NAMES, None)


def find_lost_layers(model: nn.Module) -> list[str]:
    """Return the names, relative to ``model``, of layers that lost TrAct."""
    return [
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules()
        for name in _list_lost_names(module)
    ]


def describe_lost_layers(names: Iterable[str]) -> str:
    """Return a message that says what happened to the lost layers, and what to do."""
    shown = ", ".join(map(repr, names))
    return (
        f"apply_tract gave {shown} TrAct's gradient, but a plain layer has replaced it since, as "
        "timm's set_input_size does with another patch size, or remove_tract on a part of the "
        "model; call trainact.apply_tract(model) again, or trainact.remove_tract(model) to train "
        "without TrAct."
    )


def _list_lost_names(module: nn.Module) -> list[str]:
    """Return the stored names that lead to no TrAct layer any more.

    A wrapper around a layer or around a part of the model (DDP, ``nn.Sequential(norm, backbone)``)
    only adds to the name: 'backbone.conv' becomes 'backbone.module.conv'.
    """
    names = vars(module).get(_NAMES, ())
    if not names:
        return []
    modules = module.named_modules(remove_duplicate=False)
    layers = {name for name, m in modules if isinstance(m, TrActLayer)}
    moved = layers.difference(names)
    return [
        name
        for name in names
        if name not in layers and not any(_is_longer_name(other, name) for other in moved)
    ]


def _is_longer_name(longer: str, name: str) -> bool:
    """Return whether ``longer`` is ``name`` with parts added, not before its first part.

    >>> _is_longer_name("backbone.module.conv", "backbone.conv"), _is_longer_name("a.b.c", "b.c")
    (True, False)
    """
    parts = iter(longer.split("."))
    first, *others = name.split(".")
    return next(parts) == first and all(part in parts for part in others)
