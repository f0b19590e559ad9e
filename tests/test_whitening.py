"""whiten: the filters of the reference, only the weight changes, and clear errors before that."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from cases import CASES, assert_close
from trainact import (
    TrAct,
    TrActError,
    TrActLayer,
    apply_tract,
    remove_tract,
    whiten,
)
from trainact.reference import cut_patches, whitened_filters, whitened_weight_of_layer
from works_with_helpers import import_torchvision_or_skip

MEAN = torch.tensor([0.4914, 0.4822, 0.4465], dtype=torch.float64).view(3, 1, 1)
STD = torch.tensor([0.2470, 0.2435, 0.2616], dtype=torch.float64).view(3, 1, 1)


@pytest.fixture(scope="session")
def images(cifar_images) -> Tensor:
    """Standardised real images, float64, [32, 3, 32, 32]."""
    return (cifar_images / 255 - MEAN) / STD


def network(outputs: int = 16) -> nn.Sequential:
    return nn.Sequential(
        nn.BatchNorm2d(3),
        nn.Conv2d(3, outputs, 3, padding=1),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Conv2d(outputs, 4, 3),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )


def output_moment(layer: nn.Module, x: Tensor) -> Tensor:
    """Return the second moment of the outputs without the bias, [g, m/g, m/g]."""
    rows = cut_patches(x, layer)
    weight = layer.weight.detach().reshape(len(rows), -1, rows.shape[-1])
    z = rows @ weight.mT
    return z.mT @ z / z.shape[1]


LAYERS = {
    "linear": lambda: nn.Linear(96, 40),
    "conv-1x1": lambda: nn.Conv2d(3, 8, 1),
    "conv-3x3": lambda: nn.Conv2d(3, 16, 3, padding=1),
    "conv-3x3-wide": lambda: nn.Conv2d(3, 64, 3, padding=1, bias=False),
    "conv-3x3-odd": lambda: nn.Conv2d(3, 75, 3),
    "conv-7x7": lambda: nn.Conv2d(3, 64, 7, stride=2, padding=3),
    "patches-16x16": lambda: nn.Conv2d(3, 48, 16, stride=16),
    "depthwise": lambda: nn.Conv2d(3, 12, 3, groups=3),
    "depthwise-wide": lambda: nn.Conv2d(3, 63, 3, groups=3),
    "reflect": lambda: nn.Conv2d(3, 9, 3, padding=2, padding_mode="reflect"),
    "dilated-same": lambda: nn.Conv2d(3, 9, 2, padding="same", dilation=2),
}


def rows_for(layer: nn.Module, images: Tensor) -> Tensor:
    """Return an input of real pixels: images, or rows of them for a Linear."""
    count = 12 if getattr(layer, "stride", 1) == (16, 16) else 4
    x = images[:count]
    return x.reshape(count, -1, layer.in_features) if isinstance(layer, nn.Linear) else x


@pytest.mark.parametrize(
    ("filters", "signs"), [("eigen", True), ("eigen", False), ("random", True)]
)
@pytest.mark.parametrize("scale", ["keep", "unit", 0.3])
@pytest.mark.parametrize("name", LAYERS)
def test_the_weight_is_the_references(name, filters, scale, signs, images):
    layer = LAYERS[name]().double()
    x = rows_for(layer, images)
    settings = {"filters": filters, "scale": scale, "signs": signs, "seed": 5}
    expected = whitened_weight_of_layer(layer, x, **settings)
    assert whiten(layer, x.split(3), **settings) == [""]
    assert_close(layer.weight.detach(), expected, 1e-6)


@pytest.mark.parametrize(
    "case", [case for case in CASES if "no-" not in case.name], ids=lambda case: case.name
)
def test_every_kind_of_layer_starts_in_whitened_coordinates(case):
    layer, x = case.draw()
    x = torch.stack([x, torch.randn_like(x)])  # two batches: one row alone is constant
    stacked = torch.cat(list(x)) if x.dim() > 2 and "unbatched" not in case.name else x
    expected = whitened_weight_of_layer(layer, stacked, "random", "unit", eps=0.05)
    whiten(layer, stacked if x.dim() == 2 else x.unbind(), filters="random", scale="unit", eps=0.05)
    assert_close(layer.weight.detach(), expected)


@pytest.mark.parametrize("eps", [0.0, 1e-3, 2])
def test_eps_is_that_of_the_reference(eps, images):
    layer = nn.Conv2d(3, 32, 3).double()
    for filters in ("eigen", "random") if eps else ("eigen",):
        expected = whitened_weight_of_layer(layer, images[:8], filters, eps=eps)
        whiten(layer, images[:8], filters=filters, eps=eps)
        assert_close(layer.weight.detach(), expected, 1e-6)


def test_random_walks_are_whitened_too():
    walks = torch.randn(20, 1, 60, dtype=torch.float64).cumsum(-1)
    layer = nn.Conv1d(1, 9, 5, padding=2).double()
    expected = whitened_weight_of_layer(layer, walks)
    whiten(layer, walks)
    assert_close(layer.weight.detach(), expected, 1e-6)


@pytest.mark.parametrize("name", ["conv-3x3", "patches-16x16", "depthwise"])
def test_unit_eigen_filters_have_decorrelated_outputs_of_unit_variance(name, images):
    layer = LAYERS[name]().double()
    whiten(layer, images, scale="unit", eps=0, signs=False)
    moment = output_moment(layer, images)
    assert_close(moment, torch.eye(moment.shape[-1]).double().expand_as(moment), 1e-6)


def test_a_number_is_the_outputs_deviation(images):
    layer = nn.Conv2d(3, 27, 3).double()
    whiten(layer, images, scale=0.2, eps=0)
    assert_close(
        output_moment(layer, images)[0].diagonal().sqrt(), 0.2 * torch.ones(27).double(), 1e-6
    )


@pytest.mark.parametrize("filters", ["eigen", "random"])
@pytest.mark.parametrize("name", LAYERS)
def test_keep_keeps_the_mean_square_of_the_outputs(name, filters, images):
    layer = LAYERS[name]()
    x = rows_for(layer, images.float())
    bias = 0.0 if layer.bias is None else layer.bias.view(-1, *[1] * (x.dim() - 2))
    bias = layer.bias if isinstance(layer, nn.Linear) else bias
    before = (layer(x) - bias).square().mean()
    whiten(layer, x, filters=filters)
    assert (layer(x) - bias).square().mean().item() == pytest.approx(before.item(), rel=1e-4)


def test_a_start_with_all_directions_separates_them(images):
    """With both signs of all 27 directions, ReLU loses nothing: positive minus negative is z."""
    layer = nn.Conv2d(3, 54, 3, bias=False).double()
    whiten(layer, images[:4])
    z = layer(images[:4])
    positive, negative = F.relu(z).chunk(2, dim=1)
    assert_close((positive - negative).detach(), z[:, :27].detach(), 1e-12)


def test_only_the_weight_changes(images):
    model = network().train()
    model[3].eval()
    conv = model[1]
    conv.to(memory_format=torch.channels_last)
    weight, bias = conv.weight, conv.bias.clone()
    state = {key: value.clone() for key, value in model.state_dict().items()}
    flags = [module.training for module in model.modules()]
    random_state = torch.get_rng_state()
    assert whiten(model, images) == ["1"]
    assert torch.equal(torch.get_rng_state(), random_state)
    assert [module.training for module in model.modules()] == flags
    assert model[1] is conv
    assert type(conv) is nn.Conv2d
    assert conv.weight is weight
    assert weight.requires_grad
    assert weight.is_leaf
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(conv.bias, bias)
    assert not conv._forward_hooks
    assert not conv._forward_pre_hooks
    changed = {
        key for key, value in model.state_dict().items() if not torch.equal(value, state[key])
    }
    assert model.state_dict().keys() == state.keys()
    assert changed == {"1.weight"}


def test_the_rows_are_those_behind_a_normalisation(images):
    model = network().double()
    model[0].running_mean += 0.5
    model[0].running_var *= 4
    normalised = F.batch_norm(images[:8], model[0].running_mean, model[0].running_var)
    expected = whitened_weight_of_layer(model[1], normalised)
    whiten(model.train(), images[:8])
    assert_close(model[1].weight.detach(), expected, 1e-6)


def test_the_same_seed_gives_the_same_weight(images):
    plain = nn.Conv2d(3, 100, 3)
    weights = []
    for seed in (0, 0, 1):
        torch.rand(7)
        layer = copy.deepcopy(plain)
        whiten(layer, images, scale="unit", seed=seed)
        weights.append(layer.weight.detach())
    assert torch.equal(weights[0], weights[1])
    assert torch.equal(weights[0][:54], weights[2][:54])
    assert not torch.allclose(weights[0][54:], weights[2][54:])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("filters", ["eigen", "random"])
def test_the_weights_dtype_decides_what_the_model_receives(dtype, filters, images):
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU()).to(dtype)
    rounded = images[:8].to(dtype).double()
    expected = whitened_weight_of_layer(copy.deepcopy(model[0]).double(), rounded, filters)
    whiten(model, images[:8].float(), filters=filters)
    assert model[0].weight.dtype == dtype
    assert_close(model[0].weight.double(), expected, 2 * torch.finfo(dtype).eps + 1e-6)


class Pixels(nn.Module):
    """A model called as Hugging Face's are."""

    def __init__(self):
        super().__init__()
        self.projection = nn.Conv2d(3, 10, 4, stride=4)

    def forward(self, pixel_values, labels=None):
        return {"logits": self.projection(pixel_values).mean((2, 3)), "labels": labels}


