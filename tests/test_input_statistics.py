"""Measuring what layers receive: exact rows, and nothing of the model changes."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cases import CASES, assert_close
from trainact import TrAct, TrActError
from trainact.image_batches import list_batches
from trainact.input_statistics import InputStatistics, measure_inputs
from trainact.reference import cut_patches


def measure(model: nn.Module, layers: dict[str, nn.Module], images) -> dict[str, InputStatistics]:
    return measure_inputs(model, layers, list_batches(images))


def moment_of_rows(layer: nn.Module, *inputs: torch.Tensor) -> torch.Tensor:
    rows = torch.cat([cut_patches(x, layer) for x in inputs], dim=1)
    return rows.mT @ rows / rows.shape[1]


@pytest.mark.parametrize(
    "case", [case for case in CASES if "no-" not in case.name], ids=lambda case: case.name
)
def test_the_second_moment_is_that_of_the_layers_rows(case):
    layer, x = case.draw()
    images = x if x.dim() > 1 else [x.unsqueeze(0)]
    for model in (layer, TrAct(layer)):
        (statistics,) = measure(model, {"": layer}, images).values()
        assert statistics.num_rows == cut_patches(x, layer).shape[1]
        assert_close(statistics.second_moment(), moment_of_rows(layer, x))


@pytest.mark.parametrize("case", [case for case in CASES if "no-" in case.name])
def test_an_empty_batch_has_no_rows(case):
    layer, x = case.draw()
    (statistics,) = measure(layer, {"": layer}, x).values()
    assert statistics.num_rows == 0


def test_batches_add_up(cifar_images):
    layer = nn.Conv2d(3, 4, 3, padding=1).double()
    parts = cifar_images.split([3, 1, 4, 24])
    (statistics,) = measure(layer, {"": layer}, parts).values()
    assert statistics.num_rows == 32 * 32 * 32
    assert_close(statistics.second_moment(), moment_of_rows(layer, cifar_images), 1e-12)


class Network(nn.Module):
    """Batch norm and dropout before the stem, and a head that counts its calls."""

    def __init__(self, times: int = 1) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)
        self.drop = nn.Dropout(0.5)
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.head = nn.Conv2d(8, 2, 1)
        self.times, self.head_calls = times, 0

    def forward(self, images):
        features = sum(
            self.stem(self.drop(self.norm(k * images))) for k in range(1, self.times + 1)
        )
        self.head_calls += 1
        return self.head(features)


def test_rows_are_what_the_layer_receives_in_evaluation_mode():
    model, x = Network().double(), torch.randn(4, 3, 8, 8).double()
    model.norm.running_mean += 0.3
    (statistics,) = measure(model, {"stem": model.stem}, x).values()
    received = F.batch_norm(x, model.norm.running_mean, model.norm.running_var)
    assert_close(statistics.second_moment(), moment_of_rows(model.stem, received))


def test_the_model_is_as_before():
    model = Network().train()
    model.drop.eval()
    state = {key: value.clone() for key, value in model.state_dict().items()}
    flags = {name: module.training for name, module in model.named_modules()}
    measure(model, {"stem": model.stem}, [torch.randn(4, 3, 8, 8)] * 2)
    assert flags == {name: module.training for name, module in model.named_modules()}
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert not model.stem._forward_hooks
    assert not model.stem._forward_pre_hooks
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_model_is_as_before_after_a_failure():
    model = Network().train()
    with pytest.raises(TrActError, match="a forward of Network failed on a tensor of shape"):
        measure(model, {"stem": model.stem}, torch.randn(4, 5, 8, 8))
    assert all(module.training for module in model.modules())
    assert not model.stem._forward_hooks


def test_only_the_first_batch_runs_to_the_end():
    model = Network()
    batches = list(torch.randn(5, 2, 3, 8, 8))
    (statistics,) = measure(model, {"stem": model.stem}, batches).values()
    assert statistics.num_rows == 5 * 2 * 64
    assert model.head_calls == 1


def test_every_call_of_a_layer_counts():
    model, batches = Network(times=3).double(), list(torch.randn(2, 2, 3, 8, 8).double())
    (statistics,) = measure(model, {"stem": model.stem}, batches).values()
    received = [model.norm.eval()(k * x) for x in batches for k in (1, 2, 3)]
    assert statistics.num_rows == 2 * 3 * 2 * 64
    assert_close(statistics.second_moment(), moment_of_rows(model.stem, *received), 1e-8)


def test_several_layers_are_measured_at_once():
    model, x = Network().double(), torch.randn(4, 3, 8, 8).double()
    layers = {"stem": model.stem, "head": model.head}
    found = measure(model, layers, [x, x])
    with torch.no_grad():
        model.eval()
        hidden = model.stem(model.norm(x))
    assert_close(found["head"].second_moment(), moment_of_rows(model.head, hidden))
    assert found["head"].num_rows == found["stem"].num_rows == 2 * 4 * 64


def test_autocast_in_the_model_does_not_reach_the_products(cifar_images):
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(3, 4, 3)

        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16):
                return self.stem(x)

    model, x = Half(), cifar_images[:4] / 255
    (statistics,) = measure(model, {"stem": model.stem}, x).values()
    assert_close(statistics.second_moment(), moment_of_rows(model.stem, x.float().double()), 1e-9)


def test_a_compiled_model_is_measured():
    model, x = Network(), torch.randn(4, 3, 8, 8)
    (expected,) = measure(model, {"stem": model.stem}, x).values()
    compiled = torch.compile(model, backend="eager")
    compiled.eval()(x)
    model.stem.compile(backend="eager")
    model(x)
    (statistics,) = measure(compiled, {"stem": model.stem}, [x, x]).values()
    assert statistics.num_rows == 2 * expected.num_rows
    assert_close(statistics.second_moment(), expected.second_moment(), 1e-12)
    torch._dynamo.reset()


class SamePadding(nn.Conv2d):
    """Pads its input itself, as timm's Conv2dSame does."""

    def forward(self, x):
        return F.conv2d(F.pad(x, (0, 1, 0, 1)), self.weight, self.bias, self.stride)


