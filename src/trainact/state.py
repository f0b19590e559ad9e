"""What TrAct layers keep from step to step, for checkpoints; it is not in the state dict.

The state dict of a model with TrAct has the plain model's keys. A run that resumes with
``moment_decay`` or ``rows`` needs these tensors too to go on exactly as it would have.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from trainact.errors import TrActTypeError, TrActValueError
from trainact.wrapped_layers import list_tract_layers

__all__ = ["load_tract_state", "tract_state"]


def tract_state(model: nn.Module) -> dict[str, Tensor]:
    """Return copies of the tensors that the model's TrAct layers keep from step to step.

    Keys are the layer's name and the tensor's. For ``moment_decay`` these are ``average.total``
    [g, n, n], ``average.num_rows`` [1] and, with ``center``, ``average.row_sum`` [g, n]: sums in
    which each step counts βᵏ, k steps later. For ``rows`` it is ``seed`` []. Without these options
    the result is empty. What ``every`` keeps is not part of it: a resumed run measures first. In a
    distributed run without ``sync``, each rank has its own average.

    >>> from trainact import apply_tract
    >>> model = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    >>> apply_tract(model, layers="0", moment_decay=0.9)
    ['0']
    >>> {name: tuple(tensor.shape) for name, tensor in tract_state(model).items()}
    {'0.average.total': (1, 4, 4), '0.average.num_rows': (1,)}

    Raises:
        TrActTypeError: ``model`` is not an nn.Module.
    """
    return {name: tensor.clone() for name, tensor in _list_tensors(model, "tract_state").items()}


@torch.no_grad()
def load_tract_state(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Copy what `tract_state` returned into the TrAct layers of a model.

    The model must have TrAct layers of the same names, shapes and options. Tensors are copied in
    place, to the device of each layer.

    Raises:
        TrActTypeError: ``model`` is not an nn.Module, or a value is not a tensor.
        TrActValueError: names, shapes or dtypes do not fit; nothing was changed.
    """
    own = _list_tensors(model, "load_tract_state")
    if not isinstance(state, Mapping):
        raise TrActTypeError(
            f"load_tract_state takes what tract_state returns, a dict; got {type(state).__name__}."
        )
    missing, unexpected = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
    if missing or unexpected:
        raise TrActValueError(
            f"the state does not fit the model's TrAct layers: missing {missing}, unexpected "
            f"{unexpected}. Apply TrAct to the same layers with the same options first."
        )
    for name, target in own.items():
        _check_value(name, target, state[name])
    for name, target in own.items():
        target.copy_(state[name])


def _check_value(name: str, target: Tensor, value: object) -> None:
    if not isinstance(value, Tensor):
        raise TrActTypeError(f"{name!r} of the state is a {type(value).__name__}, not a tensor.")
    if value.shape != target.shape or value.dtype != target.dtype:
        raise TrActValueError(
            f"{name!r} of the state has shape {tuple(value.shape)} and {value.dtype}; the model's "
            f"layer needs {tuple(target.shape)} and {target.dtype}. Load it into the model that it "
            "was taken from."
        )


def _list_tensors(model: nn.Module, function: str) -> dict[str, Tensor]:
    if not isinstance(model, nn.Module):
        raise TrActTypeError(f"{function} takes an nn.Module; got {type(model).__name__}.")
    return {
        f"{layer_name}.{name}" if layer_name else name: tensor
        for layer_name, layer in list_tract_layers(model).items()
        for name, tensor in layer.memory.list_tensors().items()
    }