def test_loaders_and_mappings_give_what_one_tensor_gives(images):
    images = images.float()
    labels = torch.zeros(len(images), dtype=torch.int64)
    expected = nn.Conv2d(3, 10, 4, stride=4)
    state = copy.deepcopy(expected.state_dict())
    whiten(expected, images)
    mapping = {"pixel_values": images, "labels": labels}
    example = {"pixel_values": images[:1]}
    for given in (
        DataLoader(TensorDataset(images, labels), 10),
        DataLoader([{"pixel_values": x, "labels": 0} for x in images], 10),
        (part for part in images.split(10)),
        mapping,
        [mapping],
        images.double(),
    ):
        model = Pixels()
        model.projection.load_state_dict(state)
        assert whiten(model, given, example_input=example) == ["projection"]
        assert_close(model.projection.weight.detach(), expected.weight.detach(), 1e-4)


def test_a_loader_without_end_is_read_until_there_are_enough_images(images):
    read = []

    def repeat():
        while True:
            read.append(len(images))
            yield images

    layer = nn.Conv2d(3, 4, 3)
    whiten(layer, repeat(), max_images=3 * len(images) - 1)
    assert len(read) == 3
    read.clear()
    whiten(layer, repeat())
    assert len(read) == -(-5000 // len(images))


def test_all_batches_are_read_if_asked_for(images):
    few, all_of_them, expected = (copy.deepcopy(nn.Conv2d(3, 4, 3)) for _ in range(3))
    for layer in (few, all_of_them):
        layer.load_state_dict(expected.state_dict())
    whiten(expected, images)
    whiten(all_of_them, images.split(5), max_images=None)
    whiten(few, images.split(5), max_images=5)
    assert_close(all_of_them.weight, expected.weight, 1e-4)
    assert not torch.equal(few.weight, all_of_them.weight)


def test_a_target_like_an_image_is_not_whitened(images):
    pair, alone = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3)
    alone.load_state_dict(pair.state_dict())
    whiten(pair, (images, torch.randn_like(images)))
    whiten(alone, images)
    assert torch.equal(pair.weight, alone.weight)