def test_the_rows_of_a_layer_that_pads_its_input_itself_are_those_of_its_operator():
    layer, x = SamePadding(3, 4, 3, stride=2).double(), torch.randn(2, 3, 8, 8).double()
    expected = moment_of_rows(layer, F.pad(x, (0, 1, 0, 1)))
    for model in (layer, TrAct(layer)):
        (statistics,) = measure(model, {"": layer}, x).values()
        assert_close(statistics.second_moment(), expected)


def test_constant_channels_are_found_by_group():
    layer = nn.Conv2d(6, 6, 3, padding=1, groups=3)
    x = torch.randn(2, 6, 8, 8)
    x[:, 2], x[:, 3], x[:, 4] = 0.5, 0.25, 1.0
    (statistics,) = measure(layer, {"": layer}, x.unbind()).values()
    assert statistics.find_constant_groups(3) == [1]
    x[1, 2] = 0.6
    (statistics,) = measure(layer, {"": layer}, x.unbind()).values()
    assert statistics.find_constant_groups(3) == []


def test_a_layer_that_is_not_reached_is_named():
    model = nn.Sequential(nn.Linear(4, 4), nn.Identity())
    other = nn.Linear(4, 4)
    with pytest.raises(TrActError, match="a forward of Sequential did not call layer 'other'"):
        measure(model, {"other": other}, torch.randn(3, 4))


def test_a_forward_that_fails_says_what_it_got():
    model = Network()
    with pytest.raises(TrActError, match=r"failed on keywords images, size .*unexpected keyword"):
        measure(model, {"stem": model.stem}, {"images": torch.ones(1, 3, 8, 8), "size": 3})
    pixels = torch.zeros(1, 3, 8, 8, dtype=torch.uint8)
    with pytest.raises(TrActError, match=r"failed on a tensor of shape .*uint8"):
        measure(model.stem, {"": model.stem}, pixels)
