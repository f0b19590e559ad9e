"""Train the first layer of a vision model as if its pre-activations were the parameters.

TrAct (NeurIPS 2024) leaves the forward unchanged and replaces one gradient, that of the first
layer's weight, by G (xᵀx/b + λI)⁻¹. Call ``TrAct(layer)`` or ``apply_tract(model)``.

The names are imported when they are first used: ``trainact --help`` does without torch.
"""

from typing import TYPE_CHECKING

from trainact.lazy_names import make_getattr
from trainact.torch_version import check_torch_version

if TYPE_CHECKING:
    from trainact import reference
    from trainact.accumulation import accumulate
    from trainact.diagnosis import Diagnosis, diagnose
    from trainact.errors import (
        FirstLayerNotFoundError,
        TorchVersionError,
        TrActError,
        TrActTypeError,
        TrActValueError,
        UnsupportedLayerError,
    )
    from trainact.first_layer import find_first_layers
    from trainact.functional import precondition_grad
    from trainact.layers import (
        TrActConv1d,
        TrActConv2d,
        TrActConv3d,
        TrActLayer,
        TrActLinear,
    )
    from trainact.state import load_tract_state, tract_state
    from trainact.whitening import whiten
    from trainact.wrap import TrAct, apply_tract, remove_tract
    from trainact.wrapped_layers import check_tract, split_first_layer

__version__ = "0.1.0"

__all__ = [
    # one line
    "TrAct",
    "apply_tract",
    "remove_tract",
    "find_first_layers",
    "check_tract",
    # a whitened start
    "whiten",
    # gradient accumulation
    "accumulate",
    # optimizers
    "split_first_layer",
    # checkpoints
    "load_tract_state",
    "tract_state",
    # layers and the functional form
    "TrActConv1d",
    "TrActConv2d",
    "TrActConv3d",
    "TrActLayer",
    "TrActLinear",
    "precondition_grad",
    # insight
    "Diagnosis",
    "diagnose",
    "reference",
    # errors
    "FirstLayerNotFoundError",
    "TorchVersionError",
    "TrActError",
    "TrActTypeError",
    "TrActValueError",
    "UnsupportedLayerError",
]

check_torch_version()

if not TYPE_CHECKING:  # else mypy would accept any name
    __getattr__ = make_getattr(
        __name__,
        {
            "accumulation": ["accumulate"],
            "diagnosis": ["Diagnosis", "diagnose"],
            "errors": [name for name in __all__ if name.endswith("Error")],
            "first_layer": ["find_first_layers"],
            "functional": ["precondition_grad"],
            "layers": [*(f"TrActConv{d}d" for d in (1, 2, 3)), "TrActLayer", "TrActLinear"],
            "reference": [],
            "state": ["load_tract_state", "tract_state"],
            "whitening": ["whiten"],
            "wrap": ["TrAct", "apply_tract", "remove_tract"],
            "wrapped_layers": ["check_tract", "split_first_layer"],
        },
    )

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