def test_a_loader_that_shuffles_leaves_the_random_state(images):
    loader = DataLoader(TensorDataset(images.float()), 8, shuffle=True)
    model, before = network(), torch.get_rng_state()
    whiten(model, loader)
    assert torch.equal(torch.get_rng_state(), before)


def test_layers_can_be_named(images):
    model = network()
    before = model[1].weight.clone()
    assert whiten(model, images.float(), layers="4") == ["4"]
    assert torch.equal(model[1].weight, before)
    assert whiten(model, images.float(), layers=["1", "4"]) == ["1", "4"]
    assert not torch.equal(model[1].weight, before)


def test_a_layer_with_two_names_is_whitened_once(images):
    conv = nn.Conv2d(3, 8, 3)
    expected = whitened_weight_of_layer(copy.deepcopy(conv), images[:4].float())
    model = nn.ModuleDict({"a": conv, "b": conv})
    model.forward = lambda x: conv(x)
    assert whiten(model, images[:4].float(), layers=["a", "b"]) == ["a", "b"]
    assert_close(conv.weight.detach().double(), expected, 1e-4)


def test_a_frozen_weight_stays_and_the_bias_trains(images):
    model = network()
    model[1].weight.grad = torch.ones_like(model[1].weight)
    whiten(model, images, freeze=True)
    weight, bias = model[1].weight.clone(), model[1].bias.clone()
    assert not model[1].weight.requires_grad
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    model(images.float()).square().mean().backward()
    optimizer.step()
    assert torch.equal(model[1].weight, weight)
    assert not torch.equal(model[1].bias, bias)


