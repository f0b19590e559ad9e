"""The formulas of whitened filters, on second moments of which everything is known."""

import pytest
import torch

from cases import assert_close
from trainact.filters import (
    decompose,
    draw_rotation,
    mean_square,
    select_basis,
    spread_basis,
    whiten_weight,
)
from trainact.whitening_settings import count_directions


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_walks(count: int = 400, length: int = 12) -> torch.Tensor:
    """Rows whose eigenvalues fall over several orders of magnitude."""
    return torch.randn(count, length, dtype=torch.float64).cumsum(1)


def moment_of(rows: torch.Tensor) -> torch.Tensor:
    return rows.T @ rows / len(rows)


def test_the_eigenvectors_are_ordered_and_have_a_fixed_sign():
    moment = moment_of(random_walks())
    eigenvalues, directions = decompose(moment)
    assert (eigenvalues.diff() <= 0).all()
    assert_close(directions.T @ torch.diag(eigenvalues) @ directions, moment, 1e-12)
    largest = directions.abs().argmax(1)
    assert (directions[torch.arange(12), largest] > 0).all()


def test_the_sign_does_not_depend_on_the_solver():
    moment = torch.diag(torch.tensor([1.0, 4.0, 2.0], dtype=torch.float64))
    expected = torch.tensor([[0, 1, 0], [0, 0, 1], [1, 0, 0]], dtype=torch.float64)
    assert torch.equal(decompose(moment).directions, expected)


def test_a_negative_rounding_error_of_an_eigenvalue_is_removed():
    row = torch.randn(1, 6, dtype=torch.float64)
    assert (decompose(moment_of(row)).eigenvalues >= 0).all()


def test_the_outputs_of_the_basis_are_decorrelated():
    rows = random_walks()
    basis = select_basis(decompose(moment_of(rows)), eps=0.0, rounding=0.0)
    assert_close(moment_of(rows @ basis.T), torch.eye(12, dtype=torch.float64), 1e-9)


def test_eps_is_relative_to_the_mean_eigenvalue():
    rows = random_walks()
    moment = moment_of(rows)
    eigenvalues = torch.linalg.eigvalsh(moment).flip(0)
    basis = select_basis(decompose(moment), eps=0.5, rounding=0.0)
    expected = eigenvalues / (eigenvalues + 0.5 * eigenvalues.mean())
    assert_close(moment_of(rows @ basis.T), torch.diag(expected), 1e-9)
    scaled = select_basis(decompose(moment_of(7 * rows)), eps=0.5, rounding=0.0)
    assert_close(7 * scaled, basis, 1e-9)


@pytest.mark.parametrize("rank", [1, 4, 12])
def test_directions_without_variance_are_left_out(rank):
    rows = random_walks()[:, :rank] @ torch.randn(rank, 12, dtype=torch.float64)
    assert select_basis(decompose(moment_of(rows)), 5e-4, 0.0).shape == (rank, 12)


def test_directions_of_rounding_errors_are_left_out():
    rows = random_walks()[:, :4] @ torch.randn(4, 12, dtype=torch.float64)
    for dtype in (torch.float32, torch.bfloat16):
        spectrum = decompose(moment_of(rows.to(dtype).double()))
        assert len(select_basis(spectrum, 5e-4, torch.finfo(dtype).eps)) == 4


@pytest.mark.parametrize(
    ("outputs", "signs", "expected"),
    [
        (1, True, [1]),
        (2, True, [1, -1]),
        (5, True, [1, 2, 3, -1, -2]),
        (6, True, [1, 2, 3, -1, -2, -3]),
        (2, False, [1, 2]),
        (3, False, [1, 2, 3]),
    ],
)
def test_the_leading_directions_come_first_and_their_negatives_after_them(outputs, signs, expected):
    basis = torch.diag(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    filters = spread_basis(basis, outputs, signs, generator())
    assert filters.sum(1).tolist() == expected
    assert count_directions(outputs, 3, signs) == max(expected)


@pytest.mark.parametrize("signs", [True, False])
def test_outputs_beyond_all_directions_are_rotations_of_the_basis(signs):
    basis = select_basis(decompose(moment_of(random_walks())), 0.1, 0.0)
    block = 24 if signs else 12
    filters = spread_basis(basis, 2 * block + 5, signs, generator(3))
    first, second, rest = filters.split(block)
    assert_close(first[:12], basis)
    assert not torch.allclose(second[:12], first[:12], atol=0.1)
    for part in (first, second):
        if signs:
            assert torch.equal(part[12:], -part[:12])
        assert_close(part[:12].T @ part[:12], basis.T @ basis, 1e-9)
    if signs:
        assert torch.equal(rest[3:], -rest[:2])
    assert torch.equal(filters, spread_basis(basis, 2 * block + 5, signs, generator(3)))
    other = spread_basis(basis, 2 * block + 5, signs, generator(4))
    assert torch.equal(other[:block], first)
    assert not torch.allclose(other[block:], filters[block:], atol=0.1)


def test_rotations_are_orthogonal_and_uniform():
    draws = generator(1)
    rotations = torch.stack([draw_rotation(3, draws) for _ in range(4000)])
    assert_close(rotations @ rotations.mT, torch.eye(3).double().expand(4000, 3, 3), 1e-9)
    # entries of a uniform rotation have mean 0 and variance 1/3; without the correction of the
    # signs of QR, the diagonal has a mean far from 0
    assert rotations.mean(0).abs().max() < 0.05
    assert (rotations.square().mean(0) - 1 / 3).abs().max() < 0.03


def test_a_random_start_is_the_weight_times_the_inverse_root():
    rows, weight = random_walks(), torch.randn(5, 12, dtype=torch.float64)
    moment = moment_of(rows)
    lam = 0.1 * moment.trace() / 12
    values, vectors = torch.linalg.eigh(moment + lam * torch.eye(12, dtype=torch.float64))
    root = vectors @ torch.diag(values.sqrt()) @ vectors.T
    assert_close(whiten_weight(weight, decompose(moment), 0.1) @ root, weight, 1e-9)


def test_the_mean_square_is_that_of_the_outputs():
    rows = torch.stack([random_walks(), 3 * random_walks()])
    weight = torch.randn(2, 5, 12, dtype=torch.float64)
    expected = (rows @ weight.mT).square().mean().item()
    moment = rows.mT @ rows / rows.shape[1]
    assert mean_square(weight, moment) == pytest.approx(expected, rel=1e-12)
