"""Layers that train their pre-activations: torch's own classes with one gradient replaced.

A plain layer becomes a TrAct layer only by a change of its class. It stays the same object with the
same parameters, hooks and attributes, draws no random number, and can be changed back.
"""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from trainact.errors import UnsupportedLayerError
from trainact.gradient import Memory, apply_precondition
from trainact.options import DEFAULT_LAM, Options, check_lam, check_options
from trainact.rows import LINEAR_PATCHES, describe_patches, patches_of_layer
from trainact.second_moment import KeptMoment
from trainact.synchronisation import new_sync_slot
from trainact.torch_internals import ConvNd

__all__ = [
    "TrActConv1d",
    "TrActConv2d",
    "TrActConv3d",
    "TrActLayer",
    "TrActLinear",
    "find_tract_class",
]

torch.fx.wrap("apply_precondition")  # fx keeps it as one node, so a traced network trains as before


class TrActLayer(nn.Module):
    """Base of all TrAct layers: λ, the options, and the plain class to change back to."""

    plain_class: ClassVar[type[nn.Module]]
    weight: Tensor
    options: Options
    memory: Memory
    __jit_ignored_attributes__: ClassVar[list[str]] = ["options", "memory"]
    __jit_unused_properties__: ClassVar[list[str]] = ["lam"]

    def __init__(
        self,
        *args: Any,
        lam: float = DEFAULT_LAM,
        moment_dtype: torch.dtype | None = None,
        every: int = 1,
        rows: int | None = None,
        sync: bool = False,
        **kwargs: Any,
    ) -> None:
        """Take the plain layer's arguments, and by keyword those of :func:`trainact.TrAct`."""
        lam, options = check_lam(lam), check_options(Options(moment_dtype, every, rows, sync))
        super().__init__(*args, **kwargs)
        self.set_up(lam, options)

    def set_up(self, lam: float, options: Options) -> None:
        """Set checked options, and start without memory of earlier backward passes."""
        self.lam = lam
        self.options = options
        self.memory = Memory(
            sync_slot=new_sync_slot(),
            kept=KeptMoment(options.every) if options.every > 1 else None,
            seed=torch.zeros((), dtype=torch.int64, device="cpu") if options.sample_size else None,
        )

    def tear_down(self) -> None:
        """Remove everything that :meth:`set_up` added."""
        for attribute in ("_lam", "options", "memory"):
            del self.__dict__[attribute]

    @property
    def lam(self) -> float:
        """λ, a positive finite number; it may be changed at any time."""
        return self._lam

    @lam.setter
    def lam(self, lam: float) -> None:
        self._lam = check_lam(lam)

    def extra_repr(self) -> str:
        """Show the plain layer's arguments, and TrAct's."""
        defaults = Options().as_keywords()
        changed = (
            f"{name}={value}"
            for name, value in self.options.as_keywords().items()
            if value != defaults[name]
        )
        return ", ".join((super().extra_repr(), f"lam={self._lam:g}", *changed))


class TrActLinear(TrActLayer, nn.Linear):
    """``nn.Linear`` with TrAct's weight gradient.

    >>> TrActLinear(48, 384, lam=0.2)
    TrActLinear(in_features=48, out_features=384, bias=True, lam=0.2)
    """

    plain_class = nn.Linear

    def forward(self, input: Tensor) -> Tensor:
        """Compute what the plain layer computes."""
        if torch.jit.is_scripting():
            return F.linear(input, self.weight, self.bias)
        weight = apply_precondition(
            self.weight, input, LINEAR_PATCHES, self._lam, self.options, self.memory
        )
        return F.linear(input, weight, self.bias)


class _TrActConv(TrActLayer, ConvNd):
    """A convolution that passes its weight through :func:`apply_precondition`."""

    def forward(self, input: Tensor) -> Tensor:
        """Compute what the plain layer computes."""
        if torch.jit.is_scripting():
            return self._conv_forward(input, self.weight, self.bias)
        patches = patches_of_layer(self)
        weight = apply_precondition(
            self.weight, input, patches, self._lam, self.options, self.memory
        )
        return self._conv_forward(input, weight, self.bias)