# --- with TrAct ------------------------------------------------------------------------------------


def test_whiten_and_apply_tract_may_come_in_either_order(images):
    first, second = network(), network()
    second.load_state_dict(first.state_dict())
    whiten(first, images)
    apply_tract(first)
    apply_tract(second)
    assert whiten(second, images) == ["1"]
    assert isinstance(second[1], TrActLayer)
    for model in (first, second):
        torch.manual_seed(3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        for _ in range(3):
            optimizer.zero_grad()
            model(images.float()).square().mean().backward()
            optimizer.step()
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)
    remove_tract(second)
    second.load_state_dict(network().state_dict(), strict=True)


@pytest.mark.parametrize("make", [lambda: nn.Linear(12, 5), lambda: nn.Conv2d(3, 5, 3, padding=1)])
def test_training_in_whitened_coordinates_is_tract_with_a_fixed_second_moment(make, images):
    """W̃ trained on x R by plain SGD, and W = W̃ R on x by TrAct, have the same z at every step."""
    lam = 0.1
    tract = make().double()
    x = images[:6, :, :8, :8]
    x = x.reshape(-1, 12) if isinstance(tract, nn.Linear) else x
    (rows,) = cut_patches(x, tract)
    moment = rows.T @ rows / len(rows)
    values, vectors = torch.linalg.eigh(moment)
    root = vectors @ torch.diag((values + lam).rsqrt()) @ vectors.T  # R
    plain = nn.Linear(rows.shape[1], 5).double()
    plain.load_state_dict({"weight": tract.weight.flatten(1), "bias": tract.bias})
    whiten(tract, x, filters="random", scale="unit", eps=lam / values.mean().item())
    TrAct(tract, lam)
    heads = [nn.Linear(5, 3).double() for _ in range(2)]
    heads[1].load_state_dict(heads[0].state_dict())
    stems = [tract, plain]
    optimizers = [
        torch.optim.SGD([*stem.parameters(), *head.parameters()], lr=0.5, momentum=0.9)
        for stem, head in zip(stems, heads, strict=True)
    ]
    start = tract.weight.detach().clone()
    for step in range(8):
        target = torch.randn(len(rows), 3, generator=torch.Generator().manual_seed(step)).double()
        z = tract(x)
        z_tract = z if z.dim() == 2 else z.movedim(1, -1).flatten(0, -2)
        z_plain = plain(rows @ root)
        assert_close(z_tract.detach(), z_plain.detach(), 1e-9)
        for z, head, optimizer in zip((z_tract, z_plain), heads, optimizers, strict=True):
            optimizer.zero_grad()
            (head(torch.tanh(z)) - target).square().mean().backward()
            optimizer.step()
    assert_close(tract.weight.detach().flatten(1), plain.weight.detach() @ root, 1e-9)
    assert (tract.weight - start).norm() > 0.01 * start.norm()


