"""apply_tract and remove_tract: reversible, all or nothing, with clear errors."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import trainact
from trainact import TrAct, TrActConv2d, TrActError, TrActLayer, apply_tract, remove_tract


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten())


def test_apply_and_remove_restore_the_very_same_layer():
    model = network()
    layer, attributes = model[0], dict(model[0].__dict__)
    parameters = list(model.parameters())
    assert apply_tract(model, 0.2) == ["0"]
    assert type(model[0]) is TrActConv2d
    assert model[0].lam == 0.2
    assert remove_tract(model) == ["0"]
    assert model[0] is layer
    assert type(layer) is nn.Conv2d
    assert layer.__dict__ == attributes
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert remove_tract(model) == []


def test_the_model_may_be_the_layer():
    layer = nn.Linear(4, 3)
    assert apply_tract(layer) == [""]
    assert isinstance(layer, trainact.TrActLinear)
    assert remove_tract(layer) == [""]
    assert type(layer) is nn.Linear


@pytest.mark.parametrize("layers", ["2", ["2"], ("0", "2"), iter(["2", "2"])])
def test_layers_can_be_named(layers):
    model = network()
    names = apply_tract(model, layers=layers)
    assert "2" in names
    assert len(names) == len(set(names))
    assert all(isinstance(model.get_submodule(name), TrActLayer) for name in names)


def test_a_custom_class_is_restored_too():
    class Own(nn.Linear):
        def forward(self, x):
            return super().forward(x) * 2

    layer = Own(4, 3)
    apply_tract(layer)
    assert isinstance(layer, Own)
    assert isinstance(layer, TrActLayer)
    remove_tract(layer)
    assert type(layer) is Own


def test_a_layer_used_in_two_places_changes_in_both():
    conv = nn.Conv2d(3, 3, 3)
    model = nn.ModuleDict({"a": conv, "b": nn.Sequential(conv)})
    assert apply_tract(model, layers="b.0") == ["b.0"]
    assert model["a"] is model["b"][0] is conv
    assert isinstance(model["a"], TrActConv2d)


def test_a_layer_with_two_names_changes_once():
    model = nn.Module()
    model.left = model.right = nn.Linear(5, 3)
    assert apply_tract(model, layers=["left", "right"]) == ["left", "right"]
    assert type(model.left) is trainact.TrActLinear
    assert remove_tract(model) == ["left"]
    assert type(model.left) is nn.Linear


def test_wrapping_works_after_the_layer_was_compiled():
    layer = nn.Linear(4, 3)
    layer.compile(backend="eager")
    TrAct(layer)
    x, grad_z = torch.randn(9, 4), torch.randn(9, 3)
    layer(x).backward(grad_z)
    expected = trainact.reference.tract_gradient_of_layer(layer, x, grad_z)
    assert torch.allclose(layer.weight.grad, expected, atol=1e-4)


def lazy():
    return nn.LazyConv2d(4, 3)


def pruned():
    return prune.l1_unstructured(nn.Linear(4, 3), "weight", amount=2)


def parametrised():
    return nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))


def hooked():
    layer = nn.Linear(4, 3)
    layer.weight_v = nn.Parameter(layer.weight.data)
    del layer._parameters["weight"]
    layer.weight = layer.weight_v.detach()
    return layer


def quantised():
    layer = nn.Linear(4, 3)
    layer.weight = nn.Parameter(layer.weight.data.to(torch.int8), requires_grad=False)
    return layer


class Gabor(nn.Conv2d):
    def __init__(self, name, value):
        super().__init__(3, 4, 3)
        setattr(self, name, value)


def with_instance_forward():
    layer = nn.Linear(4, 3)
    layer.forward = layer.forward
    return layer


REFUSED = [
    (lambda: nn.Embedding(4, 3), "got Embedding. In a custom layer, call trainact.precond"),
    (lambda: nn.ConvTranspose2d(3, 4, 3), "got ConvTranspose2d"),
    (lambda: nn.Sequential(nn.Linear(4, 3)), "got Sequential"),
    (lambda: nn.Linear, "got the class Linear"),
    (
        lambda: torch.randn(3, 4),
        "takes an nn.Linear, nn.Conv1d, nn.Conv2d or nn.Conv3d; got Tensor",
    ),
    (lazy, "LazyConv2d is lazy and not initialised yet; run one batch"),
    (pruned, r"Linear has a pruned weight; call torch\.nn\.utils\.prune\.remove"),
    (parametrised, "has a parametrised weight; call TrAct first and add the parametrization after"),
    (hooked, "has no parameter named 'weight'"),
    (quantised, r"has a quantised weight \(Parameter, torch.int8\); TrAct takes float64"),
    (
        lambda: nn.Linear(4, 3, dtype=torch.complex64),
        r"has a complex weight \(torch.complex64\); TrAct takes real weights",
    ),
    (quantised, r"call it before quantisation, and trainact\.remove_tract before a model is conv"),
    (with_instance_forward, "has a forward set on the instance"),
    (lambda: Gabor("lam", 4.0), "Gabor has an attribute 'lam', a name that TrAct uses"),
    (lambda: Gabor("lam", nn.Parameter(torch.ones(4))), "Gabor has an attribute 'lam'"),
    (lambda: Gabor("options", {}), "Gabor has an attribute 'options'"),
    (lambda: TrAct(nn.Linear(4, 3), 0.2), r"TrActLinear already trains with TrAct \(lam=0.2\)"),
]


@pytest.mark.parametrize(("make", "message"), REFUSED)
def test_an_unsupported_layer_is_refused_and_left_unchanged(make, message):
    layer = make()
    kind, attributes = type(layer), dict(getattr(layer, "__dict__", {}))
    with pytest.raises(TrActError, match=message) as caught:
        TrAct(layer)
    assert isinstance(caught.value, TypeError)
    assert type(layer) is kind
    if isinstance(layer, nn.Module):
        assert layer.__dict__ == attributes


def test_a_failed_apply_leaves_every_layer_untouched():
    model = nn.Sequential(nn.Linear(4, 4), with_instance_forward())
    with pytest.raises(TrActError, match="layer '1': Linear has a forward set"):
        apply_tract(model, layers=["0", "1"])
    assert type(model[0]) is nn.Linear
    with pytest.raises(TrActError, match="no layer named '7'"):
        apply_tract(model, layers=["0", "7"])
    assert type(model[0]) is nn.Linear


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([], "layers= names no layer"),
        ("stem", "no layer named 'stem'; layers that TrAct supports: '0', '2'"),
        ([3], r"layers= takes names; got 3 \(int\)"),
        ("1", "layer '1': TrAct takes an nn.Linear"),
    ],
)
def test_bad_layer_names_are_refused(layers, message):
    with pytest.raises(TrActError, match=message):
        apply_tract(network(), layers=layers)


@pytest.mark.parametrize("function", [apply_tract, remove_tract])
def test_only_modules_are_models(function):
    with pytest.raises(TrActError, match=f"{function.__name__} takes an nn.Module"):
        function([nn.Linear(3, 3)])


def test_applying_twice_is_refused():
    model = network()
    apply_tract(model)
    with pytest.raises(TrActError, match="layer '0': TrActConv2d already trains with TrAct"):
        apply_tract(model, 0.3)
    assert model[0].lam == 0.1


def test_removing_under_a_parametrization_is_refused():
    model = network()
    apply_tract(model)
    nn.utils.parametrizations.weight_norm(model[0])
    with pytest.raises(TrActError, match="remove_parametrizations"):
        remove_tract(model)


def test_a_checkpoint_moves_between_plain_and_tract_models():
    plain, tract = network(), network()
    apply_tract(tract)
    plain.load_state_dict(tract.state_dict(), strict=True)
    tract.load_state_dict(copy.deepcopy(plain).state_dict(), strict=True)
    assert torch.equal(plain[0].weight, tract[0].weight)


def test_a_frozen_first_layer_is_reported():
    model = network()
    model[0].weight.requires_grad_(False)
    with pytest.warns(UserWarning, match="the weight of '0' is frozen"):
        assert apply_tract(model) == ["0"]
