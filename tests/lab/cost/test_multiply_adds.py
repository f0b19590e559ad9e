"""TrAct's multiply-adds against what the code multiplies, and forwards against torch's counter."""

import math

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from trainact.lab.cost.multiply_adds import count_extra, count_forward, estimate_cost
from trainact.lab.models.networks import build_network
from trainact.lab.models.zoos import build_meta_model, build_on_meta
from trainact.options import Precision
from trainact.outer_products import sum_outer_products
from trainact.rows import count_rows, patches_of_layer


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv2d(3, 8, 3, padding=1), (64, 3, 64, 64)),
        (nn.Conv2d(3, 8, 7, stride=2, padding=3), (32, 3, 224, 224)),
        (nn.Conv2d(4, 8, 3, groups=2, dilation=2), (8, 4, 32, 32)),
    ],
    ids=["lines", "lines-stride-2", "groups-dilated"],
)
def test_the_cost_of_overlapping_patches_is_about_what_the_code_multiplies(layer, shape):
    """Lines beyond the image and borders are multiplied too: up to a fifth comes on top."""
    n, m, g = math.prod(layer.weight.shape[1:]), layer.weight.shape[0], layer.groups
    x, patches = torch.randn(shape), patches_of_layer(layer)
    with FlopCounterMode(display=False) as counter:
        sum_outer_products(x, patches, Precision(torch.float32, torch.float64))
    products = counter.get_total_flops() / 2
    estimate = count_extra(layer, count_rows(x, patches)) - g * n**3 / 3 - n**2 * m
    assert estimate <= 1.01 * products
    assert products <= 1.2 * estimate


def test_patches_that_do_not_overlap_need_half_of_the_products():
    patches, tokens = nn.Conv2d(3, 8, 4, stride=4), nn.Linear(48, 8)
    expected = 1000 * 48 * 49 / 2 + 48**3 / 3 + 48**2 * 8
    assert count_extra(patches, 1000) == count_extra(tokens, 1000) == pytest.approx(expected)


def test_few_rows_cost_a_system_of_their_own_size():
    b, n, m = 5, 48, 8
    expected = b * (b + 1) / 2 * n + b**3 / 3 + b * b * m + 2 * b * n * m
    assert count_extra(nn.Linear(n, m), b) == pytest.approx(expected)


def test_a_models_cost_is_counted_by_image_and_by_step():
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 8), nn.Linear(8, 2))
    cost = estimate_cost(model, example_input=torch.zeros(4, 3, 4, 4), batch=100)
    (layer,) = cost.layers
    assert (layer.name, layer.num_inputs, layer.rows_per_image) == ("1", 48, 1)
    assert cost.forward == 48 * 8 + 8 * 2
    assert cost.complete
    assert cost.ratio == pytest.approx(count_extra(model[1], 100) / (3 * 100 * cost.forward))


def test_attention_is_counted():
    cost = estimate_cost(build_meta_model("timm:vit_tiny_patch16_224").model)
    tokens, width, depth = 197, 192, 12
    block = 12 * tokens * width**2 + 2 * tokens**2 * width
    expected = 196 * 768 * width + depth * block + width * 1000
    assert cost.forward == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("name", ["vit-cifar", "resnext50", "shufflenetv2"])
def test_the_quick_count_of_a_forward_is_torchs_own(name):
    model = build_on_meta(lambda: build_network(name, 100)).eval()
    images = torch.zeros(1, 3, 32, 32, device="meta")
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
        model(images)
    assert count_forward(model, images) == counter.get_total_flops() / 2