@pytest.mark.slow
def test_a_compiled_model_trains_from_the_new_weights(images):
    model, x = network().double(), images[:4]
    compiled = torch.compile(model, backend="eager")
    compiled(x).sum().backward()
    whiten(compiled, x)
    apply_tract(model)
    expected = copy.deepcopy(model)
    for one in (compiled, expected):
        one.zero_grad()
        torch.manual_seed(0)
        one.eval()(x).square().sum().backward()
    assert_close(model[1].weight.grad, expected[1].weight.grad, 1e-9)
    torch._dynamo.reset()


# --- singular inputs -------------------------------------------------------------------------------


def test_grey_images_in_three_channels_work(images):
    grey = images.mean(1, keepdim=True).expand(-1, 3, -1, -1)
    for dtype in (torch.float64, torch.float32):
        layer = nn.Conv2d(3, 64, 3).to(dtype)
        whiten(layer, grey, scale="unit", eps=0)
        moment = output_moment(layer.double(), grey)[0]
        assert_close(moment.diagonal(), torch.ones(64).double(), 1e-3)
        assert_close(moment[:9, :9], torch.eye(9).double(), 1e-3)  # 9 of 27 directions
        assert_close(moment[:9, 9:18], -torch.eye(9).double(), 1e-3)
        assert torch.linalg.matrix_rank(moment, rtol=1e-3) == 9
        # a filter without a part in directions that grey images never have
        by_channel = layer.weight.detach().reshape(64, 3, 9)
        assert_close(by_channel[:, 0], by_channel[:, 2], 1e-3)


def test_few_rows_suffice_for_few_directions(images):
    layer = nn.Conv2d(3, 6, 16, stride=16).double()
    x = images[:1]  # 4 rows for 768 inputs
    expected = whitened_weight_of_layer(layer, x)
    whiten(layer, x)
    assert_close(layer.weight.detach(), expected, 1e-6)


# --- errors ----------------------------------------------------------------------------------------


class Standardised(nn.Conv2d):
    def forward(self, x):
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return F.conv2d(x, weight, self.bias, self.stride, self.padding)


class Twice(nn.Linear):
    def forward(self, x):
        return F.linear(F.linear(x, self.weight), self.weight, self.bias)


def parametrised():
    return nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 4, 3))


def flattened():
    conv = nn.Conv2d(3, 4, 3)
    conv.weight = nn.Parameter(conv.weight.detach().flatten())
    return conv


def with_weights(values):
    conv = nn.Conv2d(3, 4, 3, bias=False)
    nn.init.constant_(conv.weight, values)
    return conv


def tied():
    model = nn.Sequential(nn.Conv2d(3, 3, 3), nn.Conv2d(3, 3, 3))
    model[1].weight = model[0].weight
    return model


def one_pixel(value):
    x = torch.randn(4, 3, 8, 8)
    x[1, 2, 3, 4] = value
    return x


NOISE = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))

