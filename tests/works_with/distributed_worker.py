"""The checks of test_distributed.py; every rank of a torchrun launch runs all of them in order.

Each rank writes its results to its own file. A check that fails may leave ranks waiting for
each other, so a rank stops at its first failure; the others run into the group's timeout.
"""

import contextlib
import copy
import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import trainact
from trainact import (
    TrAct,
    TrActError,
    accumulate,
    apply_tract,
    synchronisation,
    tract_state,
    whiten,
)
from trainact.lab.ranks import leave_ranks
from trainact.reference import cut_patches, tract_gradients_of_layer, whitened_weight_of_layer

TIMEOUT = timedelta(seconds=120)
SHORT_TIMEOUT = timedelta(seconds=5)  # if a rank disappears
CENTERED = {"center": True, "relative": True}
CHECKS: dict[str, Callable[[], None]] = {}
ONLY_ON_TWO_RANKS = {"a_compiled_network_synchronises"}  # slow, and no different on four


def check(function: Callable[[], None]) -> Callable[[], None]:
    CHECKS[function.__name__] = function
    return function


# --- a small model, its batch, and the gradients of the whole batch ---------------------------------


def network(dtype: torch.dtype = torch.float64, outputs: int = 4, groups: int = 1) -> nn.Sequential:
    torch.manual_seed(1)
    stem = nn.Conv2d(4, outputs, 3, groups=groups)
    return nn.Sequential(stem, nn.Tanh(), nn.Flatten(), nn.Linear(outputs * 16, 5)).to(dtype)


def batch(dtype: torch.dtype = torch.float64, images: int = 8, seed: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(images, 4, 6, 6, generator=generator, dtype=torch.float64) + 0.5).to(dtype)


def mine(x: Tensor) -> Tensor:
    """Return this rank's equal part of the batch."""
    return x.chunk(dist.get_world_size())[dist.get_rank()]


def loss(z: Tensor) -> Tensor:
    return z.square().mean()


def expected_grads(model: nn.Module, x: Tensor, **options) -> dict[str, Tensor]:
    """Return the whole batch's gradients: torch's own, and the stem's by the reference."""
    twin = network(torch.float64, model[0].out_channels, model[0].groups)
    twin.load_state_dict({key: value.double() for key, value in model.state_dict().items()})
    z = twin[0](x.double())
    z.retain_grad()
    loss(twin[1:](z)).backward()
    stem = tract_gradients_of_layer(twin[0], x.double(), z.grad, **options)
    grads = {name: parameter.grad for name, parameter in twin.named_parameters()}
    return grads | dict(zip(("0.weight", "0.bias"), stem, strict=True))


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def assert_grads(model: nn.Module, expected: dict[str, Tensor], rtol: float = 1e-10) -> None:
    for name, parameter in model.named_parameters():
        actual, target = whole(parameter.grad).double(), expected[name.removeprefix("module.")]
        difference = ((actual - target).norm() / target.norm()).item()
        assert difference <= rtol, f"{name} differs by {difference:.3g}, {rtol:.3g} allowed"


