"""Find a model's first layers: those whose input is the image itself.

timm's config names them for its models. For any other model, one forward runs on a copy on the meta
device, and every tensor gets a mark: IMAGE if only fixed operations and normalisation were applied
to the image, FEATURE after the first layer, WEIGHT if computed from parameters alone.
"""

import copy
import enum
import itertools
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from trainact.errors import (
    FirstLayerNotFoundError,
    TrActTypeError,
    TrActValueError,
    UnsupportedLayerError,
    first_line,
)
from trainact.evaluation import eager_mode, evaluation_mode
from trainact.example_inputs import (
    Call,
    list_example_inputs,
    list_inputs_of_layer,
    read_timm_config,
)
from trainact.random_states import kept_random_states
from trainact.rows import SUPPORTED_LAYERS, PlainLayer
from trainact.sharding import reshard
from trainact.torch_internals import find_base, tree_leaves, tree_map

__all__ = ["find_first_layers"]

_CONTRACTIONS = {
    *("linear", "bilinear", "conv1d", "conv2d", "conv3d"),
    *("conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "embedding", "embedding_bag"),
    *("matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "mv", "dot", "inner", "tensordot"),
    *("einsum", "addmm", "addbmm", "baddbmm", "multi_head_attention_forward"),
    *("lstm", "gru", "rnn_tanh", "rnn_relu"),
}
"""Names of the functions that multiply an input by a weight."""


def find_first_layers(model: nn.Module, example_input: Any = None) -> list[str]:
    """Return the names of the model's first layers, as in ``model.named_modules()``.

    >>> find_first_layers(nn.Sequential(nn.Flatten(), nn.Linear(784, 10), nn.Linear(10, 10)))
    ['1']

    Args:
        model: any module; if it is a layer itself, its name is empty.
        example_input: a tensor, a tuple of arguments or a mapping of keyword arguments. The default
            is an image of the size in the model's timm or Hugging Face config, else 1x3x224x224. If
            a forward fails and may have missed a layer, inputs that fit the layers it found follow;
            if all fail, a warning names the layers that may be missing.

    Raises:
        FirstLayerNotFoundError: the forward reached no layer.
        UnsupportedLayerError: the first layer is not a Linear or a convolution.
    """
    if not isinstance(model, nn.Module):
        raise TrActTypeError(f"find_first_layers takes an nn.Module; got {type(model).__name__}.")
    if isinstance(model, SUPPORTED_LAYERS):
        return [""]
    known = _read_timm_names(model)
    if known:
        return known
    failures: list[Exception] = []
    stopped: list[tuple[_ImageTracer, Exception]] = []
    for call in _list_calls(model, example_input, stopped):
        for run in _list_traces(model):
            tracer, failure = run(model, call)
            if tracer.found and (failure is None or not _list_unreached(model, tracer)):
                _warn_of_unsupported(tracer)
                return list(tracer.found)
            if tracer.found:
                assert failure is not None
                stopped.append((tracer, failure))
            elif not stopped:
                if tracer.unsupported:
                    raise UnsupportedLayerError(_describe_unsupported(tracer))
                if failure is None:
                    raise FirstLayerNotFoundError(_describe_nothing(model, None))
                failures.append(failure)
    if not stopped:
        raise FirstLayerNotFoundError(_describe_nothing(model, failures[0]))
    tracer, failure = max(stopped, key=lambda pair: len(pair[0].found))
    _warn_of_unreached(model, tracer, failure)
    _warn_of_unsupported(tracer)
    return list(tracer.found)


def _list_calls(
    model: nn.Module, example_input: Any, stopped: list[tuple["_ImageTracer", Exception]]
) -> Iterator[Call]:
    """Yield example inputs; if forwards stopped at a first layer, also guesses that fit it."""
    yield from list_example_inputs(model, example_input)
    if stopped and example_input is None:
        layer = next(iter(stopped[0][0].found.values()))
        yield from list_inputs_of_layer(model, layer)


def _list_unreached(model: nn.Module, tracer: "_ImageTracer") -> list[str]:
    """Return the layers that a forward did not reach and that take inputs like those found."""
    taken = {_describe_input(layer) for layer in tracer.found.values()} - {None}
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, SUPPORTED_LAYERS)
        and name not in tracer.entered
        and _describe_input(module) in taken
    ]


def _describe_input(layer: PlainLayer) -> tuple[int, int] | None:
    """Return the dimensions of a layer's kernel and its input channels; None if it is lazy."""
    if isinstance(layer, nn.Linear):
        return (0, layer.in_features) if layer.in_features else None
    return (len(layer.kernel_size), layer.in_channels) if layer.in_channels else None