REFUSED = [
    (lambda: nn.LazyConv2d(4, 3), NOISE, {}, "LazyConv2d is lazy and not initialised yet; .* call whiten"),
    (parametrised, NOISE, {}, "has a parametrised weight; call whiten first"),
    (lambda: nn.Conv2d(3, 4, 3, device="meta"), NOISE, {}, "is on the meta device and has no values"),
    (flattened, NOISE, {}, r"has shape \(108,\) in place of \(4, 3, 3, 3\) \(FSDP1"),
    (lambda: nn.Linear(16385, 2), NOISE, {}, "has 16385 inputs .* takes at most 16384, .* 2 GiB"),
    (lambda: Standardised(3, 4, 3), NOISE, {}, "forward of Standardised applied its weight to the input 0 times"),
    (lambda: Twice(8, 8), NOISE, {}, "forward of Twice applied its weight to the input 2 times"),
    (lambda: nn.Sequential(Standardised(3, 4, 3)), NOISE, {}, "layer '0': the forward of Standardised"),
    (lambda: nn.Embedding(3, 4), NOISE, {"layers": ""}, "whiten takes an nn.Linear, .*; got Embedding.$"),
    (lambda: nn.Sequential(nn.ReLU()), NOISE, {}, "without reaching an nn.Linear"),
    (lambda: [nn.Linear(3, 3)], NOISE, {}, "whiten takes an nn.Module, changed in place; got list"),
    (tied, NOISE, {"layers": ["0", "1"]}, "layers '0', '1' share one weight; name only one"),
    (lambda: nn.Conv2d(3, 4, 3), [], {}, "images holds no batch"),
    (lambda: nn.Conv2d(3, 4, 3), 5, {}, "images takes one batch or an iterable of batches"),
    (lambda: nn.Conv2d(3, 4, 3), NOISE[:0], {}, "the images have no rows"),
    (lambda: nn.Conv2d(3, 4, 3), NOISE[:, :2], {}, "forward of Conv2d failed on a tensor of shape"),
    (lambda: nn.Conv2d(3, 4, 3), one_pixel(torch.nan), {}, "its inputs are not finite"),
    (lambda: nn.Conv2d(3, 4, 3), one_pixel(torch.inf), {"filters": "random"}, "its inputs are not finite"),
    (lambda: nn.Conv2d(3, 4, 3), torch.ones(4, 3, 8, 8), {}, "its inputs are constant: no direction"),
    (lambda: nn.Conv2d(3, 4, 3, padding=1), torch.ones(4, 3, 8, 8), {}, "its inputs are constant"),
    (lambda: nn.Conv2d(3, 4, 3), torch.zeros(4, 3, 8, 8), {"filters": "random"}, "are constant"),
    (lambda: nn.Linear(4, 4), torch.arange(4.0).expand(9, 4), {}, "its inputs are constant"),
    (
        lambda: nn.Conv2d(3, 6, 3, groups=3),
        torch.cat([NOISE[:, :2], torch.ones(4, 1, 8, 8)], 1),
        {},
        r"its inputs are constant in groups \[2\]",
    ),
    (lambda: nn.Conv2d(3, 40, 8, stride=8), NOISE, {}, "have 4 rows, and 40 outputs need at least 20"),
    (lambda: nn.Conv2d(3, 5, 8, stride=8), NOISE, {"signs": False}, "5 outputs need at least 5"),
    (lambda: with_weights(0.0), NOISE, {}, "outputs is 0 before whitening, .* use scale='unit'"),
    (lambda: with_weights(torch.nan), NOISE, {}, "outputs is nan before whitening"),
    (lambda: nn.Conv2d(3, 4, 3).half(), NOISE, {"scale": 1e6}, "is not finite in torch.float16"),
    (lambda: nn.Conv2d(3, 4, 3), NOISE, {"filters": "zca"}, "filters='zca' is unknown; use 'eigen' or"),
    (lambda: nn.Conv2d(3, 4, 3), NOISE, {"filters": ["eigen"]}, "is unknown; use 'eigen' or 'random'"),
    (lambda: nn.Conv2d(3, 4, 3), NOISE, {"scale": "one"}, "scale='one' is unknown; use 'keep', 'unit'"),
    (lambda: nn.Conv2d(3, 4, 3), NOISE, {"scale": 0}, "scale=0 is out of range; use 'keep', 'unit'"),
    (lambda: nn.Conv2d(3, 4, 3), NOISE, {"scale": True}, "scale=True is a bool"),
    (lambda: nn.Conv2d(3, 4, 3), NOISE, {"eps": -1e-3}, "eps=-0.001 is out of range; .* 0.0005 is the"),
    (lambda: nn.Conv2d(3, 4, 3), NOISE, {"eps": 10**400}, "is out of range"),
    (lambda: nn.Conv2d(3, 4, 3), NOISE, {"eps": False}, "eps=False is a bool"),
    (lambda: nn.Conv2d(3, 4, 3), NOISE, {"eps": "small"}, "eps='small' is a str"),
    (lambda: nn.Conv2d(3, 4, 3), NOISE, {"eps": 0, "filters": "random"}, "eps=0 is out of range; .* 0.1"),
    (lambda: nn.Conv2d(3, 4, 3), NOISE, {"signs": 1}, "signs=1 is not accepted; use True or False"),
    (lambda: nn.Conv2d(3, 4, 3), NOISE, {"freeze": None}, "freeze=None is not accepted"),
    (lambda: nn.Conv2d(3, 4, 3), NOISE, {"seed": 0.5}, "seed=0.5 is not accepted; use a whole number"),
    (lambda: nn.Conv2d(3, 4, 3), NOISE, {"seed": 2**64}, "is not accepted"),
    (lambda: nn.Conv2d(3, 4, 3), NOISE, {"max_images": 0}, "max_images=0 is out of range; use a positive whole"),
    (lambda: nn.Conv2d(3, 4, 3), NOISE, {"max_images": 1e3}, "max_images=1000.0 is not accepted; .* or None to read"),
    (lambda: nn.Conv2d(3, 4, 3), NOISE, {"max_images": True}, "max_images=True is not accepted"),
    (lambda: network(), NOISE, {"layers": "9"}, "the model has no layer named '9'"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "given", "settings", "message"), REFUSED)