def assert_equal_across_ranks(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        copies = [torch.empty_like(parameter) for _ in range(dist.get_world_size())]
        dist.all_gather(copies, parameter.detach().contiguous())
        assert all(torch.equal(copies[0], other) for other in copies), f"{name} differs by rank"


@contextlib.contextmanager
def caught_warnings():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield caught


def of_few_rows(caught: list[warnings.WarningMessage]) -> list[str]:
    texts = [str(warning.message) for warning in caught]
    return [text for text in texts if "preconditions each rank's gradient" in text]


# --- DistributedDataParallel -----------------------------------------------------------------------


@check
def synchronised_ranks_have_the_whole_batchs_gradient():
    for dtype, rtol in ((torch.float64, 1e-10), (torch.float32, 3e-4)):
        for groups in (1, 2):
            model = network(dtype, groups=groups)
            TrAct(model[0], sync=True)
            expected = expected_grads(model, batch(dtype))
            ddp = DistributedDataParallel(model)
            loss(ddp(mine(batch(dtype)))).backward()
            assert_grads(ddp, expected, rtol)


@check
def unequal_local_batches_and_a_rank_without_rows_are_exact():
    x, ranks = batch(), dist.get_world_size()
    for sizes in ([5, 1, 1, 1] if ranks == 4 else [5, 3], [0, 2, 3, 3] if ranks == 4 else [0, 8]):
        for options in ({}, CENTERED):
            model = network()
            TrAct(model[0], sync=True, **options)
            expected = expected_grads(model, x, **options)
            ddp = DistributedDataParallel(model)
            local = x.split(sizes)[dist.get_rank()]
            total = loss(ddp(local)) if len(local) else ddp(local).sum()
            (total * (ranks * len(local) / len(x))).backward()
            assert_grads(ddp, expected)


@check
def synchronised_ranks_have_the_whole_batchs_centered_gradients():
    for options in ({"center": True}, {"relative": True}, {"center": "batchnorm"}, CENTERED):
        for groups in (1, 2):
            model = network(groups=groups)
            TrAct(model[0], sync=True, **options)
            x = batch()
            x[:4] += 3  # the ranks have other means
            expected = expected_grads(model, x, **options)
            ddp = DistributedDataParallel(model)
            loss(ddp(mine(x))).backward()
            assert_grads(ddp, expected)


@check
def few_synchronised_rows_are_as_exact_as_on_one_rank():
    """Within three times the error that PyTorch's own float32 gradient has after the inverse."""
    sys.path.append(str(Path(__file__).parents[1]))
    from test_accuracy import FEW_ROWS, relative_error

    for make_rows in FEW_ROWS.values():
        torch.manual_seed(0)
        x = make_rows()
        grad_z, plain = torch.randn(len(x), 64), nn.Linear(x.shape[1], 64)
        one, layer = (TrAct(copy.deepcopy(plain), sync=True) for _ in range(2))
        plain(x).backward(grad_z)
        one(x).backward(grad_z)  # every rank has all rows, which changes no mean
        layer(mine_of_rows(x)).backward(mine_of_rows(grad_z))
        dist.all_reduce(layer.weight.grad)
        rows = x.double()
        inverse = (rows.T @ rows / len(x) + 0.1 * torch.eye(x.shape[1]).double()).inverse()
        exact = grad_z.double().T @ rows @ inverse
        floor = relative_error(plain.weight.grad.double() @ inverse, exact)
        assert relative_error(layer.weight.grad, exact) <= 3 * floor
        assert relative_error(layer.weight.grad, one.weight.grad.double()) <= 3 * floor


@check
def a_moving_average_is_that_of_the_whole_batches():
    """Averaged after the sum over ranks, with ``sync`` and with ``accumulate``; bit-equal on all."""
    for options in ({}, CENTERED):
        for pooled in (False, True):
            single, model = network(), network()
            TrAct(single[0], moment_decay=0.8, **options)
            TrAct(model[0], moment_decay=0.8, sync=not pooled, **options)
            ddp = DistributedDataParallel(model)
            for seed in range(3):
                x = batch(seed=seed)
                single.zero_grad()
                ddp.zero_grad()
                with caught_warnings():
                    loss(single(x)).backward()
                with accumulate(ddp) if pooled else contextlib.nullcontext():
                    loss(ddp(mine(x))).backward()
                assert_grads(ddp, {name: p.grad for name, p in single.named_parameters()})
            for name, value in tract_state(model).items():
                difference = (value - tract_state(single)[name]).norm()
                assert difference <= 1e-12 * value.norm(), name
                copies = [torch.empty_like(value) for _ in range(dist.get_world_size())]
                dist.all_gather(copies, value)
                assert all(torch.equal(copies[0], other) for other in copies), name


@check
def a_rank_without_a_gradient_keeps_the_same_average():
    model, x = network(), batch()
    TrAct(model[0], moment_decay=0.8)
    with accumulate(model):
        if dist.get_rank() == 0:
            loss(model(x)).backward()
    rows = cut_patches(x, model[0])
    average = tract_state(model)["0.average.total"]
    assert (average - rows.mT @ rows / rows.shape[1]).norm() <= 1e-12 * average.norm()


@check
def weights_stay_bit_equal_across_ranks():
    for options in ({"sync": True}, {"sync": False}, {"sync": True, "every": 2}):
        for pooled in (False, True):
            model = network(torch.float32)
            TrAct(model[0], **options)
            ddp = DistributedDataParallel(model)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            for step in range(4):
                optimizer.zero_grad()
                with accumulate(ddp) if pooled else contextlib.nullcontext():
                    loss(ddp(mine(batch(torch.float32, seed=step)))).backward()
                optimizer.step()
            assert_equal_across_ranks(model)


@check
def without_sync_the_ranks_gradients_are_averaged():
    model, x = network(), batch()
    TrAct(model[0])
    parts = [expected_grads(model, part) for part in x.chunk(dist.get_world_size())]
    ddp = DistributedDataParallel(model)
    loss(ddp(mine(x))).backward()
    assert_grads(ddp, {name: sum(part[name] for part in parts) / len(parts) for name in parts[0]})


@check
def accumulation_sums_the_moments_over_ranks():
    for options in ({}, {"sync": True}, CENTERED):
        for settings in ({}, {"gradient_as_bucket_view": True}, {"static_graph": True}):
            model = network()
            TrAct(model[0], **options)
            ddp = DistributedDataParallel(model, **settings)
            for seed in (2, 3):
                x = batch(images=16, seed=seed)
                relevant = {name: value for name, value in options.items() if name != "sync"}
                expected = expected_grads(model, x, **relevant)
                ddp.zero_grad()
                parts = mine(x).chunk(2)
                with accumulate(ddp):
                    for index, part in enumerate(parts):
                        last = index == len(parts) - 1
                        skip = not last and "static_graph" not in settings
                        with ddp.no_sync() if skip else contextlib.nullcontext():
                            (loss(ddp(part)) / len(parts)).backward()
                assert_grads(ddp, expected)


@check
def accumulation_adds_back_a_gradient_in_a_bucket_view():
    model, x = network(), batch()
    TrAct(model[0])
    expected = expected_grads(model, x)
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
    with accumulate(ddp):
        loss(ddp(mine(x))).backward()
    with accumulate(ddp):
        loss(ddp(mine(x))).backward()
    weight = model[0].weight.grad
    assert (weight - 2 * expected["0.weight"]).norm() <= 1e-10 * weight.norm()


@check
def a_rank_without_a_gradient_takes_part_in_the_sum():
    model, x = network(), batch()
    TrAct(model[0])
    expected = expected_grads(model, x)
    with accumulate(model):
        if dist.get_rank() == 0:
            loss(model(x)).backward()
    if dist.get_rank() == 0:
        assert_grads(model, expected)
    else:
        assert model[0].weight.grad is None


class Towers(nn.Module):
    """Two TrAct stems; the ranks add them in opposite order, and so run backward in it."""

    def __init__(self, **options):
        super().__init__()
        torch.manual_seed(1)
        self.left = TrAct(nn.Conv2d(4, 4, 3).double(), **options)
        self.right = TrAct(nn.Conv2d(4, 4, 2).double(), **options)

    def forward(self, x, use=("left", "right"), checkpointed=False):
        run = partial(checkpoint, use_reentrant=False) if checkpointed else _call
        return sum(run(getattr(self, name), x).square().mean() for name in use)


def _call(function, *arguments):
    return function(*arguments)


def tower_grads(model: Towers, x: Tensor) -> dict[str, Tensor]:
    twin = copy.deepcopy(model)
    trainact.remove_tract(twin)
    twin(x).backward()
    for stem in (twin.left, twin.right):
        (rows,) = cut_patches(x, stem)
        matrix = rows.T @ rows / len(rows) + 0.1 * torch.eye(rows.shape[1]).double()
        stem.weight.grad = (stem.weight.grad.flatten(1) @ matrix.inverse()).view_as(stem.weight)
    return {name: parameter.grad for name, parameter in twin.named_parameters()}


@check
def towers_reached_in_an_order_that_depends_on_the_rank_do_not_deadlock():
    order = ("left", "right") if dist.get_rank() % 2 else ("right", "left")
    for settings in ({}, {"find_unused_parameters": True}, {"bucket_cap_mb": 1e-4}):
        model, x = Towers(sync=True), batch()
        expected = tower_grads(model, x)
        ddp = DistributedDataParallel(model, **settings)
        for checkpointed in (False, True):
            ddp.zero_grad()
            ddp(mine(x), order, checkpointed).backward()
            assert_grads(ddp, expected)


@check
def a_copy_on_one_rank_does_not_deadlock():
    layer = TrAct(nn.Linear(6, 4).double(), sync=True)
    if dist.get_rank() == 0:
        copy.deepcopy(layer)
    for one in (layer, TrAct(nn.Linear(6, 4).double(), sync=True)):
        one(torch.randn(20, 6).double()).sum().backward()


@check
def only_synchronised_layers_need_process_groups():
    made = len(synchronisation._made.groups)
    for _ in range(50):
        TrAct(nn.Linear(6, 4).double())
    layer = TrAct(nn.Linear(6, 4).double(), sync=True)
    layer(torch.randn(20, 6).double()).sum().backward()
    assert len(synchronisation._made.groups) <= made + 1
    with accumulate(layer):
        layer(torch.randn(20, 6).double()).sum().backward()
    assert len(synchronisation._made.groups) <= made + 1


@check
def a_gradient_by_the_input_on_one_rank_does_not_deadlock():
    layer = TrAct(nn.Linear(6, 4).double(), sync=True)
    if dist.get_rank() == 0:
        x = torch.randn(20, 6).double().requires_grad_()
        torch.autograd.grad(layer(x).square().sum(), x)


@check
def calls_of_one_layer_and_repeated_backward_passes_are_summed_in_order():
    layer, x = TrAct(nn.Linear(6, 4).double(), sync=True), torch.randn(2, 9, 6).double()
    dist.broadcast(x, 0)
    dist.broadcast(layer.weight.detach(), 0)
    parts = [mine_of_rows(part) for part in x]
    order = (0, 1) if dist.get_rank() % 2 else (1, 0)
    z = [layer(part).sum() for part in parts]
    total = z[order[0]] + z[order[1]]
    for _ in range(2):
        layer.zero_grad()
        total.backward(retain_graph=True)
        dist.all_reduce(layer.weight.grad)
        expected = sum(
            part.sum(0) @ (part.T @ part / 9 + 0.1 * torch.eye(6).double()).inverse() for part in x
        )
        assert torch.allclose(layer.weight.grad, expected.expand(4, 6), rtol=1e-10)


def mine_of_rows(x: Tensor) -> Tensor:
    return x.tensor_split(dist.get_world_size())[dist.get_rank()]


@check
def unused_parameters_do_not_deadlock():
    model, x = Towers(sync=True), batch()
    expected = tower_grads(model, x)
    ddp = DistributedDataParallel(model, find_unused_parameters=True)
    for used, unused in (("left", "right"), ("right", "left")):
        ddp.zero_grad()
        ddp(mine(x), (used,)).backward()
        difference = getattr(model, used).weight.grad - expected[f"{used}.weight"]
        assert difference.norm() <= 1e-10 * expected[f"{used}.weight"].norm()
        assert getattr(model, unused).weight.grad is None
    pooled = DistributedDataParallel(Towers(), find_unused_parameters=True)
    with accumulate(pooled):
        pooled(mine(x), ("left",)).backward()
    difference = pooled.module.left.weight.grad - expected["left.weight"]
    assert difference.norm() <= 1e-10 * expected["left.weight"].norm()


@check
def a_static_graph_does_not_deadlock():
    model = network()
    TrAct(model[0], sync=True)
    ddp = DistributedDataParallel(model, static_graph=True)
    for seed in (2, 3, 4):
        expected = expected_grads(model, batch(seed=seed))
        ddp.zero_grad()
        loss(ddp(mine(batch(seed=seed)))).backward()
        assert_grads(ddp, expected)


@check
def an_extra_forward_on_one_rank_does_not_deadlock():
    model = network()
    TrAct(model[0], sync=True)
    expected = expected_grads(model, batch())
    ddp = DistributedDataParallel(model)
    if dist.get_rank() == 0:
        model(batch(seed=9)).sum()
    loss(ddp(mine(batch()))).backward()
    assert_grads(ddp, expected)


@check
def a_compiled_network_synchronises():
    for options in ({"sync": True}, {"sync": True, **CENTERED}, {}):
        model = network()
        TrAct(model[0], **options)
        ddp = DistributedDataParallel(model)
        compiled = torch.compile(ddp, backend="aot_eager")
        for seed in (2, 3):
            x = batch(seed=seed)
            relevant = {name: value for name, value in options.items() if name != "sync"}
            expected = expected_grads(model, x, **relevant)
            ddp.zero_grad()
            with contextlib.nullcontext() if options else accumulate(ddp):
                loss(compiled(mine(x))).backward()
            assert_grads(ddp, expected)
    torch._dynamo.reset()


@check
def few_rows_without_sync_are_warned_of_once_for_each_layer():
    x = batch(images=2)  # 2 * 16 rows for 36 columns
    layers = [TrAct(nn.Conv2d(4, 4, 3).double()) for _ in range(2)]
    with caught_warnings() as caught:
        for layer in layers * 2:
            layer(x).sum().backward()
        copy.deepcopy(layers[0])(x)
    assert len(of_few_rows(caught)) == 2, [str(warning.message) for warning in caught]
    assert "sync=True" in of_few_rows(caught)[0]
    assert "32 rows" in of_few_rows(caught)[0]
    with caught_warnings() as caught:
        TrAct(nn.Conv2d(4, 4, 3).double(), sync=True)(x)
        TrAct(nn.Conv2d(4, 4, 3).double())(batch(images=18))  # 8 * 36 rows
        pooled = TrAct(nn.Conv2d(4, 4, 3).double())
        with accumulate(pooled):
            pooled(x)
        with torch.no_grad():
            pooled(x)
        torch.compile(pooled, backend="eager", fullgraph=True)(x)
    assert not of_few_rows(caught)
    torch._dynamo.reset()


@check
def all_ranks_start_from_the_weights_that_rank_0_whitened():
    for filters, dtype in (("eigen", torch.float64), ("random", torch.bfloat16)):
        model, rank = network(), dist.get_rank()
        expected = whitened_weight_of_layer(model[0], batch(seed=20), filters)
        model.to(dtype)
        if rank:
            nn.init.normal_(model[0].weight)
        parts = list(batch(seed=20 + rank).split(4))
        assert whiten(model, parts * (1 + rank), filters=filters) == ["0"]
        rtol = 1e-6 if dtype == torch.float64 else 0.02
        assert (model[0].weight - expected).norm() <= rtol * expected.norm()
        weight = model[0].weight.detach()
        copies = [torch.empty_like(weight) for _ in range(dist.get_world_size())]
        dist.all_gather(copies, weight)
        assert all(torch.equal(weight, other) for other in copies)


@check
def a_rank_that_cannot_whiten_stops_all_ranks():
    model, last = network(), dist.get_world_size() - 1
    before = model[0].weight.clone()
    images = torch.ones_like(batch()) if dist.get_rank() == last else batch()
    try:
        whiten(model, images)
    except TrActError as error:
        text = str(error)
    assert "its inputs are constant" in text
    assert dist.get_rank() == last or f"whiten failed on rank {last}: layer '0': its" in text
    assert torch.equal(model[0].weight, before)


@check
def a_model_in_ddp_is_whitened_but_not_frozen():
    model = network()
    expected = whitened_weight_of_layer(model[0], batch())
    ddp = DistributedDataParallel(model)
    try:
        whiten(ddp, batch(), freeze=True)
    except TrActError as error:
        text = str(error)
    assert "Call whiten on the model before DistributedDataParallel" in text
    assert whiten(ddp, batch()) == ["module.0"]
    assert (model[0].weight - expected).norm() <= 1e-6 * expected.norm()
    loss(ddp(mine(batch()))).backward()


# --- FSDP2 -----------------------------------------------------------------------------------------


def sharded(stem_too: bool, tract_first: bool, outputs: int = 4, groups: int = 1, **options):
    model = network(outputs=outputs, groups=groups)
    if tract_first:
        TrAct(model[0], **options)
    if stem_too:
        fully_shard(model[0])
    fully_shard(model)
    if not tract_first:
        TrAct(model[0], **options)
    return model


VARIANTS = [(stem_too, first) for stem_too in (False, True) for first in (False, True)]


@check
def a_sharded_network_synchronises():
    for stem_too, tract_first in VARIANTS:
        for outputs, options in ((4, {}), (3, {}), (4, CENTERED), (3, CENTERED)):
            model = sharded(stem_too, tract_first, outputs, sync=True, **options)
            for seed in (2, 3):
                expected = expected_grads(network(outputs=outputs), batch(seed=seed), **options)
                model.zero_grad()
                loss(model(mine(batch(seed=seed)))).backward()
                assert isinstance(model[0].weight.grad, DTensor)
                assert_grads(model, expected)


@check
def a_sharded_network_averages_the_moment():
    single, model = network(), sharded(True, True, sync=True, moment_decay=0.8, **CENTERED)
    TrAct(single[0], moment_decay=0.8, **CENTERED)
    for seed in range(3):
        single.zero_grad()
        model.zero_grad()
        with caught_warnings():
            loss(single(batch(seed=seed))).backward()
        with accumulate(model) if seed == 1 else contextlib.nullcontext():
            loss(model(mine(batch(seed=seed)))).backward()
        assert_grads(model, {name: p.grad for name, p in single.named_parameters()})


@check
def a_sharded_network_accumulates():
    for stem_too, tract_first in VARIANTS:
        for outputs, groups, options in (
            (4, 1, {}),
            (3, 1, {}),  # 3 outputs on 4 ranks: one shard is empty
            (4, 2, {}),
            (6, 2, {}),
            (3, 1, CENTERED),
            (6, 2, CENTERED),
        ):
            model = sharded(stem_too, tract_first, outputs, groups, **options)
            x = batch(images=16)
            expected = expected_grads(network(outputs=outputs, groups=groups), x, **options)
            for delayed in (False, True):
                model.zero_grad()
                with torch.no_grad():
                    model(mine(x))  # an evaluation leaves the root's parameters unsharded
                with accumulate(model):
                    for index, part in enumerate(mine(x).chunk(2)):
                        model.set_requires_gradient_sync(not delayed or index == 1)
                        (loss(model(part)) / 2).backward()
                assert_grads(model, expected)


@check
def accumulation_adds_back_a_sharded_gradient_after_an_evaluation():
    model, x = sharded(False, True), batch()
    expected = expected_grads(network(), x)
    for _ in range(2):
        with torch.no_grad():
            model(mine(x))
        with accumulate(model):
            loss(model(mine(x))).backward()
    difference = whole(model[0].weight.grad) - 2 * expected["0.weight"]
    assert difference.norm() <= 1e-10 * expected["0.weight"].norm()


@check
def a_sharded_network_trains_as_the_single_process_does():
    single, model = network(), sharded(True, True, sync=True)
    optimizers = [torch.optim.Adam(net.parameters(), lr=0.01) for net in (single, model)]
    for seed in range(3):
        for name, grad in expected_grads(single, batch(seed=seed)).items():
            single.get_parameter(name).grad = grad
        model.zero_grad()
        loss(model(mine(batch(seed=seed)))).backward()
        for optimizer in optimizers:
            optimizer.step()
    for name, parameter in model.named_parameters():
        assert torch.allclose(whole(parameter), single.get_parameter(name), rtol=1e-7, atol=1e-9)


@check
def an_optimizer_made_after_the_search_trains_the_shards():
    model = network()
    fully_shard(model)
    assert apply_tract(model, sync=True, example_input=batch()) == ["0"]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        losses.append(loss(model(mine(batch()))))
        losses[-1].backward()
        optimizer.step()
    assert losses[0] != losses[1]


@check
def the_first_layer_of_a_sharded_timm_model_is_known_without_a_forward():
    timm_model = type("TimmModel", (nn.Sequential,), {"__module__": "timm.models.own"})
    model = timm_model(nn.Conv2d(3, 4, 3), nn.ReLU())
    model.pretrained_cfg = {"first_conv": "0"}
    model.forward = None
    fully_shard(model)
    assert apply_tract(model) == ["0"]


@check
def a_sharded_checkpoint_loads_into_other_shards_and_into_the_plain_network():
    model = sharded(True, True, outputs=3)
    state = get_model_state_dict(model)
    assert set(state) == set(network().state_dict())
    place = folder() / f"checkpoint{dist.get_world_size()}"
    dcp.save(state, checkpoint_id=place)
    for other in (sharded(False, False, outputs=3), network(outputs=3)):
        for parameter in other.parameters():
            nn.init.zeros_(parameter)
        target = get_model_state_dict(other)
        dcp.load(target, checkpoint_id=place)
        set_model_state_dict(other, target)
        for name, parameter in other.named_parameters():
            assert torch.equal(whole(parameter), network(outputs=3).get_parameter(name)), name


@check
def a_sharded_network_is_whitened_and_trains():
    for stem_too, tract_first in VARIANTS:
        for outputs, groups in ((4, 1), (3, 1), (6, 2)):
            single = network(outputs=outputs, groups=groups)
            whiten(single, batch(seed=20), scale=0.5)
            model = sharded(stem_too, tract_first, outputs, groups, sync=True)
            weight = model[0].weight
            parts = batch(seed=20 + dist.get_rank()).split(4)
            assert whiten(model, parts, scale=0.5) == ["0"]
            assert model[0].weight is weight
            assert isinstance(weight, DTensor)
            assert torch.allclose(whole(weight), single[0].weight, rtol=1e-7, atol=1e-9)
            expected = expected_grads(single, batch())
            loss(model(mine(batch()))).backward()
            assert_grads(model, expected)


@check
def a_sharded_weight_can_be_frozen():
    for stem_too in (False, True):
        model = sharded(stem_too, True, sync=True)
        whiten(model, batch(), freeze=True)
        before = whole(model[0].weight).clone()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)
        loss(model(mine(batch()))).backward()
        optimizer.step()
        assert model[0].weight.grad is None
        assert model[0].bias.grad is not None
        assert torch.equal(whole(model[0].weight), before)


