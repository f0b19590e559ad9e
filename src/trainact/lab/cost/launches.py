"""How many operators TrAct calls in one backward; on an accelerator each is a kernel launch.

The path of an accelerator is counted on the meta device, whose tensors have shapes but no values,
so no GPU is needed. Views and allocations launch nothing and are not counted.
"""

import contextlib
import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from rich.table import Table
from torch import Tensor, nn

from trainact import find_first_layers
from trainact.device_costs import DeviceCosts
from trainact.errors import TrActValueError
from trainact.example_inputs import list_example_inputs
from trainact.gradient import Memory, apply_precondition
from trainact.lab.cost.cases import LAYERS
from trainact.lab.environment import describe_environment
from trainact.lab.models.zoos import copy_to_meta
from trainact.options import DEFAULT_LAM, Options, choose_precision
from trainact.outer_products import choose_method, sum_by_large_chunks, sum_by_unfolding
from trainact.overlapping_patches import can_sum_by_lines, sum_by_lines
from trainact.rows import Patches, count_inputs, count_rows, patches_of_layer
from trainact.torch_internals import TorchDispatchMode, find_custom_operator

__all__ = [
    "FEW_ROWS",
    "METHODS",
    "count_launches",
    "count_model_launches",
    "count_operators",
    "count_stem_launches",
    "make_launch_table",
    "name_choice",
    "update_launches",
]

KINDS = {"cpu": torch.device("cpu"), "accelerator": torch.device("meta")}
"""Kinds of device, and where their path is counted."""

METHODS = {
    "by unfolding": sum_by_unfolding,
    "by large chunks": sum_by_large_chunks,
    "by lines": sum_by_lines,
}
FEW_ROWS = "few rows"
"""The method for fewer rows than columns, which needs no sum of outer products."""

Row = dict[str, Any]


class _OperatorNames(TorchDispatchMode):
    """Lists the operators that are called, without views and allocations."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inside = find_custom_operator(func) or func.decompose
        with self:  # inside a custom operator, torch does not split composite ones by itself
            output = inside(*args, **(kwargs or {}))
        if output is not NotImplemented:
            return output
        name = func.overloadpacket.__name__
        is_view = any(r.alias_info and not r.alias_info.is_write for r in func._schema.returns)
        if not is_view and "empty" not in name and name not in ("detach", "_unsafe_view"):
            self.names.append(name)
        return func(*args, **(kwargs or {}))


def count_operators(work: Callable[[], Any]) -> list[str]:
    """Return the names of the operators that ``work`` calls, in order.

    Custom operators defined in Python are replaced by what they call.

    >>> count_operators(lambda: torch.ones(2, 3).mT @ torch.ones(2, 3))
    ['ones', 'ones', 'mm']
    """
    with _OperatorNames() as counter:
        work()
    return counter.names


def count_launches(layer: Any, shape: Sequence[int]) -> Row:
    """Count what TrAct adds to one backward of a layer whose input has this shape.

    The result has for each kind of device the method and the number of operators, and for each
    method the operators of the sum xᵀx alone; None where the method does not support the layer.
    """
    row: Row = {"shape": list(shape)}
    for kind, device in KINDS.items():
        there = copy.deepcopy(layer).to_empty(device=device)
        x = torch.zeros(*shape, dtype=layer.weight.dtype, device=device)
        weight = there.weight.detach().requires_grad_()
        patches = patches_of_layer(there)
        few = count_rows(x, patches) < count_inputs(x, patches)
        method = FEW_ROWS if few else name_choice(x, patches)
        same = apply_precondition(weight, x, patches, DEFAULT_LAM, Options(), Memory())
        grad = torch.zeros_like(weight)
        operators = count_operators(functools.partial(same.backward, grad))
        row[kind] = {"method": method, "operators": len(operators)}
    precision = choose_precision(
        None, layer.weight.dtype, x.device, count_rows(x, patches), count_inputs(x, patches)
    )
    row["methods"] = {
        name: None
        if few or (method is sum_by_lines and not can_sum_by_lines(x, patches))
        else len(count_operators(functools.partial(method, x, patches, precision)))
        for name, method in METHODS.items()
    }
    return row


def name_choice(x: Tensor, patches: Patches, costs: DeviceCosts | None = None) -> str:
    """Return the name in ``METHODS`` of the method that is chosen for this input."""
    chosen = choose_method(x, patches, costs)
    return next(name for name, method in METHODS.items() if method is chosen)


def count_stem_launches(only: str = "") -> list[Row]:
    """Return the counts of the bench's first layers whose name contains ``only``."""
    return [
        {"name": case.name, **count_launches(case.make(), case.shape)}
        for case in LAYERS
        if only.lower() in case.name.lower()
    ]