def test_what_cannot_be_whitened_is_refused_and_left_unchanged(make, given, settings, message):
    model = make()
    is_module = isinstance(model, nn.Module)
    parameters = list(model.parameters()) if is_module else []
    is_usable = [not isinstance(p, nn.UninitializedParameter) and not p.is_meta for p in parameters]
    before = [
        p.detach().clone() if ok else None for p, ok in zip(parameters, is_usable, strict=True)
    ]
    with pytest.raises(TrActError, match=message):
        whiten(model, given, **{"freeze": True, **settings})
    for parameter, values in zip(parameters, before, strict=True):
        assert parameter.requires_grad
        assert values is None or torch.equal(parameter.nan_to_num(9), values.nan_to_num(9))


def test_a_failure_of_one_layer_leaves_all_unchanged(images):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 3, bias=False))
    nn.init.zeros_(model[1].weight)
    before = model[0].weight.clone()
    with pytest.raises(TrActError, match="layer '1': the mean square of its outputs is 0"):
        whiten(model, images, layers=["0", "1"])
    assert torch.equal(model[0].weight, before)


def test_timms_weight_standardised_layers_are_refused_and_its_padding_ones_are_not(images):
    import_torchvision_or_skip()
    import timm.layers as timm

    for layer in (timm.StdConv2d(3, 8, 3), timm.ScaledStdConv2d(3, 8, 3)):
        with pytest.raises(TrActError, match="standardises or normalises its weight"):
            whiten(layer, images)
    layer = timm.Conv2dSame(3, 8, 3, stride=2).double()
    stand_in = nn.Conv2d(3, 8, 3, stride=2).double()
    stand_in.load_state_dict(layer.state_dict())
    expected = whitened_weight_of_layer(stand_in, F.pad(images[:8], (0, 1, 0, 1)))
    whiten(layer, images[:8])
    assert_close(layer.weight.detach(), expected, 1e-6)


def test_the_reference_has_unit_outputs_too(images):
    (rows,) = cut_patches(images[:6], nn.Conv2d(3, 1, 3))
    filters = whitened_filters(rows, 27, eps=0.0, signs=False)
    z = rows @ filters.T
    assert_close(z.T @ z / len(z), torch.eye(27).double(), 1e-6)
