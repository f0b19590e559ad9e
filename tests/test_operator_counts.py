"""How many operators one backward of a layer calls on an accelerator; each is a kernel launch.

There is no accelerator here: tensors on the meta device take the same path. They have no values, so
a synchronisation or a shape that depends on values would raise.
"""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

pytest.importorskip("rich", reason="the lab's tables need rich")

from trainact import TrAct
from trainact.lab.cost.launches import METHODS, count_operators, count_stem_launches
from trainact.options import Precision
from trainact.outer_products import sum_outer_products
from trainact.rows import patches_of_layer

STEMS = {
    "cifar-3x3": (nn.Conv2d, (3, 64, 3, 1, 1), (128, 3, 32, 32), 25),
    "linear": (nn.Linear, (48, 384), (128, 64, 48), 25),
    "resnet-7x7": (nn.Conv2d, (3, 64, 7, 2, 3), (32, 3, 224, 224), 35),
    "resnet-7x7-batch-256": (nn.Conv2d, (3, 64, 7, 2, 3), (256, 3, 224, 224), 35),
    "vgg-3x3": (nn.Conv2d, (3, 64, 3, 1, 1), (16, 3, 224, 224), 25),
    "convnext-4x4": (nn.Conv2d, (3, 96, 4, 4), (32, 3, 224, 224), 25),
    "vit-s-16": (nn.Conv2d, (3, 384, 16, 16), (32, 3, 224, 224), 25),
    "vit-s-16-few-rows": (nn.Conv2d, (3, 384, 16, 16), (2, 3, 224, 224), 25),
}
RECORD = Path(__file__).parents[1] / "results" / "bench" / "bench.json"
stems = pytest.mark.parametrize("name", STEMS)


def count(name: str, **options) -> list[str]:
    cls, arguments, shape, _ = STEMS[name]
    layer = TrAct(cls(*arguments, device="meta"), **options)
    z = layer(torch.empty(shape, device="meta"))
    grad_z = torch.empty_like(z)
    operators = count_operators(lambda: z.backward(grad_z))
    assert layer.weight.grad.shape == layer.weight.shape
    return operators


@stems
def test_an_accelerator_gets_few_operators(name):
    operators = count(name)
    assert len(operators) <= STEMS[name][3], operators


@stems
def test_summing_over_ranks_takes_at_most_ten_more(name):
    with_sync, alone = count(name, sync=True), count(name)
    assert len(with_sync) <= min(len(alone) + 10, STEMS[name][3] + 10), with_sync


def test_the_counts_of_the_bench_are_those_of_the_committed_record():
    """After a change, ``trainact bench --launches --out results/bench`` counts again."""
    launches = json.loads(RECORD.read_text())["launches"]
    if launches["torch"] != torch.__version__:
        pytest.skip(f"the record is of torch {launches['torch']}")
    assert launches["stems"] == count_stem_launches()


def test_the_method_of_a_device_takes_part_of_its_operators():
    for row in count_stem_launches("ViT-S"):
        assert set(row["methods"]) == set(METHODS)
        for kind in ("cpu", "accelerator"):
            assert row["methods"][row[kind]["method"]] < row[kind]["operators"]


def test_a_custom_operator_counts_as_what_it_calls():
    x, patches = torch.randn(2, 3, 8, 8), patches_of_layer(nn.Conv2d(3, 4, 3))
    precision = Precision(torch.float32, torch.float64)
    padding = [amount for sides in patches.padding for amount in sides]
    compiled = torch.ops.trainact.sum_outer_products
    arguments = (patches.kernel_size, patches.stride, padding, patches.dilation, 1, "zeros")
    inside = count_operators(lambda: compiled(x, *arguments, *precision, None, 0))
    assert inside == count_operators(lambda: sum_outer_products(x, patches, precision))
