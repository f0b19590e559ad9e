"""precondition_grad: what the layers do, as a function."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cases import CASES, Case
from trainact import TrAct, TrActError, precondition_grad

OPTIONS = [
    {},
    {"relative": True},
    {"center": "batchnorm"},
    {"center": True},
    {"center": True, "relative": True, "moment_dtype": torch.float64},
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_functional_form_is_the_layer(case: Case, options):
    layer, x = case.draw()
    changes_bias = options.get("center") is True
    if layer.bias is None and changes_bias:
        pytest.skip("needs a bias")
    tract = TrAct(copy.deepcopy(layer), lam=0.3, **options)
    grad_z = torch.randn_like(layer(x))
    tract(x).backward(grad_z)
    weight, bias = layer.weight, layer.bias
    if not isinstance(layer, nn.Linear):
        names = ("stride", "padding", "dilation", "groups", "padding_mode")
        options = options | {name: getattr(layer, name) for name in names}
    if changes_bias:
        weight, bias = precondition_grad(weight, x, 0.3, bias=bias, **options)
    else:
        weight = precondition_grad(weight, x, 0.3, **options)
    if isinstance(layer, nn.Linear):
        z = F.linear(x, weight, bias)
    else:
        z = layer._conv_forward(x, weight, bias)
    z.backward(grad_z)
    assert torch.equal(layer.weight.grad, tract.weight.grad)
    assert layer.bias is None or torch.equal(layer.bias.grad, tract.bias.grad)


def test_the_identity_shares_the_parameters_memory():
    weight, x = torch.randn(4, 6, requires_grad=True), torch.randn(9, 6)
    bias = torch.randn(4, requires_grad=True)
    assert precondition_grad(weight, x).data_ptr() == weight.data_ptr()
    same = precondition_grad(weight, x, bias=bias, center=True)
    assert [tensor.data_ptr() for tensor in same] == [weight.data_ptr(), bias.data_ptr()]


def test_without_training_the_parameters_are_returned():
    weight, bias, x = torch.randn(4, 6), torch.randn(4), torch.randn(9, 6)
    assert precondition_grad(weight, x) is weight
    same = precondition_grad(weight, x, bias=bias, center=True)
    assert same[0] is weight
    assert same[1] is bias


@pytest.mark.parametrize(
    ("weight", "message"), [("weight", "got str"), (torch.randn(3), "got 1 dimensions")]
)
def test_an_unusable_weight_is_refused(weight, message):
    with pytest.raises(TrActError, match=message):
        precondition_grad(weight, torch.randn(3, 3))


@pytest.mark.parametrize(
    ("weight", "x", "groups", "message"),
    [
        ((3, 5), (8, 4), 1, r"x of shape \(8, 4\) does not fit .* of shape \[\.\.\., 5\]"),
        ((3, 5), (), 1, r"x of shape \(\) does not fit"),
        ((8, 3, 3, 3), (2, 16, 16, 3), 1, r"of shape \[N, 3, \*size\] or \[3, \*size\]"),
        ((8, 3, 3, 3), (1, 2, 3, 16, 16), 1, r"x of shape \(1, 2, 3, 16, 16\) does not fit"),
        ((8, 3, 3, 3), (3, 16), 1, r"x of shape \(3, 16\) does not fit"),
        ((8, 3, 3), (2, 3, 16), 2, r"does not fit .* with groups=2; .* \[N, 6, \*size\]"),
        ((8, 3, 3), (2, 9, 16), 3, "groups=3 does not fit .*; use a number that divides its"),
        ((8, 3), (2, 6), 2, r"groups=2 does not fit a weight of shape \(8, 3\)"),
        ((8, 3), (2, 3), 0, "groups=0 does not fit"),
    ],
    ids=str,
)
def test_an_input_that_does_not_fit_the_weight_is_refused_at_the_call(weight, x, groups, message):
    with pytest.raises(TrActError, match=message):
        precondition_grad(torch.randn(weight), torch.randn(x), groups=groups)


def test_an_input_that_is_no_tensor_is_refused():
    with pytest.raises(TrActError, match="x takes the layer's input, a tensor; got list"):
        precondition_grad(torch.randn(3, 3), [1.0, 2.0, 3.0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bias": torch.zeros(3)}, "changes a bias only with center=True; got center=False"),
        ({"bias": torch.zeros(3), "center": "batchnorm"}, "got center='batchnorm'"),
        ({"bias": True, "center": True}, "bias= takes a tensor; got bool"),
        ({"center": True}, "with center=True changes .* together; pass the layer's bias="),
        ({"bias": torch.zeros(3), "center": True}, "has a frozen bias, but center=True"),
    ],
    ids=["not centred", "batchnorm", "no tensor", "missing", "frozen"],
)
def test_an_unusable_bias_is_refused(options, message):
    weight = torch.randn(3, 4, requires_grad=True)
    with pytest.raises(TrActError, match=message):
        precondition_grad(weight, torch.randn(5, 4), **options)
