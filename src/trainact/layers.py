"""Layers that train their pre-activations: torch's own classes with one gradient replaced.

(With ``center=True``, two: see `trainact.preconditioner`.)

A plain layer becomes a TrAct layer only by a change of its class. It stays the same object with the
same parameters, hooks and attributes, draws no random number, and can be changed back.
"""

import math
from collections.abc import Callable
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from trainact.errors import TrActValueError, UnsupportedLayerError
from trainact.gradient import (
    Memory,
    apply_precondition,
    apply_precondition_with_bias,
    find_bias_problem,
)
from trainact.operators import read_operator_call
from trainact.options import DEFAULT_LAM, Center, Options, check_lam, check_options, widest_dtype
from trainact.rows import LINEAR_PATCHES, Patches, patches_of_layer
from trainact.second_moment import KeptMoment, SecondMoment
from trainact.synchronisation import new_sync_slot
from trainact.torch_internals import ConvNd, is_exporting, is_inside_transform

__all__ = [
    "ADDED_NAMES",
    "TrActConv1d",
    "TrActConv2d",
    "TrActConv3d",
    "TrActLayer",
    "TrActLinear",
    "check_bias",
    "find_tract_class",
]

# fx keeps these as one node, so a traced network trains as before
torch.fx.wrap("apply_precondition")
torch.fx.wrap("apply_precondition_with_bias")


class TrActLayer(nn.Module):
    """Base of all TrAct layers: λ, the options, and the plain class to change back to."""

    plain_class: ClassVar[type[nn.Module]]
    weight: Tensor
    bias: Tensor | None
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
        center: Center = False,
        relative: bool = False,
        moment_decay: float = 0.0,
        **kwargs: Any,
    ) -> None:
        """Take the plain layer's arguments, and by keyword those of `trainact.TrAct`."""
        options = Options(moment_dtype, every, rows, sync, center, relative, moment_decay)
        lam, options = check_lam(lam), check_options(options)
        super().__init__(*args, **kwargs)
        check_bias(self, options)
        self.set_up(lam, options)

    def set_up(self, lam: float, options: Options) -> None:
        """Set checked options, and start without memory of earlier backward passes."""
        self.lam = lam
        self.options = options
        self.memory = Memory(
            sync_slot=new_sync_slot(options.sync),
            kept=KeptMoment(options.every) if options.every > 1 else None,
            seed=torch.zeros((), dtype=torch.int64, device="cpu") if options.sample_size else None,
            average=self._start_average() if options.moment_decay else None,
        )

    def _start_average(self) -> SecondMoment:
        weight = self.weight
        shape = (getattr(self, "groups", 1), math.prod(weight.shape[1:]))
        dtype = widest_dtype(weight.device, torch.float32)
        center = bool(self.options.center)
        return SecondMoment.without_rows(shape, dtype, weight.device, center=center)

    def _replicate_for_data_parallel(self) -> Self:
        """Return a replica, which shares this layer's memory.

        Raises:
            TrActValueError: the replicas, in threads of their own, would all change that memory.
        """
        if torch.is_grad_enabled() and any(part is not None for part in self.memory[1:]):
            raise TrActValueError(
                "nn.DataParallel cannot train a TrAct layer inside trainact.accumulate or with "
                "every=, rows= or moment_decay=, because its replicas would share what these keep; "
                "use DistributedDataParallel, or leave them out."
            )
        return super()._replicate_for_data_parallel()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move the moving average to the device of the weight; its dtype stays."""
        super()._apply(fn, recurse)
        self._place_average()
        return self

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Do the same after ``load_state_dict(..., assign=True)`` on the meta device."""
        super()._load_from_state_dict(*args, **kwargs)
        self._place_average()

    def _place_average(self) -> None:
        average = self.memory.average
        if average is not None and average.total.device != self.weight.device:
            self.memory = self.memory._replace(average=average.to(self.weight.device))

    def tear_down(self) -> None:
        """Remove everything that `set_up` added."""
        for attribute in ("_lam", "options", "memory"):
            del self.__dict__[attribute]

    @property
    def lam(self) -> float:
        """λ, a positive finite number; it may be changed at any time."""
        return self._lam

    @lam.setter
    def lam(self, lam: float) -> None:
        self._lam = check_lam(lam)

    def _precondition(
        self, weight: Tensor, bias: Tensor | None, x: Tensor, patches: Patches
    ) -> tuple[Tensor, Tensor | None]:
        """Return the operator's weight and bias unchanged, but with TrAct's gradients."""
        settings = (x, patches, self._lam, self.options, self.memory)
        if self.options.changes_bias:
            return apply_precondition_with_bias(weight, bias, *settings)
        return apply_precondition(weight, *settings), bias

    def extra_repr(self) -> str:
        """Show the plain layer's arguments, and TrAct's."""
        defaults = Options().as_keywords()
        changed = (
            f"{name}={value}"
            for name, value in self.options.as_keywords().items()
            if value != defaults[name]
        )
        return ", ".join((super().extra_repr(), f"lam={self._lam:g}", *changed))


