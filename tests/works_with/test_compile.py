"""torch.compile: one graph, eager's gradients, and no recompilation from step to step."""

import contextlib
import copy

import pytest
import torch
import torch.nn.functional as F
from functorch.compile import make_boxed_func, nop
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import counters

from cases import assert_close
from slow_cases import mark_slow
from trainact import TrAct, accumulate, outer_products, remove_tract, tract_state


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


class StandardisedConv2d(nn.Conv2d):
    """A custom layer with its own forward."""

    def forward(self, x):
        flat = self.weight.flatten(1)
        weight = (flat - flat.mean(1, keepdim=True)) / flat.std(1, keepdim=True)
        return F.conv2d(x, weight.view_as(self.weight), self.bias)


def network(stem: nn.Module, **options) -> nn.Module:
    model = nn.Sequential(stem, nn.Tanh(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
    model.append(nn.Linear(16, 5)).double()
    TrAct(model[0], **options)
    return model


def stem_grad(model: nn.Module, x: Tensor, pooled: bool = False) -> Tensor:
    """Return the gradients of the stem's weight and bias in one tensor, [m, n + 1]."""
    model.zero_grad()
    with accumulate(model) if pooled else contextlib.nullcontext():
        model(x).square().mean().backward()
    return torch.cat([model[0].weight.grad.flatten(1), model[0].bias.grad.unsqueeze(1)], dim=1)


def images(count: int = 6) -> Tensor:
    return torch.randn(count, 3, 8, 8).double()


def count_graphs() -> int:
    return counters["stats"]["unique_graphs"]


class Compiled:
    """A compiled network and its eager copy; both get every batch."""

    def __init__(self, model: nn.Module, **settings):
        self.eager, self.model = copy.deepcopy(model), model
        model.compile(fullgraph=True, **settings)

    def check(self, x: Tensor, pooled: bool = False) -> None:
        actual = stem_grad(self.model, x, pooled)
        assert_close(actual, stem_grad(self.eager, x, pooled))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_gradient_is_not_the_plain_one(backend):
    model, x = network(nn.Conv2d(3, 4, 3)), 3 * images()
    plain = stem_grad(remove_tract_from_copy(model), x)
    model.compile(fullgraph=True, backend=backend)
    difference = (stem_grad(model, x) - plain)[:, :-1]  # of the weight
    assert difference.norm() > 0.5 * plain[:, :-1].norm()


def remove_tract_from_copy(model: nn.Module) -> nn.Module:
    plain = copy.deepcopy(model)
    assert remove_tract(plain) == ["0"]
    return plain


def test_a_compiled_network_trains_as_in_eager_mode_without_recompiling():
    compiled = Compiled(network(nn.Conv2d(3, 4, 3)))
    compiled.check(images())
    with torch._dynamo.config.patch(error_on_recompile=True):
        for _ in range(3):
            compiled.check(images())
    assert count_graphs() == 1


def test_lam_becomes_dynamic_after_one_recompilation():
    compiled = Compiled(network(nn.Conv2d(3, 4, 3)), backend="aot_eager")
    graphs = []
    for lam in (0.1, 0.2, 0.3, 1, 1e-3, 7.5):
        compiled.model[0].lam = compiled.eager[0].lam = lam
        compiled.check(images())
        graphs.append(count_graphs())
    assert graphs[1:] == [2] * 5


def test_changing_batch_sizes_share_one_dynamic_graph():
    """Also across b < n, where eager mode changes to the smaller system: one more graph."""
    compiled = Compiled(network(nn.Conv2d(3, 4, 3)))
    for count in (6, 7):
        compiled.check(images(count))
    graphs = count_graphs()
    for count in (8, 11, 5):
        compiled.check(images(count))
    assert count_graphs() == graphs == 2


OPTIONS = [
    {"rows": 50},
    {"sync": True},
    {"relative": True},
    {"center": "batchnorm"},
    {"center": True, "sync": True},
    {"center": True, "relative": True, "rows": 20},  # fewer rows than columns
    {"center": True, "relative": True, "rows": 50},
    {"moment_decay": 0.9},
    {"moment_decay": 0.9, "center": True, "relative": True, "sync": True},
]


@pytest.mark.parametrize("options", mark_slow(OPTIONS, 2), ids=str)
def test_the_options_compile(options):
    compiled = Compiled(network(nn.Conv2d(3, 4, 3, padding=1), **options), backend="aot_eager")
    for _ in range(3):
        compiled.check(images() + 1)
    for name, value in tract_state(compiled.eager).items():
        assert torch.equal(tract_state(compiled.model)[name], value)


@pytest.mark.slow
def test_a_centered_average_is_one_graph_with_inductor():
    options = {"center": True, "relative": True, "moment_decay": 0.9}
    compiled = Compiled(network(nn.Conv2d(3, 4, 3), **options))
    compiled.check(images())
    with torch._dynamo.config.patch(error_on_recompile=True):
        for _ in range(2):
            compiled.check(images())
    assert count_graphs() == 1


@pytest.mark.slow
def test_changing_batch_sizes_share_one_dynamic_graph_when_centered():
    compiled = Compiled(network(nn.Conv2d(3, 4, 3), center=True), backend="aot_eager")
    for count in (6, 7):
        compiled.check(images(count))
    graphs = count_graphs()
    for count in (8, 11, 5):
        compiled.check(images(count))
    assert count_graphs() == graphs == 2


@pytest.mark.parametrize("options", [{}, {"center": True}], ids=str)
def test_a_custom_layer_compiles_as_one_graph(options):
    compiled = Compiled(network(StandardisedConv2d(3, 4, 3), **options))
    for _ in range(2):
        compiled.check(images())
    assert count_graphs() == 1


@pytest.mark.parametrize("options", [{}, {"center": True, "moment_decay": 0.9}], ids=str)
def test_accumulation_compiles(options):
    compiled = Compiled(network(nn.Conv2d(3, 4, 3), **options), backend="aot_eager")
    for _ in range(3):
        compiled.check(images(), pooled=True)
    assert count_graphs() <= 2  # another pool is another pair of tensors


def functional_loss(model: nn.Module, x: Tensor):
    def loss(parameters):
        return torch.func.functional_call(model, parameters, (x,)).square().mean()

    return loss, {name: p.detach() for name, p in model.named_parameters()}


def test_a_compiled_functional_gradient_is_tracts():
    """Traced whole, the function's backward would be dropped: so it is left to eager mode."""
    model, x = network(nn.Conv2d(3, 4, 3)), images()
    loss, parameters = functional_loss(model, x)
    grads = torch.compile(torch.func.grad(loss))(parameters)
    assert_close(grads["0.weight"].flatten(1), stem_grad(model, x)[:, :-1])


def test_a_functional_gradient_as_one_graph_is_refused():
    loss, parameters = functional_loss(network(nn.Conv2d(3, 4, 3)), images())
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(torch.func.grad(loss), fullgraph=True)(parameters)


@pytest.mark.slow
# dynamo warns if a graph ends at a tensor that is not a leaf
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_a_kept_moment_runs_outside_the_graph_and_is_refused_inside_it():
    """``every`` counts backward passes in Python, which one graph cannot do."""
    model = network(nn.Conv2d(3, 4, 3), every=2)
    eager = copy.deepcopy(model)
    whole = copy.deepcopy(model)
    whole.compile(fullgraph=True, backend="eager")
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"(?i)side ?effect"):
        whole(images())
    model.compile(backend="aot_eager")
    for _ in range(5):
        x = images()
        assert_close(stem_grad(model, x), stem_grad(eager, x))


@contextlib.contextmanager
def allow_tf32():
    settings = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)
    try:
        for setting in settings:
            setting.fp32_precision = "tf32"
        yield settings
    finally:
        for setting in settings:
            setting.fp32_precision = "none"


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"center": True}], ids=str)
def test_tf32_does_not_reach_the_moments_products_inside_a_graph(options, monkeypatch):
    """The operator in the graph computes as in eager mode: TF32 is off while it multiplies."""
    seen = []

    def choose_method(x, patches):
        def method(*arguments):
            seen.extend(setting.fp32_precision for setting in settings)
            return outer_products.sum_by_unfolding(*arguments)

        return method

    model = network(nn.Conv2d(3, 4, 3), **options).float()
    model.compile(fullgraph=True, backend="aot_eager")
    x = images().float()
    expected = stem_grad(model, x)
    monkeypatch.setattr(outer_products, "choose_method", choose_method)
    with allow_tf32() as settings:
        actual = stem_grad(model, x)
        assert [setting.fp32_precision for setting in settings] == ["tf32", "tf32"]
    assert seen == ["ieee", "ieee"]
    assert_close(actual, expected, 1e-4)


