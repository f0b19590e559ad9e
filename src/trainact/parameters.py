"""The model's parameters in two groups, for an optimizer of its own on the first layer."""

from torch import nn

from trainact.errors import TrActValueError
from trainact.layers import TrActLayer

__all__ = ["split_first_layer"]


def split_first_layer(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Return the trained parameters as (those of the TrAct layers, all others).

    Weight and bias of a layer stay together. A shared parameter appears once, in the first list if
    a TrAct layer has it; a frozen one appears in neither::

        first, rest = split_first_layer(model)
        optimizers = torch.optim.SGD(first, lr=0.1), torch.optim.AdamW(rest, lr=1e-3)

    Raises:
        TrActValueError: the model has no TrAct layer.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, TrActLayer)]
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
