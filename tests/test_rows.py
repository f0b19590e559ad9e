"""Unfolded rows against patches cut out one by one."""

import math

import pytest
import torch
from torch import nn

from cases import CASES, Case
from trainact.errors import TrActValueError
from trainact.reference import cut_patches
from trainact.rows import (
    count_inputs,
    count_rows,
    describe_patches,
    patches_of_layer,
    shift_input,
    sum_rows,
    unfold_in_chunks,
    unfold_rows,
)

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@every_case
def test_rows_are_the_patches_in_the_order_of_the_weight(case: Case):
    layer, x = case.draw()
    expected = cut_patches(x, layer)
    patches = patches_of_layer(layer)
    assert count_rows(x, patches) == expected.shape[1]
    assert count_inputs(x, patches) == expected.shape[2]
    if expected.shape[1]:
        assert torch.equal(unfold_rows(x, patches), expected)


@every_case
@pytest.mark.parametrize("max_elements", [1, 200, 10**9])
def test_chunks_hold_the_same_rows_as_the_whole(case: Case, max_elements: int):
    layer, x = case.draw()
    patches = patches_of_layer(layer)
    chunks = list(unfold_in_chunks(x, patches, max_elements))
    num_rows = count_rows(x, patches)
    assert sum(chunk.shape[1] for chunk in chunks) == num_rows
    if num_rows:
        whole = unfold_rows(x, patches)
        chunked = torch.cat(chunks, dim=1)
        assert torch.allclose(chunked.mT @ chunked, whole.mT @ whole)
        assert torch.allclose(chunked.sum(1), whole.sum(1))


@every_case
def test_the_sum_of_the_rows_needs_no_rows(case: Case):
    layer, x = case.draw()
    patches, rows = patches_of_layer(layer), cut_patches(x, layer)
    for dtype in (torch.float32, torch.float64):
        total = sum_rows(x.to(dtype), patches, torch.float64)
        assert total.dtype == torch.float64
        assert torch.allclose(total, rows.sum(1), rtol=1e-5, atol=1e-5)
    assert torch.allclose(sum_rows(x, patches, torch.float64), rows.sum(1), atol=1e-12)


@every_case
def test_a_shifted_input_has_shifted_rows_also_at_the_border(case: Case):
    layer, x = case.draw()
    patches = patches_of_layer(layer)
    if not count_rows(x, patches):
        pytest.skip("no rows")
    channels = x.shape[-len(patches.kernel_size) - 1]
    shift = torch.randn(channels).double()
    shifted, unpadded = shift_input(x, patches, shift)
    columns = shift.reshape(patches.groups, -1, 1).expand(-1, -1, math.prod(patches.kernel_size))
    expected = cut_patches(x, layer) - columns.reshape(patches.groups, 1, -1)
    assert torch.equal(unfold_rows(shifted, unpadded), expected)


def test_rows_times_weight_are_the_pre_activations():
    layer = nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2, bias=False).double()
    x = torch.randn(3, 4, 9, 9).double()
    rows = unfold_rows(x, patches_of_layer(layer))
    z = rows @ layer.weight.reshape(2, 3, -1).mT  # [g, b, m/g]
    expected = layer(x).movedim(1, -1).reshape(-1, 2, 3).transpose(0, 1)
    assert torch.allclose(z, expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"padding_mode": "mirror"}, "padding_mode='mirror' is unknown; use one of zeros, reflect"),
        ({"padding": "full"}, "padding='full' is unknown; use a number, 'same' or 'valid'"),
        ({"stride": (1, 2, 3)}, r"\(1, 2, 3\) has 3 numbers for 2 dimensions"),
    ],
)
def test_an_unknown_geometry_is_refused(arguments, message):
    with pytest.raises(TrActValueError, match=message):
        describe_patches((3, 3), **arguments)