# --- tensor parallelism ----------------------------------------------------------------------------


def linear_network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 2)).double()


def split_first_linear(model: nn.Module, style: ColwiseParallel | RowwiseParallel) -> None:
    parallelize_module(model, init_device_mesh("cpu", (dist.get_world_size(),)), {"0": style})


@check
def a_layer_whose_outputs_are_split_has_the_gradient_of_one_process():
    x = batch(images=16).reshape(-1, 8)
    single = linear_network()
    TrAct(single[0])
    loss(single(x)).backward()
    expected = {name: parameter.grad for name, parameter in single.named_parameters()}
    for tract_first in (True, False):
        model = linear_network()
        if tract_first:
            TrAct(model[0])
        split_first_linear(model, ColwiseParallel(output_layouts=Replicate()))
        if not tract_first:
            TrAct(model[0])
        loss(model(x)).backward()
        assert isinstance(model[0].weight.grad, DTensor)
        assert_grads(model, expected)


@check
def a_layer_whose_inputs_are_split_is_refused():
    model = linear_network()
    TrAct(model[0])
    split_first_linear(model, RowwiseParallel(input_layouts=Replicate()))
    message = ""
    try:
        model(batch().reshape(-1, 8))
    except TrActError as error:
        message = str(error)
    assert "use ColwiseParallel for this layer" in message


