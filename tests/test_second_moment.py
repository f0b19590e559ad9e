"""The second moment: sums, the one division by b, its factor, and how long it is kept."""

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

from cases import CASES, Case, assert_close
from trainact.options import Precision
from trainact.reference import cut_patches
from trainact.rows import RowSample, patches_of_layer, unfold_rows
from trainact.second_moment import KeptMoment, SecondMoment

FLOAT64 = Precision(torch.float64, torch.float64)


def moment_of(rows: Tensor) -> SecondMoment:
    return SecondMoment((rows.T @ rows)[None], len(rows))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_it_is_that_of_the_rows(case: Case):
    layer, x = case.draw()
    rows = cut_patches(x, layer)
    moment = SecondMoment.measure(x, patches_of_layer(layer), FLOAT64)
    assert moment.num_rows == rows.shape[1]
    assert_close(moment.divide_by_rows(), rows.mT @ rows / max(1, rows.shape[1]))


def test_a_sample_counts_for_all_rows():
    layer, x = nn.Conv2d(3, 4, 3).double(), torch.randn(2, 3, 8, 8).double()
    patches, sample = patches_of_layer(layer), RowSample(9, torch.tensor(5))
    moment = SecondMoment.measure(x, patches, FLOAT64, sample)
    rows = unfold_rows(x, patches, sample)
    assert moment.num_rows == 72
    assert_close(moment.divide_by_rows(), rows.mT @ rows / 9)


@pytest.mark.parametrize("as_tensor", [False, True])
def test_rows_add_up(as_tensor):
    x = torch.randn(30, 4).double()
    total = torch.zeros(1, 4, 4).double()
    pool = SecondMoment(total, total.new_zeros(()) if as_tensor else 0)
    for part in x.split([7, 23]):
        pool.add_(moment_of(part))
    assert pool.total is total
    assert_close(pool.divide_by_rows(), (x.T @ x / 30)[None])


@pytest.mark.parametrize("num_rows", [0, torch.zeros(())])
def test_without_rows_it_is_zero(num_rows):
    assert not SecondMoment(torch.zeros(1, 3, 3), num_rows).divide_by_rows().any()


def test_one_rank_is_the_sum_over_ranks():
    x = torch.randn(30, 4).double()
    moment = moment_of(x)
    moment.begin_sum_over_ranks(0)
    moment.wait()
    moment.wait()
    assert_close(moment.divide_by_rows(), (x.T @ x / 30)[None])


def test_the_factor_is_computed_once_for_each_lam():
    x = torch.randn(30, 4).double()
    moment = moment_of(x)
    factor = moment.factorize(0.1)
    assert_close(factor.lower @ factor.lower.mT, (x.T @ x / 30 + 0.1 * torch.eye(4).double())[None])
    assert moment.factorize(0.1) is factor
    other = moment.factorize(0.2).lower
    assert_close(other @ other.mT, (x.T @ x / 30 + 0.2 * torch.eye(4).double())[None])


def use(kept: KeptMoment, lam: float, measured: list[SecondMoment]) -> SecondMoment:
    """Find the kept moment and factorize it, as a backward does; record those measured."""

    def measure() -> SecondMoment:
        measured.append(moment_of(torch.randn(30, 4).double()))
        return measured[-1]

    moment = kept.find(lam, measure)
    moment.factorize(lam)
    return moment


def test_a_kept_moment_is_measured_every_so_many_times():
    kept, measured = KeptMoment(3), []
    found = [use(kept, 0.1, measured) for _ in range(7)]
    assert [measured.index(moment) for moment in found] == [0, 0, 0, 1, 1, 1, 2]


def test_another_lam_measures_at_once():
    kept, measured = KeptMoment(3), []
    found = [use(kept, lam, measured) for lam in (0.1, 0.2, 0.2, 0.2, 0.2)]
    assert [measured.index(moment) for moment in found] == [0, 1, 1, 1, 2]


@pytest.mark.parametrize("copy_it", [copy.deepcopy, lambda kept: pickle.loads(pickle.dumps(kept))])
def test_a_copy_starts_without_a_moment(copy_it):
    kept, measured = KeptMoment(100), []
    use(kept, 0.1, measured)
    twin = copy_it(kept)
    assert twin.every == 100
    use(twin, 0.1, measured)
    assert len(measured) == 2
