"""The second moment of what layers receive when their model runs on images.

The model runs in evaluation mode without gradients. A function mode watches the operators: rows are
what reaches ``F.linear`` or ``F.conv1d/2d/3d`` with the layer's own weight, so a layer class that
pads its input itself is measured correctly, and one that applies another weight is found out.
"""

import contextlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from trainact.errors import TrActError, TrActValueError, UnsupportedLayerError, first_line
from trainact.evaluation import eager_mode, evaluation_mode
from trainact.example_inputs import Call
from trainact.image_batches import move_call
from trainact.operators import OperatorCall, read_operator_call
from trainact.options import Precision, widest_dtype
from trainact.rows import PlainLayer
from trainact.second_moment import SecondMoment
from trainact.sharding import is_sharded_model, reshard

__all__ = ["InputStatistics", "measure_inputs"]


class InputStatistics:
    """Σ xᵀx and Σ b of a layer's rows, and the range of each of its input channels."""

    def __init__(self) -> None:
        """Start without rows."""
        self.num_rows = 0
        """b"""
        self.rounding = 0.0
        """The largest relative rounding error of the inputs' dtypes."""
        self._moment: SecondMoment | None = None
        self._lowest = self._highest = torch.empty(0)

    def add(self, x: Tensor, call: OperatorCall) -> None:
        """Add the rows of one input of the layer's operator."""
        patches = call.describe_patches()
        exact = widest_dtype(x.device, torch.float32)
        moment = SecondMoment.measure(x, patches, Precision(exact, exact))
        if not moment.num_rows:
            return
        channel = x.dim() - len(patches.kernel_size)  # its place once a batch dimension is added
        others = [axis for axis in range(x.dim() + 1) if axis != channel]
        lowest, highest = x.unsqueeze(0).amin(others), x.unsqueeze(0).amax(others)
        if self._moment is None:
            self._moment, self._lowest, self._highest = moment, lowest, highest
        else:
            self._moment.add_(moment)
            self._lowest = torch.minimum(self._lowest, lowest)
            self._highest = torch.maximum(self._highest, highest)
        self.num_rows = int(self._moment.num_rows)
        self.rounding = max(self.rounding, torch.finfo(x.dtype).eps)

    def second_moment(self) -> Tensor:
        """Return xᵀx/b, shape [g, n, n], in float64 on the CPU; there must be rows."""
        assert self._moment is not None
        return self._moment.divide_by_rows().cpu().double()

    def find_constant_groups(self, groups: int) -> list[int]:
        """Return the groups of channels in which every channel has one value everywhere."""
        constant = (self._lowest == self._highest).reshape(groups, -1).all(dim=1)
        return constant.nonzero().flatten().tolist()


def measure_inputs(
    model: nn.Module, layers: Mapping[str, PlainLayer], calls: Iterable[Call]
) -> dict[str, InputStatistics]:
    """Run the model on batches of images and return the statistics of each layer's rows.

    The first batch runs through the whole model. The other batches stop at the last call of a
    measured layer, if each calls the layers as often as the first one did. Parameters, buffers and
    training flags are afterwards what they were.

    Args:
        model: any module.
        layers: some of its layers, by name.
        calls: the batches, as arguments of the model's forward. Tensors are moved to the device
            of the first layer, and floating-point ones get its dtype.

    Raises:
        TrActError: a forward failed, or a layer does not apply its weight itself.
    """
    observer = _Observer(layers)
    weight = next(iter(layers.values())).weight
    with contextlib.ExitStack() as stack:
        stack.enter_context(evaluation_mode(model))
        stack.enter_context(torch.no_grad())
        stack.enter_context(eager_mode())
        for name, layer in layers.items():
            stack.callback(layer.register_forward_pre_hook(observer.enter(name)).remove)
            stack.callback(layer.register_forward_hook(observer.leave).remove)
        stack.callback(reshard, model)
        may_stop = _may_stop_early(model)
        for call in calls:
            observer.run(model, move_call(call, weight.device, weight.dtype))
            if may_stop and observer.stop_at is None:
                observer.stop_at = observer.calls
    return observer.statistics


class _AllReached(BaseException):
    """Ends a forward whose remaining part is not needed; no ``except Exception`` stops it."""


@dataclass
class _RunningLayer:
    name: str
    layer: nn.Module
    uses: int = 0
    """Operator calls with the layer's own weight in this forward of the layer."""


class _Observer(TorchFunctionMode):
    """Add the rows that reach the operators of some layers to their statistics."""

    def __init__(self, layers: Mapping[str, PlainLayer]) -> None:
        super().__init__()
        self.statistics = {name: InputStatistics() for name in layers}
        self.calls: Counter[str] = Counter()
        """Operator calls of each layer in this forward of the model."""
        self.stop_at: Counter[str] | None = None
        """The calls after which the rest of a forward is not needed; None runs it to its end."""
        self._running: list[_RunningLayer] = []

    def run(self, model: nn.Module, call: Call) -> None:
        """Run one batch."""
        self.calls, self._running = Counter(), []
        args, kwargs = call
        try:
            with self:
                model(*args, **kwargs)
        except _AllReached:
            return
        except TrActError:
            raise
        except Exception as error:  # the model's forward may raise anything
            raise TrActValueError(_describe_failure(model, call, error)) from error
        for name in self.statistics:
            if not self.calls[name]:
                raise TrActValueError(
                    f"a forward of {type(model).__name__} did not call layer {name!r}, so its "
                    "inputs are unknown; pass images that reach it, or name another layer with "
                    "layers=."
                )

    def enter(self, name: str) -> Any:
        def hook(layer: nn.Module, args: Any) -> None:
            self._running.append(_RunningLayer(name, layer))

        return hook

    def leave(self, layer: nn.Module, args: Any, output: Any) -> None:
        running = self._running.pop()
        if running.uses != 1:
            where = f"layer {running.name!r}: " if running.name else ""
            raise UnsupportedLayerError(
                f"{where}the forward of {type(layer).__name__} applied its weight to the input "
                f"{running.uses} times; whiten needs a layer that applies the parameter itself, "
                "once. A layer that standardises or normalises its weight would undo the scale of "
                "the filters: replace it by a plain layer."
            )

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        output = func(
            *args, **(kwargs or {})
        )  # first, so that torch refuses inputs that do not fit
        call = read_operator_call(func, args, kwargs) if self._running else None
        if call is not None and call.weight is self._running[-1].layer.weight:
            self._add(call)
        return output

    def _add(self, call: OperatorCall) -> None:
        running = self._running[-1]
        running.uses += 1
        x = call.x.full_tensor() if hasattr(call.x, "full_tensor") else call.x
        with torch.autocast(x.device.type, enabled=False):
            self.statistics[running.name].add(x, call)
        self.calls[running.name] += 1
        if self.stop_at is not None and self.calls >= self.stop_at:
            raise _AllReached


def _may_stop_early(model: nn.Module) -> bool:
    """Return whether a forward may be left halfway: nothing waits for its end."""
    has_hooks = any("forward" in vars(module) for module in model.modules())
    return not has_hooks and not is_sharded_model(model)


def _describe_failure(model: nn.Module, call: Call, error: Exception) -> str:
    args, kwargs = call
    given = f"keywords {', '.join(kwargs)}" if kwargs else f"a {type(args[0]).__name__}"
    if args and isinstance(args[0], Tensor):
        given = f"a tensor of shape {tuple(args[0].shape)} and {args[0].dtype}"
    return (
        f"a forward of {type(model).__name__} failed on {given} ({first_line(error)}); pass images "
        "as the model takes them: standardised tensors, or mappings of its keyword arguments."
    )