def update_launches(record: dict[str, Any], only: str = "") -> None:
    """Write the same counts and the versions into a record, which keeps its other counts.

    Raises:
        TrActValueError: the other counts are of another version of torch.
    """
    environment, before = describe_environment("cpu"), record.get("launches", {"stems": []})
    versions = {key: environment[key] for key in ("date", "commit", "clean")}
    counted = {row["name"]: row for row in count_stem_launches(only)}
    others = {row["name"]: row for row in before["stems"] if row["name"] not in counted}
    if others and before["torch"] != torch.__version__:
        raise TrActValueError(
            f"the record's operators were counted with torch {before['torch']}, and this is torch "
            f"{torch.__version__}; count all of them, without --only."
        )
    rows = others | counted
    stems = [rows[case.name] for case in LAYERS if case.name in rows]
    record["launches"] = {**versions, "torch": torch.__version__, "stems": stems}


def count_model_launches(model: nn.Module, batch: int) -> list[Row]:
    """Return the counts of the first layers of a model on the meta device.

    Raises:
        TrActValueError: no forward of the model on the meta device reaches its first layers.
    """
    names = find_first_layers(model)
    shapes = _find_input_shapes(model, names)
    missing = [name for name in names if name not in shapes]
    if missing:
        raise TrActValueError(
            f"no example input reaches the first layer {missing[0]!r} on the meta device; count "
            "its operators in Python with trainact.lab.cost.launches.count_launches(layer, shape)."
        )
    return [
        {
            "name": name,
            **count_launches(
                model.get_submodule(name), (batch * shapes[name][0], *shapes[name][1:])
            ),
        }
        for name in names
    ]


def _find_input_shapes(model: nn.Module, names: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Return the shape of each layer's input in a forward of one image or clip."""
    shapes: dict[str, tuple[int, ...]] = {}

    def watch(name: str) -> Any:
        def hook(layer: nn.Module, args: tuple[Any, ...]) -> None:
            del layer
            shapes[name] = tuple(args[0].shape)

        return hook

    handles = [model.get_submodule(n).register_forward_pre_hook(watch(n)) for n in names]
    for args, kwargs in map(copy_to_meta, list_example_inputs(model)):
        with contextlib.suppress(Exception), torch.no_grad():  # some models read values
            model(*args, **kwargs)
        if len(shapes) == len(names):
            break
    for handle in handles:
        handle.remove()
    return shapes


def make_launch_table(rows: Sequence[Row]) -> Table:
    """Return the counts as a table for the terminal."""
    table = Table(title="Operators of TrAct in one backward, and of the sum xᵀx by each method")
    for column in ("", "CPU", "accelerator", *METHODS):
        table.add_column(column, justify="right" if column else "left")
    for row in rows:
        kinds = (f"{row[kind]['operators']} ({row[kind]['method']})" for kind in KINDS)
        counts = ("-" if row["methods"][m] is None else str(row["methods"][m]) for m in METHODS)
        table.add_row(row["name"], *kinds, *counts)
    return table
