"""Each test fails when torch changes something undocumented that trainact uses."""

import ast
import re
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, jvp, vmap
from torch.testing._internal.two_tensor import TwoTensor

import trainact
from trainact import torch_internals
from trainact.torch_internals import (
    ConvNd,
    TorchDispatchMode,
    find_backward_id,
    find_base,
    find_custom_operator,
    has_autocast,
    is_exporting,
    is_inside_transform,
    is_transform_tensor,
    is_wrapper_tensor,
    read_buffers,
    read_group_timeout,
    read_padding,
    runs_in_this_backward,
    tree_leaves,
    tree_map,
)

SOURCE = Path(trainact.__file__).parent
PRIVATE = re.compile(r"\btorch(\.\w+)*\._[a-z]\w*|\b_C\b|_reversed_padding|_get_backend|_ConvNd")


def test_no_other_module_uses_torchs_private_names():
    for file in SOURCE.rglob("*.py"):
        if file != Path(torch_internals.__file__):
            assert not PRIVATE.search(strip_strings(file.read_text())), file


def strip_strings(source: str) -> str:
    """Return the source without docstrings and comments."""
    return ast.unparse(_DropStrings().visit(ast.parse(source)))


class _DropStrings(ast.NodeTransformer):
    def visit_Constant(self, node):
        return ast.Constant("") if isinstance(node.value, str) else node


@pytest.mark.parametrize(
    "move", [lambda m: m.to("meta"), lambda m: m.half(), lambda m: m.to_empty(device="meta")]
)
def test_every_move_of_a_module_calls_apply_once_for_each_layer(move):
    calls = []

    class Watched(nn.Linear):
        def _apply(self, fn, recurse=True):
            calls.append(recurse)
            return super()._apply(fn, recurse)

    move(nn.Sequential(Watched(3, 2), nn.ReLU()))
    assert calls == [True]


@pytest.mark.parametrize(
    "layer", [nn.Conv1d(4, 2, 3), nn.Conv2d(4, 2, 3), nn.Conv3d(4, 2, 3)], ids=lambda m: type(m).__name__
)  # fmt: skip
def test_every_convolution_has_the_base_class_and_its_forward_calls_conv_forward(layer):
    assert isinstance(layer, ConvNd)
    assert not isinstance(nn.Linear(2, 2), ConvNd)
    x, weight = torch.randn(1, 4, *(5,) * (layer.weight.dim() - 2)), torch.randn_like(layer.weight)
    expected = functional_call(layer, {"weight": weight}, (x,))
    assert torch.equal(layer._conv_forward(x, weight, layer.bias), expected)


@pytest.mark.parametrize("transform", [grad, vmap, lambda f: lambda x: jvp(f, (x,), (x,))[0]])
def test_a_transform_is_seen_inside_and_not_outside(transform):
    seen = []

    def probe(x):
        seen.append((is_inside_transform(), is_transform_tensor(x)))
        return x.sum()

    x = torch.randn(3)
    transform(probe)(x)
    assert seen == [(True, True)]
    assert not is_inside_transform()
    assert not is_transform_tensor(x)


@pytest.mark.parametrize("strict", [False, True])
def test_export_is_seen_inside_and_not_outside(strict):
    class Probe(nn.Module):
        def forward(self, x):
            return x + 1 if is_exporting() else x + 2

    x = torch.zeros(3)
    assert not is_exporting()
    exported = torch.export.export(Probe(), (x,), strict=strict).module()
    assert torch.equal(exported(x), x + 1)
    assert torch.equal(torch.compile(Probe(), backend="eager", fullgraph=True)(x), x + 2)


@pytest.mark.parametrize("kind", ["cpu", "cuda", "meta"])
def test_a_compiled_function_knows_where_autocast_exists(kind):
    def ask(x):
        return x + int(has_autocast(kind))

    compiled = torch.compile(ask, backend="eager", fullgraph=True)
    assert compiled(torch.zeros(())).item() == torch.amp.is_autocast_available(kind)


def test_a_tensor_that_holds_others_is_a_wrapper():
    plain = torch.randn(3)
    assert is_wrapper_tensor(TwoTensor(plain, plain))
    assert not is_wrapper_tensor(plain)
    assert not is_wrapper_tensor(nn.Parameter(plain))


class _Watched(torch.autograd.Function):
    """Identity that records the backward pass it runs in, and what it knows of other nodes."""

    @staticmethod
    def forward(ctx, x, seen, others):
        ctx.seen, ctx.others = seen, others
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        nodes = [runs_in_this_backward(node) for node in ctx.others]
        ctx.seen.append((find_backward_id(), nodes))
        return grad, None, None


def test_a_backward_pass_has_a_number_and_knows_which_nodes_it_runs():
    seen, others = [], []
    x = torch.randn(3, requires_grad=True)
    used, unused = x * 2, x * 3
    others += [used.grad_fn, unused.grad_fn]
    z = _Watched.apply(used, seen, others).sum()
    assert find_backward_id() == -1
    for _ in range(2):
        z.backward(retain_graph=True)
    (first, nodes), (second, nodes_again) = seen
    assert nodes == nodes_again == [True, False]
    assert first != second
    assert min(first, second) >= 0
    assert find_backward_id() == -1


@pytest.mark.parametrize("padding", [0, (1, 2), "same", "valid"])
def test_the_padding_is_what_the_convolution_adds(padding):
    layer = nn.Conv2d(3, 4, (3, 4), padding=padding, dilation=2)
    x = torch.randn(2, 3, 9, 8)
    padded = F.pad(x, read_padding(layer))
    expected = F.conv2d(padded, layer.weight, layer.bias, dilation=2)
    assert torch.allclose(expected, layer(x), atol=1e-5)


@pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="needs torch.distributed"
)
def test_the_timeout_of_a_group_can_be_read(tmp_path):
    timeout = timedelta(seconds=77)
    dist.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1, timeout=timeout
    )
    try:
        assert read_group_timeout(dist.group.WORLD) == timeout
        assert read_group_timeout(dist.new_group(timeout=2 * timeout)) == 2 * timeout
    finally:
        dist.destroy_process_group()
    assert read_group_timeout(object()) is None


def test_trees_are_mapped_and_flattened():
    tree = {"a": (1, [2]), "b": 3}
    assert tree_map(lambda value: -value, tree) == {"a": (-1, [-2]), "b": -3}
    assert tree_leaves(tree) == [1, 2, 3]


def test_a_dispatch_mode_sees_every_operator():
    class Record(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.names = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.names.append(func._overloadpacket)
            return func(*args, **(kwargs or {}))

    with Record() as record:
        torch.ones(2) @ torch.ones(2)
    assert torch.ops.aten.dot in record.names


def test_the_function_of_a_custom_operator_is_found():
    inside = find_custom_operator(torch.ops.trainact.sum_outer_products.default)
    assert inside.__module__ == "trainact.outer_products"
    assert find_custom_operator(torch.ops.aten.mm.default) is None


def test_the_buffers_of_a_module_include_those_that_are_none():
    module = nn.Module()
    module.register_buffer("kept", torch.zeros(2))
    module.register_buffer("unset", None)
    assert list(read_buffers(module)) == ["kept", "unset"]
    module.unset = torch.ones(2)
    assert read_buffers(module)["unset"] is module.unset
    read_buffers(module)["unset"] = None
    assert module.unset is None


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_view_made_without_gradients_knows_its_base(device):
    x = torch.zeros(3, 4, device=device)
    with torch.no_grad():
        assert find_base(x) is None
        assert find_base(x[1:].T) is x
