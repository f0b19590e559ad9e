"""The formula: both lemmas of the paper, and its limits."""

import pytest
import torch
from torch import Tensor

from cases import assert_close
from trainact.preconditioner import precondition, precondition_few_rows
from trainact.reference import tract_gradient
from trainact.second_moment import SecondMoment


def draw(b: int, n: int, m: int = 3) -> tuple[Tensor, Tensor]:
    return torch.randn(b, n).double() @ torch.randn(n, n).double(), torch.randn(b, m).double()


def by_moment(rows: Tensor, grad_z: Tensor, lam: float) -> Tensor:
    second_moment = SecondMoment((rows.T @ rows)[None], len(rows))
    return precondition(grad_z.T @ rows, second_moment, lam)


def by_few_rows(rows: Tensor, grad_z: Tensor, lam: float) -> Tensor:
    return precondition_few_rows(grad_z.T @ rows, rows[None], lam)


@pytest.mark.parametrize("b", [1, 7, 8, 9, 40])
@pytest.mark.parametrize("lam", [0.01, 0.1, 2.0])
def test_both_forms_agree_with_the_explicit_inverse_on_both_sides_of_b_equals_n(b, lam):
    rows, grad_z = draw(b, 8)
    expected = tract_gradient(grad_z, rows, lam)
    assert_close(by_moment(rows, grad_z, lam), expected)
    assert_close(by_few_rows(rows, grad_z, lam), expected)


@pytest.mark.parametrize("b", [5, 30])
def test_lemma_1_the_update_minimises_the_regularised_least_squares_problem(b):
    """Against a least-squares solver that knows nothing of the closed form.

    argmin ‖−ηb∇z − x ΔWᵀ‖² + λb‖ΔW‖² is an ordinary least-squares problem once √(λb) I is stacked
    under x and zeros under the target.
    """
    n, lam, eta = 8, 0.1, 0.3
    rows, grad_z = draw(b, n)
    stacked = torch.cat([rows, (lam * b) ** 0.5 * torch.eye(n).double()])
    target = torch.cat([-eta * b * grad_z, torch.zeros(n, grad_z.shape[1]).double()])
    minimiser = torch.linalg.lstsq(stacked, target).solution.T
    assert_close(-eta * by_moment(rows, grad_z, lam), minimiser, rtol=1e-8)


def test_lemma_2_the_update_is_zero_exactly_when_the_plain_gradient_is():
    rows, grad_z = draw(20, 8)
    assert torch.equal(by_moment(rows, torch.zeros_like(grad_z), 0.1), torch.zeros(3, 8).double())
    orthogonal = grad_z - rows @ torch.linalg.lstsq(rows, grad_z).solution  # rowsᵀ ∇z = 0, ∇z ≠ 0
    assert orthogonal.norm() > 1
    assert by_moment(rows, orthogonal, 0.1).norm() < 1e-10
    second_moment = rows.T @ rows / len(rows)
    tract = by_moment(rows, grad_z, 0.1)
    plain_again = tract @ (second_moment + 0.1 * torch.eye(8))  # the map can be undone
    assert_close(plain_again, grad_z.T @ rows)


def test_a_large_lam_recovers_the_plain_gradient_divided_by_lam():
    rows, grad_z = draw(20, 8)
    assert_close(1e12 * by_moment(rows, grad_z, 1e12), grad_z.T @ rows)


def test_whitened_rows_give_the_plain_gradient_divided_by_one_plus_lam():
    orthonormal, _ = torch.linalg.qr(torch.randn(50, 8).double())
    rows, grad_z = orthonormal * 50**0.5, torch.randn(50, 3).double()
    assert_close(by_moment(rows, grad_z, 0.1), grad_z.T @ rows / 1.1)


def test_scaling_the_gradient_commutes():
    rows, grad_z = draw(20, 8)
    assert_close(by_moment(rows, 1024 * grad_z, 0.1), 1024 * by_moment(rows, grad_z, 0.1))


def test_duplicated_rows_change_nothing():
    rows, grad_z = draw(10, 8)
    doubled = by_moment(rows.repeat(2, 1), grad_z.repeat(2, 1) / 2, 0.1)
    assert_close(doubled, by_moment(rows, grad_z, 0.1))
