"""The formula: both lemmas of the paper, and its limits."""

import pytest
import torch
from torch import Tensor

from cases import assert_close
from trainact.preconditioner import (
    precondition,
    precondition_few_rows,
    precondition_with_bias,
)
from trainact.reference import centered_gradients, tract_gradient
from trainact.second_moment import SecondMoment


def draw(b: int, n: int, m: int = 3) -> tuple[Tensor, Tensor]:
    return torch.randn(b, n).double() @ torch.randn(n, n).double(), torch.randn(b, m).double()


def by_moment(rows: Tensor, grad_z: Tensor, lam: float, relative: bool = False) -> Tensor:
    second_moment = SecondMoment((rows.T @ rows)[None], len(rows))
    return precondition(grad_z.T @ rows, second_moment, lam, relative=relative)


def by_few_rows(rows: Tensor, grad_z: Tensor, lam: float, relative: bool = False) -> Tensor:
    tract, bias = precondition_few_rows(grad_z.T @ rows, None, rows[None], lam, relative=relative)
    assert bias is None
    return tract


def centered_by_moment(rows, grad_z, lam, relative=False):
    second_moment = SecondMoment((rows.T @ rows)[None], len(rows), rows.sum(0)[None])
    grads = grad_z.T @ rows, grad_z.sum(0)
    return precondition_with_bias(*grads, second_moment, lam, relative=relative)


def centered_by_few_rows(rows, grad_z, lam, relative=False):
    grads, mean = (grad_z.T @ rows, grad_z.sum(0)), rows.mean(0)[None]
    return precondition_few_rows(*grads, rows[None], lam, mean=mean, relative=relative)


centered_forms = pytest.mark.parametrize("form", [centered_by_moment, centered_by_few_rows])


@pytest.mark.parametrize("b", [1, 7, 8, 9, 40])
@pytest.mark.parametrize("lam", [0.01, 0.1, 2.0])
def test_both_forms_agree_with_the_explicit_inverse_on_both_sides_of_b_equals_n(b, lam):
    rows, grad_z = draw(b, 8)
    expected = tract_gradient(grad_z, rows, lam)
    assert_close(by_moment(rows, grad_z, lam), expected)
    assert_close(by_few_rows(rows, grad_z, lam), expected)


@pytest.mark.parametrize("b", [2, 7, 8, 9, 40])
@pytest.mark.parametrize("lam", [0.01, 2.0])
@pytest.mark.parametrize("relative", [False, True])
@centered_forms
def test_the_centered_forms_agree_with_the_explicit_inverse(form, b, lam, relative):
    rows, grad_z = draw(b, 8)
    rows = rows + 5
    expected = centered_gradients(grad_z, rows, lam, relative=relative)
    for actual, target in zip(form(rows, grad_z, lam, relative), expected, strict=True):
        assert_close(actual, target, 1e-8)


@pytest.mark.parametrize("b", [5, 30])
@centered_forms
def test_the_centered_step_solves_the_least_squares_problem_with_an_undamped_bias(form, b):
    """As in Lemma 1, with a column of ones under which nothing is stacked."""
    n, lam = 8, 0.1
    rows, grad_z = draw(b, n)
    rows = rows + 2
    damped = torch.cat([(lam * b) ** 0.5 * torch.eye(n), torch.zeros(n, 1)], dim=1).double()
    stacked = torch.cat([torch.cat([rows, torch.ones(b, 1).double()], dim=1), damped])
    target = torch.cat([b * grad_z, torch.zeros(n, grad_z.shape[1]).double()])
    minimiser = torch.linalg.lstsq(stacked, target).solution.T
    weight, bias = form(rows, grad_z, lam)
    assert_close(weight, minimiser[:, :n], rtol=1e-8)
    assert_close(bias, minimiser[:, n], rtol=1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_centered_step_moves_the_mean_of_z_exactly_whatever_the_rounding_of_the_weight(dtype):
    """Δb makes up for the rounding of ΔW; only its own is left."""
    rows, grad_z = draw(20, 8)
    rows = rows + 100
    second_moment = SecondMoment((rows.T @ rows)[None], 20, rows.sum(0)[None])
    grad_bias = grad_z.sum(0)
    grad_weight = (grad_z.T @ rows).to(dtype)
    weight, bias = precondition_with_bias(grad_weight, grad_bias, second_moment, 0.1)
    assert weight.dtype == dtype
    moved = (rows @ weight.double().T).mean(0) + bias
    assert (moved - grad_bias).norm() <= 1e-12 * bias.norm()


@pytest.mark.parametrize("form", [by_moment, by_few_rows])
@pytest.mark.parametrize("b", [5, 30])
def test_a_relative_lam_is_multiplied_by_the_mean_eigenvalue(form, b):
    rows, grad_z = draw(b, 8)
    expected = tract_gradient(grad_z, rows, 0.1, relative=True)
    assert_close(form(rows, grad_z, 0.1, relative=True), expected)
    scaled = form(1000 * rows, grad_z, 0.1, relative=True)
    assert_close(1000 * scaled, expected)
    damping = 0.1 * rows.square().mean()
    assert_close(expected, tract_gradient(grad_z, rows, damping.item()))


@pytest.mark.parametrize("b", [5, 30])
@pytest.mark.parametrize("value", [0.0, 0.1, 3.7e5])
@pytest.mark.filterwarnings("error")
@centered_forms
def test_constant_rows_move_the_bias_alone(form, b, value):
    rows, grad_z = torch.full((b, 8), value).double(), torch.randn(b, 3).double()
    weight, bias = form(rows, grad_z, 0.1, relative=True)
    assert weight.norm() <= 1e-100
    assert_close(bias, grad_z.sum(0))


def test_zero_rows_have_a_zero_relative_gradient():
    for form in (by_moment, by_few_rows):
        assert not form(torch.zeros(5, 8).double(), torch.randn(5, 3).double(), 0.1, True).any()


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
