"""Factorization and solve; a failed factorization gives NaN and a warning."""

import warnings

import pytest
import torch

from cases import assert_close
from trainact.cholesky import divide_by_factor, factorize


def solve(matrix: torch.Tensor) -> torch.Tensor:
    """Return ones [g, 3, k] divided by the matrix with damping 0.1."""
    ones = torch.ones(len(matrix), 3, matrix.shape[-1])
    return divide_by_factor(ones, factorize(matrix, 0.1))


def test_dividing_by_the_factor_multiplies_by_the_inverse():
    x, matrix = torch.randn(2, 3, 4).double(), torch.randn(2, 9, 4).double()
    damped = matrix.mT @ matrix + 0.1 * torch.eye(4).double()
    before = matrix.clone()
    actual = divide_by_factor(x, factorize(matrix.mT @ matrix, 0.1))
    assert_close(actual, x @ torch.linalg.inv(damped))
    assert torch.equal(matrix, before)


def test_each_group_may_have_its_own_damping():
    matrix, damping = torch.randn(2, 9, 4).double(), torch.tensor([0.1, 3.0]).double()
    factor = factorize(matrix.mT @ matrix, damping)
    for group, (one, number) in enumerate(zip(matrix, damping, strict=True)):
        expected = one.T @ one + number * torch.eye(4).double()
        assert_close(factor.lower[group] @ factor.lower[group].T, expected)


def test_a_failed_factorization_gives_nan_and_a_warning_with_advice():
    indefinite = torch.diag(torch.tensor([1.0, -1.0]))[None]
    with pytest.warns(RuntimeWarning, match=r"moment_dtype=torch\.float64"):
        assert solve(indefinite).isnan().all()


def test_only_the_group_that_fails_becomes_nan():
    with pytest.warns(RuntimeWarning, match="could not factorize"):
        result = solve(torch.stack([torch.eye(2), -torch.eye(2)]))
    assert result[0].isfinite().all()
    assert result[1].isnan().all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_matrix_that_is_not_finite_gives_nan_without_a_warning(bad):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert solve(torch.full((1, 2, 2), bad)).isnan().all()
