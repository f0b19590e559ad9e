"""Independent implementations of the same matrix, where they are right."""

import pytest
import torch
from torch import nn

from cases import assert_close
from trainact import TrAct


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: nn.Linear(8, 5), (64, 8)),
        (lambda: nn.Linear(48, 5), (4, 16, 48)),
        (lambda: nn.Conv2d(2, 5, 3, padding=1), (6, 2, 8, 8)),
        (lambda: nn.Conv2d(3, 5, 7, stride=2, padding=3), (6, 3, 16, 16)),
    ],
    ids=["linear", "tokens", "conv-3x3", "conv-7x7"],
)
def test_the_gradient_is_that_of_the_authors_package(make, shape):
    torch_tract = pytest.importorskip("torch_tract")
    layer = make()
    theirs = torch_tract.TrAct(layer, l=0.1)
    theirs.load_state_dict(layer.state_dict())
    ours = TrAct(layer, 0.1)
    x = torch.randn(shape)
    grad_z = torch.randn_like(ours(x))
    ours(x).backward(grad_z)
    theirs(x).backward(grad_z)
    assert_close(ours.weight.grad, theirs.weight.grad, 1e-4)
    assert_close(ours.bias.grad, theirs.bias.grad, 1e-5)


def test_the_inverse_is_that_of_the_forward_only_fisher():
    """curvlinops builds xᵀx/b by its own way through K-FAC and damps it by the same λ."""
    curvlinops = pytest.importorskip("curvlinops")
    layer = nn.Linear(6, 4, bias=False).double()
    x, target = torch.randn(30, 6).double(), torch.randn(30, 4).double()
    kfac = curvlinops.KFACLinearOperator(
        layer,
        nn.MSELoss(),
        [layer.weight],
        [(x, target)],
        fisher_type="forward-only",
        check_deterministic=False,
    )
    inverse = curvlinops.KFACInverseLinearOperator(kfac, damping=0.1)
    nn.functional.mse_loss(layer(x), target).backward()
    plain = layer.weight.grad.clone()
    layer.zero_grad()
    nn.functional.mse_loss(TrAct(layer)(x), target).backward()
    (expected,) = inverse @ [plain]
    # its output factor is the identity, which it damps too: 1.1 instead of 1
    assert_close(layer.weight.grad, 1.1 * expected, 1e-8)
