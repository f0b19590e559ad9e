"""every= and rows=: what the cheaper options approximate."""

import copy
import math
import pickle

import pytest
import torch
from torch import nn

from cases import CASES, Case, assert_close
from trainact import TrAct, accumulate
from trainact.reference import cut_patches, tract_gradient_of_layer
from trainact.rows import RowSample, count_rows, patches_of_layer, unfold_rows


def step(layer, x, grad_z):
    layer.zero_grad()
    layer(x).backward(grad_z)
    return layer.weight.grad.clone()


def by_moment_of(layer, x, grad_z, moment_x, lam=0.1):
    """Return the plain gradient on ``x``, preconditioned with the second moment of other rows."""
    rows, others = cut_patches(x, layer)[0], cut_patches(moment_x, layer)[0]
    plain = grad_z.movedim(1, -1).flatten(0, -2).T @ rows
    moment = others.T @ others / len(others)
    inverse = torch.linalg.inv(moment + lam * torch.eye(len(moment)).double())
    return (plain @ inverse).view_as(layer.weight)


def batches(count: int):
    return [
        (torch.randn(4, 3, 8, 8).double(), torch.randn(4, 5, 6, 6).double()) for _ in range(count)
    ]


def test_every_reuses_the_last_second_moment():
    layer = TrAct(nn.Conv2d(3, 5, 3).double(), every=3)
    data = batches(7)
    for i, (x, grad_z) in enumerate(data):
        moment_x = data[i - i % 3][0]
        assert_close(step(layer, x, grad_z), by_moment_of(layer, x, grad_z, moment_x))


def test_a_forward_without_a_backward_does_not_count():
    layer = TrAct(nn.Conv2d(3, 5, 3).double(), every=2)
    (x0, g0), (x1, g1) = batches(2)
    step(layer, x0, g0)
    for _ in range(5):
        layer(x0)
    assert_close(step(layer, x1, g1), by_moment_of(layer, x1, g1, x0))


def test_a_factorization_that_failed_is_not_kept():
    layer = TrAct(nn.Conv2d(3, 5, 3).double(), every=100)
    (x0, g0), (x1, g1), (x2, g2) = batches(3)
    assert step(layer, x0.clone().fill_(torch.inf), g0).isnan().any()
    assert_close(step(layer, x1, g1), by_moment_of(layer, x1, g1, x1))
    assert_close(step(layer, x2, g2), by_moment_of(layer, x2, g2, x1))


def test_another_shape_of_the_weight_refreshes_at_once():
    layer = TrAct(nn.Linear(5, 3).double(), every=100)
    layer(torch.randn(20, 5).double()).sum().backward()
    layer.in_features, layer.weight = 7, nn.Parameter(torch.randn(3, 7).double())
    x, grad_z = torch.randn(20, 7).double(), torch.randn(20, 3).double()
    layer(x).backward(grad_z)
    assert_close(layer.weight.grad, tract_gradient_of_layer(layer, x, grad_z))


def test_a_change_of_lam_refreshes_at_once():
    layer = TrAct(nn.Conv2d(3, 5, 3).double(), every=100)
    (x0, g0), (x1, g1) = batches(2)
    step(layer, x0, g0)
    layer.lam = 0.5
    assert_close(step(layer, x1, g1), by_moment_of(layer, x1, g1, x1, lam=0.5))


