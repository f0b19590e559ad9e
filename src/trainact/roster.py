"""Remember on a model which layers were given TrAct, so that a lost one can be told.

Some functions build a layer anew and put it in the old one's place, without TrAct: timm's
``set_input_size`` with another patch size is one. The names are kept in the model's ``__dict__``:
copied and pickled with it, in no state dict, and read only where somebody asks.
"""

from collections.abc import Iterable

from torch import nn

from trainact.errors import TrActTypeError, TrActValueError
from trainact.layers import TrActLayer

__all__ = ["check_tract", "describe_lost", "find_lost", "forget", "remember"]

_ROSTER = "_tract_roster"


def check_tract(model: nn.Module) -> list[str]:
    """Return the names of the model's TrAct layers, once it is sure that none was lost.

    A layer is lost when something put a plain one in its place after :func:`trainact.apply_tract`.
    ``accumulate`` and the trainer callbacks check that by themselves; in a loop of your own, call
    this once before training.

    >>> from trainact import apply_tract
    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())
    >>> apply_tract(model), check_tract(model)
    (['0'], ['0'])

    Raises:
        TrActValueError: a layer was lost; the text names it.
    """
    if not isinstance(model, nn.Module):
        raise TrActTypeError(f"check_tract takes an nn.Module; got {type(model).__name__}.")
    lost = find_lost(model)
    if lost:
        raise TrActValueError(describe_lost(lost))
    return [name for name, module in model.named_modules() if isinstance(module, TrActLayer)]


def remember(model: nn.Module, names: Iterable[str]) -> None:
    """Add ``names`` to what the model remembers; what was lost before is forgotten."""
    kept = [name for name in vars(model).get(_ROSTER, ()) if _has_tract(model, name)]
    roster = tuple(dict.fromkeys([*kept, *(name for name in names if name)]))
    if roster:
        vars(model)[_ROSTER] = roster


def forget(model: nn.Module) -> None:
    """Take the memory out of the model and all its parts."""
    for module in model.modules():
        vars(module).pop(_ROSTER, None)


def find_lost(model: nn.Module) -> list[str]:
    """Return the names, seen from ``model``, of remembered layers that TrAct no longer trains."""
    return [
        f"{prefix}.{name}" if prefix else name
        for prefix, holder in model.named_modules()
        for name in vars(holder).get(_ROSTER, ())
        if not _has_tract(holder, name)
    ]


def describe_lost(names: Iterable[str]) -> str:
    """Say what happened to the lost layers, and what to do."""
    shown = ", ".join(map(repr, names))
    return (
        f"apply_tract gave {shown} TrAct's gradient, and a plain layer stands there now, as after "
        "timm's set_input_size with another patch size, or after remove_tract on a part of the "
        "model; call trainact.apply_tract(model) again, or trainact.remove_tract(model) to train "
        "without."
    )


def _has_tract(holder: nn.Module, name: str) -> bool:
    """Tell whether the layer is there; a wrapper put around it since (a checkpoint's) counts."""
    try:
        module = holder.get_submodule(name)
    except AttributeError:
        return False
    return any(isinstance(part, TrActLayer) for part in module.modules())