# --- ranks that disappear: each is a separate launch, because it breaks the process group ----------


def wait_for(file: Path) -> None:
    while not file.exists():
        time.sleep(0.1)


def wait_for_all_ranks() -> None:
    """Wait until all ranks have started, so that the timeout covers only the test itself."""
    (folder() / f"here{os.environ['RANK']}").touch()
    for rank in range(int(os.environ["WORLD_SIZE"])):
        wait_for(folder() / f"here{rank}")


def one_rank_dies():
    if dist.get_rank() == 1:
        os._exit(0)  # torchrun would end the others at an exit code of its own


def one_rank_stays_away():
    if dist.get_rank() == 1:
        wait_for(folder() / "rank0.json")
        os._exit(0)


def run_until_it_fails(how: str) -> None:
    """Train until rank 1 disappears; expect an error on rank 0 after the timeout."""
    model = network()
    TrAct(model[0], sync=True)
    x = mine(batch())
    loss(model(x)).backward()  # makes the group
    try:
        if how == "join":
            ddp = DistributedDataParallel(model)
            with ddp.join():
                for _ in range(2 - dist.get_rank()):
                    loss(ddp(x)).backward()
        else:
            {"dies": one_rank_dies, "stays away": one_rank_stays_away}[how]()
            loss(model(x)).backward()
    except RuntimeError:
        write({how: "ok"})
        os._exit(0)
    write({how: "no error was raised"})
    os._exit(0)


def folder() -> Path:
    return Path(os.environ["WORKER_FOLDER"])


def write(results: dict[str, str]) -> None:
    (folder() / f"rank{dist.get_rank()}.json").write_text(json.dumps(results))


def main() -> None:
    torch.set_num_threads(1)
    wait_for_all_ranks()
    dist.init_process_group("gloo", timeout=SHORT_TIMEOUT if sys.argv[1:] else TIMEOUT)
    if sys.argv[1:]:
        run_until_it_fails(sys.argv[1])
    results: dict[str, str] = {}
    for name, function in CHECKS.items():
        if name in ONLY_ON_TWO_RANKS and dist.get_world_size() > 2:
            continue
        started = time.monotonic()
        try:
            function()
            results[name] = "ok"
        except Exception:
            results[name] = traceback.format_exc()
        print(dist.get_rank(), name, f"{time.monotonic() - started:.1f} s", flush=True)
        write(results)
        if results[name] != "ok":
            print(results[name], flush=True)
            os._exit(1)
    dist.barrier()
    leave_ranks()


if __name__ == "__main__":
    main()