ADDED_NAMES = {
    name
    for name in ("_lam", *TrActLayer.__annotations__, *vars(TrActLayer))
    if name not in ("weight", "bias", *dir(nn.Module())) and not name.startswith("__")
}
"""Attributes and methods that a TrAct layer has besides those of its plain class."""


class TrActLinear(TrActLayer, nn.Linear):  # type: ignore[misc]  # a Linear may have no bias
    """``nn.Linear`` with TrAct's weight gradient.

    >>> TrActLinear(48, 384, lam=0.2)
    TrActLinear(in_features=48, out_features=384, bias=True, lam=0.2)
    """

    plain_class = nn.Linear

    def forward(self, input: Tensor) -> Tensor:
        """Compute what the plain layer computes."""
        if torch.jit.is_scripting():
            return F.linear(input, self.weight, self.bias)
        weight, bias = self._precondition(self.weight, self.bias, input, LINEAR_PATCHES)
        return F.linear(input, weight, bias)


class _TrActConv(TrActLayer, ConvNd):
    """A convolution that passes its weight through `apply_precondition`."""

    def forward(self, input: Tensor) -> Tensor:
        """Compute what the plain layer computes."""
        if torch.jit.is_scripting():
            return self._conv_forward(input, self.weight, self.bias)
        patches = patches_of_layer(self)
        weight, bias = self._precondition(self.weight, self.bias, input, patches)
        return self._conv_forward(input, weight, bias)


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
        if not isinstance(self.weight, Tensor):
            raise UnsupportedLayerError(
                f"torch.fx cannot trace {type(self).__name__}, which follows the operators of "
                f"{self.plain_class.__name__}; call trainact.remove_tract before tracing."
            )
        is_frozen = not self.weight.requires_grad and not is_inside_transform()
        if is_frozen or torch.jit.is_tracing() or not torch.is_grad_enabled() or is_exporting():
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

    def __init__(self, layer: TrActLayer) -> None:
        super().__init__()
        self.layer = layer
        self.calls = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        call = read_operator_call(func, args, kwargs)
        if call is None:
            return func(*args, **(kwargs or {}))
        self.calls += 1
        layer, bias = self.layer, call.others.get("bias")
        if layer.memory.pool is not None:
            _check_parameters(layer, call.weight, bias)
        patches = call.describe_patches()
        weight, bias = layer._precondition(call.weight, bias, call.x, patches)
        return func(call.x, weight, **(call.others | {"bias": bias}))


def _check_parameters(layer: TrActLayer, weight: Tensor, bias: Tensor | None) -> None:
    """Raise if ``accumulate`` would not see the gradients that reach the operator."""
    used = {"weight": weight} | ({"bias": bias} if layer.options.changes_bias else {})
    for name, tensor in used.items():
        if tensor is not getattr(layer, name):
            raise UnsupportedLayerError(
                f"{layer.plain_class.__name__} computes the {name} of its operator from its "
                "parameter, but accumulate preconditions the gradient of the parameter itself; "
                "take the gradient of the whole batch instead."
            )


def check_bias(layer: object, options: Options, where: str = "") -> None:
    """Raise an UnsupportedLayerError if the options need a trained bias and the layer has none."""
    problem = find_bias_problem(getattr(layer, "bias", None)) if options.changes_bias else None
    if problem is not None:
        raise UnsupportedLayerError(f"{where}{type(layer).__name__} {problem}")


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