class TrActConv1d(_TrActConv, nn.Conv1d):
    """``nn.Conv1d`` with TrAct's weight gradient."""

    plain_class = nn.Conv1d


class TrActConv2d(_TrActConv, nn.Conv2d):
    """``nn.Conv2d`` with TrAct's weight gradient.

    >>> TrActConv2d(3, 64, 3, padding=1)
    TrActConv2d(3, 64, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), lam=0.1)
    """

    plain_class = nn.Conv2d


class TrActConv3d(_TrActConv, nn.Conv3d):
    """``nn.Conv3d`` with TrAct's weight gradient."""

    plain_class = nn.Conv3d


_CLASSES: dict[type[nn.Module], type[TrActLayer]] = {
    cls.plain_class: cls for cls in (TrActLinear, TrActConv1d, TrActConv2d, TrActConv3d)
}


class _TrActSubclass(TrActLayer):
    """A layer class of another library: its own forward runs.

    The forward may change weight and input, for example standardise the weight or pad the input.
    The gradient is preconditioned where the results reach torch's operator.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the other library's forward."""
        if not torch.is_grad_enabled():
            return super().forward(*args, **kwargs)
        operator = _OperatorMode(self)
        with operator:
            result = super().forward(*args, **kwargs)
        if operator.calls != 1:
            raise UnsupportedLayerError(
                f"{self.plain_class.__name__}.forward called F.linear or F.conv1d/2d/3d "
                f"{operator.calls} times; TrAct needs exactly one such call to know the layer's "
                "weight. Use trainact.precondition_grad inside the layer's own forward instead."
            )
        return result

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle and copy by the plain class: pickle cannot find a class made at run time."""
        reduced = super().__reduce_ex__(2)
        return _new_layer, (self.plain_class,), *reduced[2:]


class _OperatorMode(TorchFunctionMode):
    """Precondition the weight of the one operator call inside another library's forward."""

    _OPERATORS = frozenset({F.linear, F.conv1d, F.conv2d, F.conv3d})
    _ARGUMENTS = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")

    def __init__(self, layer: TrActLayer) -> None:
        super().__init__()
        self.layer = layer
        self.calls = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func not in self._OPERATORS:
            return func(*args, **kwargs)
        self.calls += 1
        given = dict(zip(self._ARGUMENTS, args, strict=False)) | kwargs
        layer, x, weight = self.layer, given.pop("input"), given.pop("weight")
        geometry = {key: value for key, value in given.items() if key != "bias"}
        if layer.memory.pool is not None and weight is not layer.weight:
            raise UnsupportedLayerError(
                f"{layer.plain_class.__name__} computes the weight of its operator from its "
                "parameter, but accumulate preconditions the gradient of the parameter itself; "
                "take the gradient of the whole batch instead."
            )
        patches = describe_patches(weight.shape[2:], **geometry)
        weight = apply_precondition(weight, x, patches, layer._lam, layer.options, layer.memory)
        return func(x, weight, **given)


def find_tract_class(plain_class: type[nn.Module]) -> type[TrActLayer]:
    """Return the TrAct class of a plain layer class; other libraries' get theirs on first use."""
    if plain_class not in _CLASSES:
        _CLASSES[plain_class] = _make_subclass(plain_class)
    return _CLASSES[plain_class]


def _make_subclass(plain_class: type[nn.Module]) -> type[TrActLayer]:
    name = f"TrAct{plain_class.__name__}"
    members = {
        "plain_class": plain_class,
        "__doc__": f"``{plain_class.__qualname__}`` with TrAct's weight gradient.",
        "__module__": __name__,
    }
    return type(name, (_TrActSubclass, plain_class), members)


def _new_layer(plain_class: type[nn.Module]) -> TrActLayer:
    cls = find_tract_class(plain_class)
    return cls.__new__(cls)