class _Mark(enum.Enum):
    IMAGE = enum.auto()
    FEATURE = enum.auto()
    WEIGHT = enum.auto()


class _ImageTracer(TorchFunctionMode):
    """Follow the image through a forward and record the first weights applied to it."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, PlainLayer] = {}
        self.unsupported: dict[str, str] = {}
        self.entered: set[str] = set()
        self._marks = WeakIdKeyDictionary()
        self._modules: list[tuple[str, nn.Module]] = []
        self._inside_first_layer = 0

    def mark(self, values: Any, mark: _Mark) -> None:
        for tensor in _tensors(values):
            self._marks[tensor] = mark

    def watch(self, model: nn.Module) -> Iterator[Any]:
        """Register hooks on all modules; yield their handles."""
        for name, module in model.named_modules():
            yield module.register_forward_pre_hook(self._enter(name), with_kwargs=True)
            yield module.register_forward_hook(self._leave(), with_kwargs=True, always_call=True)

    def _enter(self, name: str) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            self._modules.append((name, module))
            self.entered.add(name)
            if not isinstance(module, SUPPORTED_LAYERS) or self._inside_first_layer:
                return
            if self._mark_of((args, kwargs)) is _Mark.IMAGE:
                self.found[name] = module
                self._inside_first_layer = len(self._modules)

        return hook

    def _leave(self) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            if self._inside_first_layer == len(self._modules):
                self._inside_first_layer = 0
                self.mark(output, _Mark.FEATURE)
            self._modules.pop()

        return hook

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        mark = self._mark_of((args, kwargs))
        if mark is _Mark.IMAGE and not self._inside_first_layer and self._takes_weight(func, args):
            self._record_unsupported(func)
            mark = _Mark.FEATURE
        output = func(*args, **kwargs)
        if mark is not None:
            self.mark((output, _list_written(func, args, kwargs)), mark)
        return output

    def _mark_of(self, values: Any) -> _Mark | None:
        marks = {self._mark_of_tensor(tensor) for tensor in _tensors(values)}
        for mark in (_Mark.FEATURE, _Mark.IMAGE, _Mark.WEIGHT):
            if mark in marks:
                return mark
        return None

    def _mark_of_tensor(self, tensor: Tensor) -> _Mark | None:
        mark = self._marks.get(tensor)
        return _Mark.WEIGHT if mark is None and isinstance(tensor, nn.Parameter) else mark

    def _takes_weight(self, func: Any, args: Any) -> bool:
        if getattr(func, "__name__", "") not in _CONTRACTIONS:
            return False
        return any(self._mark_of_tensor(tensor) is _Mark.WEIGHT for tensor in _tensors(args))

    def _record_unsupported(self, func: Any) -> None:
        name, module = self._modules[-1]
        self.unsupported.setdefault(name, f"{type(module).__name__} ({func.__name__})")


def _list_written(func: Any, args: tuple[Any, ...], kwargs: Any) -> list[Tensor]:
    """Return the tensors that a function writes to, and those that they are views of."""
    name = getattr(func, "__name__", "")
    is_in_place = name.endswith("_") and not name.endswith("__")
    writes = is_in_place or name.startswith(("__i", "__set"))  # __iadd__, __setitem__
    written = _tensors((args[:1] if writes else (), kwargs.get("out")))
    return written + [base for base in map(find_base, written) if base is not None]


_Trace = tuple[_ImageTracer, Exception | None]


def _list_traces(model: nn.Module) -> list[Callable[[nn.Module, Call], _Trace]]:
    """Return the ways to run a forward: in a copy without values, and with the model itself.

    A forward that is set on an instance may not call a copy's layers. A copy has bound methods and
    forwards of torch.compile of its own.
    """
    own = [module for module in model.modules() if "forward" in vars(module)]
    if not own:
        return [_trace_without_values, _trace_real_forward]
    if all(
        isinstance(vars(module)["forward"], types.MethodType) or hasattr(module, "_orig_mod")
        for module in own
    ):
        return [_trace_real_forward, _trace_without_values]
    return [_trace_real_forward]


def _trace_without_values(model: nn.Module, call: Call) -> _Trace:
    try:
        shell = _copy_with(model, lambda tensor: tensor.detach().to("meta"))
    except Exception as error:  # a module that cannot be copied may raise anything
        return _ImageTracer(), error
    return _run_forward(shell.eval(), _move(call, lambda tensor: tensor.to("meta")))


def _trace_real_forward(model: nn.Module, call: Call) -> _Trace:
    """Run the model itself; a model on the meta device is copied and filled with zeros."""
    if any(isinstance(p, UninitializedParameter) for p in model.parameters()):
        problem = "it has lazy layers, which a forward would initialise: run one yourself first"
        return _ImageTracer(), TrActValueError(problem)
    if any(tensor.is_meta for tensor in _parameters_and_buffers(model)):
        try:
            model = _copy_with(model, lambda tensor: torch.zeros_like(tensor, device="cpu"))
        except Exception as error:  # the same
            return _ImageTracer(), error
    parameter = next(model.parameters(), None)
    device = parameter.device if parameter is not None else torch.device("cpu")
    with evaluation_mode(model):
        try:
            return _run_forward(model, _move(call, lambda tensor: _fill(tensor, device)))
        finally:
            reshard(model)


def _run_forward(model: nn.Module, call: Call) -> _Trace:
    tracer = _ImageTracer()
    tracer.mark(call, _Mark.IMAGE)
    handles = list(tracer.watch(model))
    args, kwargs = call
    try:
        with (
            kept_random_states(model),
            torch.no_grad(),
            eager_mode(),
            warnings.catch_warnings(),
            tracer,
        ):
            warnings.simplefilter("ignore")
            model(*args, **kwargs)
    except Exception as error:  # the model's forward may raise anything
        return tracer, error
    finally:
        for handle in handles:
            handle.remove()
    return tracer, None


def _copy_with(model: nn.Module, convert: Callable[[Tensor], Tensor]) -> nn.Module:
    """Return a copy of the model with converted parameters and buffers."""
    memo: dict[int, Any] = {}
    for tensor in _parameters_and_buffers(model):
        if isinstance(tensor, UninitializedParameter):
            memo[id(tensor)] = UninitializedParameter(requires_grad=False, device="meta")  # type: ignore[call-arg]
            continue
        new = convert(tensor)
        is_parameter = isinstance(tensor, nn.Parameter)
        memo[id(tensor)] = nn.Parameter(new, requires_grad=False) if is_parameter else new
    return copy.deepcopy(model, memo)


def _parameters_and_buffers(model: nn.Module) -> Iterator[Tensor]:
    return itertools.chain(model.parameters(), model.buffers())


def _move(call: Call, convert: Callable[[Tensor], Tensor]) -> Call:
    return tree_map(lambda value: convert(value) if isinstance(value, Tensor) else value, call)


def _fill(tensor: Tensor, device: torch.device) -> Tensor:
    return torch.zeros_like(tensor, device=device) if tensor.is_meta else tensor.to(device)


def _read_timm_names(model: nn.Module) -> list[str]:
    kind = next(kind for kind in type(model).__mro__ if not kind.__module__.startswith("torch."))
    if not kind.__module__.startswith("timm."):  # FSDP2 puts classes of torch in front
        return []  # a subclass may put layers in front
    names = read_timm_config(model).get("first_conv")
    names = [names] if isinstance(names, str) else list(names or ())
    modules = dict(model.named_modules())
    usable = names and all(isinstance(modules.get(name), SUPPORTED_LAYERS) for name in names)
    return names if usable else []


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def _warn_of_unsupported(tracer: _ImageTracer) -> None:
    others = {name: kind for name, kind in tracer.unsupported.items() if "embedding" not in kind}
    if others:
        shown = ", ".join(f"{name!r}: {kind}" for name, kind in others.items())
        warnings.warn(
            f"the model also applies weights to the image that TrAct cannot train ({shown}); call "
            "trainact.precondition_grad there.",
            stacklevel=3,
        )


def _warn_of_unreached(model: nn.Module, tracer: _ImageTracer, failure: Exception) -> None:
    found, unreached = (
        ", ".join(map(repr, names)) for names in (tracer.found, _list_unreached(model, tracer))
    )
    warnings.warn(
        f"a forward of {type(model).__name__} failed after it reached {found} "
        f"({first_line(failure)}); {unreached} may take the image too. Pass example_input= with an "
        "input of the model, or layers= with names.",
        stacklevel=3,
    )


def _describe_unsupported(tracer: _ImageTracer) -> str:
    shown = ", ".join(f"{name!r}, a {kind}" for name, kind in tracer.unsupported.items())
    return (
        f"the first layer is {shown}; TrAct trains nn.Linear and nn.Conv1d/2d/3d. In a custom "
        "layer, call trainact.precondition_grad(weight, x) where the weight is applied to the "
        "input. An embedding of tokens does not need TrAct."
    )


def _describe_nothing(model: nn.Module, failure: Exception | None) -> str:
    kind = type(model).__name__
    if failure is None:
        problem = f"a forward of {kind} ran without reaching an nn.Linear or nn.Conv1d/2d/3d"
    else:
        problem = f"a forward of {kind} failed before any layer was reached ({first_line(failure)})"
    return f"{problem}; pass example_input= with an input of the model, or layers= with names."