def products_in(graph) -> list[torch.fx.Node]:
    kinds = (torch.ops.aten.mm, torch.ops.aten.bmm, torch.ops.aten.baddbmm)
    return [n for n in graph.nodes if getattr(n.target, "overloadpacket", None) in kinds]


@pytest.mark.parametrize("count", mark_slow([6, 1]))
@pytest.mark.parametrize("options", [{}, {"center": True, "relative": True}], ids=str)
def test_products_of_the_solve_inside_a_graph_are_float64(options, count):
    """So TF32 cannot reach them; ``count`` gives fewer and more rows than columns."""
    dtypes = []

    def record(graph_module, inputs):
        found = [node.meta["val"].dtype for node in products_in(graph_module.graph)]
        dtypes.append(found)
        return make_boxed_func(graph_module.forward)

    stem = TrAct(nn.Conv2d(3, 4, 3), **options)
    backend = aot_autograd(fw_compiler=nop, bw_compiler=record)
    stem.compile(fullgraph=True, backend=backend)
    stem(torch.randn(count, 3, 7, 7)).square().mean().backward()
    (found,) = dtypes
    assert found or (count > 1 and not options)
    assert all(dtype == torch.float64 for dtype in found)


class EagerStem(nn.Module):
    """A network whose first layer stays outside of compiled code."""

    def __init__(self, **options):
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 5, 3).double(), nn.Linear(5, 3).double()
        TrAct(self.stem, **options)

    @torch.compiler.disable
    def embed(self, x):
        return self.stem(x).tanh()

    def forward(self, x):
        return self.head(self.embed(x).mean((2, 3)))


@pytest.mark.parametrize(("options", "pooled"), [({"moment_decay": 0.9}, False), ({}, True)])
def test_a_compiled_step_around_an_eager_first_layer_adds_up_rows(options, pooled):
    """torch compiles the layer's backward there, and loses additions to scalars in place."""
    model = EagerStem(**options)
    eager = copy.deepcopy(model)

    def take_step(network, x):
        network(x).square().mean().backward()

    compiled = torch.compile(lambda x: take_step(model, x), backend="aot_eager")
    for _ in range(2):
        x = images() + 1
        for network, step in ((model, compiled), (eager, lambda x: take_step(eager, x))):
            network.zero_grad()
            with accumulate(network) if pooled else contextlib.nullcontext():
                step(x)
        assert_close(model.stem.weight.grad, eager.stem.weight.grad)
