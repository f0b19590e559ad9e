"""torch.func: gradients taken by transforms are TrAct's; what cannot be is refused."""

import contextlib
import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, stack_module_state, vmap

from cases import assert_close
from trainact import TrAct, TrActValueError, accumulate, apply_tract
from trainact.reference import tract_gradient_of_layer

OPTIONS = [{}, {"center": True, "relative": True}]
options_of_each = pytest.mark.parametrize("options", OPTIONS, ids=str)


def network(**options) -> nn.Sequential:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 16, 5))
    apply_tract(model.double(), **options)
    return model


def images(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, 3, 6, 6).double()


def backward_grads(model: nn.Module, x: torch.Tensor) -> dict[str, torch.Tensor]:
    twin = copy.deepcopy(model)
    twin.zero_grad()
    twin(x).square().mean().backward()
    return {name: parameter.grad for name, parameter in twin.named_parameters()}


def parameters_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def loss_of(model: nn.Module):
    return lambda parameters, x: functional_call(model, parameters, (x,)).square().mean()


def assert_same(actual, expected) -> None:
    for name, target in expected.items():
        assert_close(actual[name], target)


@options_of_each
def test_a_functional_call_trains_the_parameters_it_is_given(options):
    model, x = network(**options), images(6)
    expected = backward_grads(model, x)
    given = {name: value.clone().requires_grad_() for name, value in parameters_of(model).items()}
    loss_of(model)(given, x).backward()
    assert_same({name: value.grad for name, value in given.items()}, expected)


def test_nothing_leaves_a_transform_with_every():
    model, x = network(every=2), images(6)
    for _ in range(2):
        grad(loss_of(model))(parameters_of(model), x + 1)
        vmap(grad(loss_of(model)), (None, 0))(parameters_of(model), images(5, 2))
    model(x).square().mean().backward()
    assert_same({n: p.grad for n, p in model.named_parameters()}, backward_grads(model, x))


def test_rows_is_refused():
    model = network(rows=8)
    with pytest.raises(TrActValueError, match="rows changes its seed in each backward"):
        grad(loss_of(model))(parameters_of(model), images(6))


@pytest.mark.parametrize("options", [{"rows": 8}, {"moment_decay": 0.9}, {}])
def test_what_does_not_train_the_weight_is_allowed_with_every_option(options):
    model, x = network(**options), images(6)
    with contextlib.nullcontext() if options else accumulate(model):
        expected = torch.autograd.grad(model(x.requires_grad_()).sum(), x)[0]
        assert_close(grad(lambda x: model(x).sum())(x), expected)
        assert_close(vmap(model)(x.unsqueeze(1)).squeeze(1), model(x))


@options_of_each
def test_grad_is_tracts(options):
    model, x = network(**options), images(6)
    assert_same(grad(loss_of(model))(parameters_of(model), x), backward_grads(model, x))


@options_of_each
def test_an_ensemble_under_vmap_trains_each_member_with_its_own_rows(options):
    models = [network(**options) for _ in range(3)]
    stacked, buffers = stack_module_state(models)
    base = copy.deepcopy(models[0]).to("meta")
    x = images(3, 6)

    def loss(parameters, buffers, x):
        return functional_call(base, (parameters, buffers), (x,)).square().mean()

    stacked = {name: value.detach() for name, value in stacked.items()}
    grads = vmap(grad(loss))(stacked, buffers, x)
    for index, model in enumerate(models):
        expected = backward_grads(model, x[index])
        assert_same({name: value[index] for name, value in grads.items()}, expected)


@options_of_each
def test_per_sample_gradients_use_per_sample_moments(options):
    model, x = network(**options), images(5)
    loss = loss_of(model)
    grads = vmap(grad(lambda p, image: loss(p, image[None])), in_dims=(None, 0))(
        parameters_of(model), x
    )
    for index in range(5):
        expected = backward_grads(model, x[index : index + 1])
        assert_same({name: value[index] for name, value in grads.items()}, expected)


def test_jacrev_is_tracts_for_each_output():
    layer, x = TrAct(nn.Linear(6, 4).double()), torch.randn(9, 6).double()
    jacobian = jacrev(lambda w: functional_call(layer, {"weight": w}, (x,)).sum(0))(
        layer.weight.detach()
    )
    for output in range(4):
        grad_z = torch.zeros(9, 4).double()
        grad_z[:, output] = 1
        assert_close(jacobian[output], tract_gradient_of_layer(layer, x, grad_z))


@pytest.mark.parametrize(
    "transform",
    [
        lambda f, w: jvp(f, (w,), (w,)),
        lambda f, w: jacfwd(f)(w),
        lambda f, w: hessian(f)(w),
    ],
    ids=["jvp", "jacfwd", "hessian"],
)
def test_forward_mode_is_refused(transform):
    """A derivative along a direction has no second moment to divide by."""
    layer, x = TrAct(nn.Linear(6, 4)), torch.randn(9, 6)

    def loss(weight):
        return functional_call(layer, {"weight": weight}, (x,)).square().mean()

    with pytest.raises(RuntimeError, match=r"jvp|differentiate twice"):
        transform(loss, layer.weight.detach())
