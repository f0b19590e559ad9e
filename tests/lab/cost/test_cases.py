"""The cases that trainact bench measures."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from trainact.lab.cost.cases import (
    FAST_NETWORK,
    GPU_NETWORKS,
    LAYERS,
    NETWORKS,
    LayerCase,
    choose_networks,
)
from trainact.lab.cost.timing import measure_peak_memory
from trainact.lab.models.build import build_model
from trainact.lab.models.networks import build_network
from trainact.lab.models.networks.vit import CifarViT
from trainact.lab.recipes.experiment import find_experiment
from trainact.rows import count_rows, patches_of_layer

CPU = torch.device("cpu")


def test_a_case_has_a_plain_layer_and_one_with_tract():
    case = LayerCase("small", lambda: torch.nn.Conv2d(3, 4, 3, padding=1), (4, 3, 12, 12))
    work = case.set_up(CPU, torch.float32, compiled=False)
    assert set(work.variants) >= {"plain", "trainact"}
    for run in (*work.variants.values(), work.extra):
        run()
    assert work.input_bytes == 4 * 3 * 12 * 12 * 4


def test_the_overlapping_stems_stay_within_twice_the_input():
    """Peak extra memory of TrAct's own work, without the n × n terms; no time is asserted."""
    small = LayerCase("7x7, batch 16", lambda: nn.Conv2d(3, 64, 7, 2, 3), (16, 3, 224, 224))
    for case in (*LAYERS, small):
        work = case.set_up(CPU, torch.float32, compiled=False)
        extra = measure_peak_memory(work.extra, CPU)
        weight = case.make().weight[0].numel()
        square_terms = 6 * 8 * weight**2
        limit = 1.1 if "ViT" in case.name else 2.0
        assert extra <= limit * work.input_bytes + square_terms, case.name


@pytest.mark.parametrize("batch", [2, 4, 8])
@pytest.mark.parametrize("case", [c for c in LAYERS if c.shape[-1] == 224], ids=lambda c: c.name)
def test_small_batches_need_at_most_twice_the_input_or_4_mib(case, batch):
    """Besides two of each matrix of the solve, in float64, and the rows where b < n."""
    small = LayerCase(case.name, case.make, (batch, *case.shape[1:]))
    work = small.set_up(CPU, torch.float32, compiled=False)
    layer = case.make()
    m, n = len(layer.weight), layer.weight[0].numel()
    b = count_rows(torch.empty(small.shape, device="meta"), patches_of_layer(layer))
    numbers = 2 * (b * b + m * n) + b * n if b < n else 2 * (n * n + m * n)
    limit = max(2 * work.input_bytes, 4 << 20) + 8 * numbers
    assert measure_peak_memory(work.extra, CPU) <= limit


def test_the_networks_are_those_of_the_paper():
    assert sum(p.numel() for p in CifarViT().parameters()) == 6_268_810
    resnet = next(n for n in NETWORKS if n.name.startswith("CIFAR ResNet")).make()
    assert resnet.conv1.stride == (1, 1)
    assert resnet.maxpool.kernel_size == 3


def test_setting_up_a_case_leaves_the_random_state():
    case = LayerCase("small", lambda: nn.Conv2d(3, 4, 3), (2, 3, 8, 8))
    torch.manual_seed(7)
    first, _ = case._make_plain(CPU, torch.float32)
    drawn = torch.rand(3)
    torch.manual_seed(7)
    assert torch.equal(drawn, torch.rand(3))
    assert torch.equal(first.weight, case._make_plain(CPU, torch.float32)[0].weight)


def test_the_fast_network_is_that_of_its_recipe():
    run = find_experiment("cifar10-speed").plan()[0]
    (case,) = (case for case in NETWORKS if case.name == FAST_NETWORK)
    assert case.shape == (run.data.batch_size, 3, 32, 32)
    network, images = replace(case, shape=(2, 3, 32, 32))._make_plain(CPU, torch.float32)
    assert run.run.channels_last
    assert images.is_contiguous(memory_format=torch.channels_last)
    expected = build_network("speed", 10, **run.model.arguments)
    shapes = {name: value.shape for name, value in network.state_dict().items()}
    assert shapes == {name: value.shape for name, value in expected.state_dict().items()}
    for weight in network.parameters():
        assert weight.dim() < 4 or weight.is_contiguous(memory_format=torch.channels_last)


def test_a_gpu_also_measures_the_share_of_the_papers_gpus():
    assert choose_networks(CPU) == NETWORKS
    assert choose_networks(torch.device("cuda")) == (*NETWORKS, *GPU_NETWORKS)
    for case, recipe in zip(GPU_NETWORKS, ("time-deit3-vit-s", "time-deit3-vit-b"), strict=True):
        run = find_experiment(recipe).plan()[0]
        size = run.data.image_size
        assert case.shape == (run.data.batch_size, 3, size, size)
        with torch.device("meta"):
            ours = sum(p.numel() for p in case.make().parameters())
            theirs = build_model(run.model, 1000, 3, size)
        assert ours == sum(p.numel() for p in theirs.parameters())
