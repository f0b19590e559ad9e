"""The second moment: sums, the one division by b, its factor, and how long it is kept."""

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

from cases import CASES, Case, assert_close
from trainact.options import Precision
from trainact.reference import average_over_steps, cut_patches
from trainact.rows import RowSample, patches_of_layer, unfold_rows
from trainact.second_moment import KeptMoment, SecondMoment

FLOAT64 = Precision(torch.float64, torch.float64)


def moment_of(rows: Tensor, center: bool = False) -> SecondMoment:
    row_sum = rows.sum(0)[None] if center else None
    return SecondMoment((rows.T @ rows)[None], len(rows), row_sum)


def empty(center: bool = False) -> SecondMoment:
    return SecondMoment.without_rows((1, 4), torch.float64, torch.device("cpu"), center=center)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_it_is_that_of_the_rows(case: Case):
    layer, x = case.draw()
    rows = cut_patches(x, layer)
    moment = SecondMoment.measure(x, patches_of_layer(layer), FLOAT64)
    assert moment.num_rows == rows.shape[1]
    assert_close(moment.divide_by_rows(), rows.mT @ rows / max(1, rows.shape[1]))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_centered_one_has_the_mean_and_the_covariance_of_the_rows(case: Case):
    layer, x = case.draw()
    rows = cut_patches(x + 5, layer)
    num_rows = max(1, rows.shape[1])
    moment = SecondMoment.measure(x + 5, patches_of_layer(layer), FLOAT64, center=True)
    assert_close(moment.mean(), rows.sum(1) / num_rows)
    assert_close(moment.divide_by_rows(), rows.mT @ rows / num_rows)
    centred = rows - rows.sum(1, keepdim=True) / num_rows
    lower = moment.factorize(0.1).lower
    damped = centred.mT @ centred / num_rows + 0.1 * torch.eye(rows.shape[-1]).double()
    assert_close(lower @ lower.mT, damped)


@pytest.mark.parametrize("inputs", [6, 300])
def test_a_large_mean_costs_the_covariance_no_digits(inputs):
    """Pixels around 1000 with a variance of 1, in float32; 300 columns sum in float32."""
    x = torch.randn(2000, inputs) + 1000
    patches, precision = (
        patches_of_layer(nn.Linear(inputs, 2)),
        Precision(torch.float32, torch.float32),
    )
    moment = SecondMoment.measure(x, patches, precision, center=True)
    other = SecondMoment.measure(x + 1, patches, precision, center=True)
    moment.add_(other)
    both = torch.cat([x, x + 1]).double()
    expected = (both - both.mean(0)).T @ (both - both.mean(0)) / 4000 + torch.eye(inputs).double()
    lower = moment.factorize(1.0).lower
    assert_close(lower[0] @ lower[0].T, expected, 1e-6)


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


@pytest.mark.parametrize("center", [False, True])
def test_one_rank_is_the_sum_over_ranks(center):
    x = torch.randn(30, 4).double()
    moment = moment_of(x, center)
    moment.begin_sum_over_ranks(0)
    moment.wait()
    moment.wait()
    assert_close(moment.divide_by_rows(), (x.T @ x / 30)[None])
    if center:
        assert_close(moment.mean(), x.mean(0)[None])


def test_the_factor_is_computed_once_for_each_lam():
    x = torch.randn(30, 4).double()
    moment = moment_of(x)
    factor = moment.factorize(0.1)
    assert_close(factor.lower @ factor.lower.mT, (x.T @ x / 30 + 0.1 * torch.eye(4).double())[None])
    assert moment.factorize(0.1) is factor
    other = moment.factorize(0.2).lower
    assert_close(other @ other.mT, (x.T @ x / 30 + 0.2 * torch.eye(4).double())[None])


@pytest.mark.parametrize("decay", [0.5, 0.99])
@pytest.mark.parametrize("center", [False, True])
def test_the_average_over_steps_is_corrected_for_its_start(decay, center):
    average = empty(center)
    steps = [torch.randn(b, 4).double() + 1 for b in (30, 5, 1, 12)]
    for t in range(1, 5):
        result = average.update_average_(moment_of(steps[t - 1], center), decay)
        expected = average_over_steps([(x.T @ x / len(x))[None] for x in steps[:t]], decay)
        assert_close(result.divide_by_rows(), expected)
        assert_close(average.divide_by_rows(), expected)
        if center:
            means = average_over_steps([x.mean(0)[None] for x in steps[:t]], decay)
            assert_close(average.mean(), means)
            lower = result.factorize(0.1).lower
            damped = expected - means.mT @ means + 0.1 * torch.eye(4).double()
            assert_close(lower @ lower.mT, damped)


def test_an_average_of_a_step_repeated_is_that_step():
    average, x = empty(), torch.randn(30, 4).double()
    for _ in range(5):
        average.update_average_(moment_of(x), 0.9)
    assert_close(average.divide_by_rows(), (x.T @ x / 30)[None])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_rows_that_are_not_finite_do_not_stay_in_the_average(bad):
    average, x = empty(center=True), torch.randn(30, 4).double()
    average.update_average_(moment_of(x, center=True), 0.9)
    before = [tensor.clone() for tensor in average.sums]
    y = x.clone()
    y[3, 2] = bad
    result = average.update_average_(moment_of(y, center=True), 0.9)
    assert not result.total.isfinite().all()
    assert all(map(torch.equal, average.sums, before))


@pytest.mark.parametrize("as_tensor", [False, True])
def test_a_step_without_rows_does_not_count(as_tensor):
    average, x = empty(), torch.randn(30, 4).double()
    average.update_average_(moment_of(x), 0.9)
    nothing = SecondMoment(torch.zeros(1, 4, 4).double(), torch.zeros(()) if as_tensor else 0)
    average.update_average_(nothing, 0.9)
    assert average.num_rows == 1
    assert_close(average.divide_by_rows(), (x.T @ x / 30)[None])


def test_sums_move_between_devices_and_start_anew_from_the_meta_device():
    average, x = empty(center=True), torch.randn(30, 4).double()
    average.update_average_(moment_of(x, center=True), 0.9)
    same = average.to(torch.device("cpu"))
    assert all(map(torch.equal, same.sums, average.sums))
    there = average.to(torch.device("meta"))
    assert all(tensor.is_meta for tensor in there.sums)
    back = there.to(torch.device("cpu"))
    assert not any(tensor.any() for tensor in back.sums)


def use(kept: KeptMoment, lam: float, measured: list[SecondMoment]) -> SecondMoment:
    """Find the kept moment and factorize it, as a backward does; record those measured."""

    def measure() -> SecondMoment:
        measured.append(moment_of(torch.randn(30, 4).double()))
        return measured[-1]

    moment = kept.find(lam, torch.zeros(3, 4), measure)
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