@pytest.mark.parametrize("copy_layer", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_the_factor_is_in_no_checkpoint_and_a_resumed_run_refreshes_first(copy_layer):
    layer = TrAct(nn.Conv2d(3, 5, 3).double(), every=100)
    (x0, g0), (x1, g1) = batches(2)
    step(layer, x0, g0)
    assert set(layer.state_dict()) == {"weight", "bias"}
    resumed = copy_layer(layer)
    assert_close(step(resumed, x1, g1), by_moment_of(layer, x1, g1, x1))
    assert_close(step(layer, x1, g1), by_moment_of(layer, x1, g1, x0))


def test_accumulate_is_exact_also_with_every():
    layer = TrAct(nn.Conv2d(3, 5, 3).double(), every=100)
    (x0, g0), (x1, g1) = batches(2)
    step(layer, x0, g0)
    layer.zero_grad()
    with accumulate(layer):
        layer(x1).backward(g1)
    assert_close(layer.weight.grad, tract_gradient_of_layer(layer, x1, g1))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("seed", [0, 3])
def test_a_sample_is_one_row_of_each_stratum(case: Case, seed):
    layer, x = case.draw()
    patches = patches_of_layer(layer)
    num_rows = count_rows(x, patches)
    rows = cut_patches(x, layer)
    for count in {1, num_rows // 3, num_rows // 2, num_rows} - {0} if num_rows else ():
        sample = unfold_rows(x, patches, RowSample(count, torch.tensor(seed)))
        assert sample.shape == (rows.shape[0], count, rows.shape[2])
        for stratum, row in enumerate(sample.transpose(0, 1)):
            first, last = stratum * num_rows / count, (stratum + 1) * num_rows / count
            candidates = rows[:, int(first) : math.ceil(last)]
            assert (candidates == row.unsqueeze(1)).all(-1).all(0).any()


def test_samples_differ_from_step_to_step_and_leave_the_global_random_state_alone():
    layer = TrAct(nn.Linear(4, 3).double(), rows=50)
    x, grad_z = torch.randn(1000, 4).double(), torch.randn(1000, 3).double()
    random_state = torch.get_rng_state()
    first, second = step(layer, x, grad_z), step(layer, x, grad_z)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert not torch.equal(first, second)
    again = TrAct(copy.deepcopy(nn.Linear(4, 3)).double(), rows=50)
    again.load_state_dict(layer.state_dict())
    assert torch.equal(step(again, x, grad_z), first)


def test_samples_are_spread_evenly():
    """Over many steps every row is taken about equally often."""
    x, patches = torch.arange(40.0).unsqueeze(1), patches_of_layer(nn.Linear(1, 1))
    samples = (RowSample(8, torch.tensor(seed)) for seed in range(2000))
    taken = torch.stack([unfold_rows(x, patches, sample)[0, :, 0] for sample in samples])
    frequency = torch.bincount(taken.long().flatten(), minlength=40) / 2000
    assert (frequency - 8 / 40).abs().max() < 0.04


def test_rows_estimate_the_second_moment_and_nothing_else():
    """The mean of many sampled second moments is the whole one; the plain gradient is exact."""
    x = torch.randn(6, 3, 10, 10).double()
    patches = patches_of_layer(nn.Conv2d(3, 5, 3))
    whole = cut_patches(x, nn.Conv2d(3, 5, 3))[0]
    samples = [unfold_rows(x, patches, RowSample(64, torch.tensor(s)))[0] for s in range(400)]
    mean = torch.stack([s.T @ s / 64 for s in samples]).mean(0)
    exact = whole.T @ whole / len(whole)
    assert ((mean - exact).norm() / exact.norm()).item() < 0.03


@pytest.mark.parametrize("rows", [10, 40, 10**6])
def test_the_gradient_uses_the_sample(rows):
    """Fewer rows than columns, more of them, and more than there are."""
    layer = TrAct(nn.Conv2d(3, 5, 3).double(), rows=rows)
    ((x, grad_z),) = batches(1)
    patches = patches_of_layer(layer)
    sample = cut_patches(x, layer)
    if rows < sample.shape[1]:
        sample = unfold_rows(x, patches, RowSample(rows, torch.tensor(0)))
    plain = grad_z.movedim(1, -1).flatten(0, -2).T @ cut_patches(x, layer)[0]
    moment = (sample.mT @ sample / sample.shape[1])[0]
    expected = plain @ torch.linalg.inv(moment + 0.1 * torch.eye(27).double())
    assert_close(step(layer, x, grad_z), expected.view_as(layer.weight), 1e-8)


def test_sampled_micro_batches_are_weighted_by_their_rows():
    layer = TrAct(nn.Linear(6, 4).double(), rows=500)
    x, grad_z = torch.randn(6000, 6).double(), torch.randn(6000, 4).double()
    x[:1000] *= 3
    parts = [1000, 5000]
    with accumulate(layer):
        for rows, grads in zip(x.split(parts), grad_z.split(parts), strict=True):
            layer(rows).backward(grads)
    assert_close(layer.weight.grad, tract_gradient_of_layer(layer, x, grad_z), 0.15)
