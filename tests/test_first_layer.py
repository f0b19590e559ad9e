"""Finding the layers whose input is the image itself."""

import types
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from trainact import TrActError, UnsupportedLayerError, apply_tract, find_first_layers


class Net(nn.Module):
    """A module whose forward is given as a function of itself and its inputs."""

    def __init__(self, forward, **modules):
        super().__init__()
        self.steps = forward
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, *args, **kwargs):
        return self.steps(self, *args, **kwargs)


class TimmNet(Net):
    """The same, as a class of timm."""

    __module__ = "timm.models.own"


def normalise(x):
    mean = torch.tensor([0.5, 0.4, 0.3], device=x.device).view(3, 1, 1)
    return (x / 255 - mean) / 0.2


def to_patches(x):
    return F.unfold(x, 16, stride=16).transpose(1, 2)


FOUND = {
    "sequential": (nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)), ["0"]),
    "flattened": (nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 10)), ["1"]),
    "head-registered-first": (
        Net(lambda s, x: s.head(s.stem(x).mean((2, 3))), head=nn.Linear(4, 2), stem=nn.Conv2d(3, 4, 3)),
        ["stem"],
    ),
    "normalised-and-padded": (
        Net(lambda s, x: s.stem(F.pad(normalise(x), (1, 1, 1, 1), "reflect")), stem=nn.Conv2d(3, 4, 3)),
        ["stem"],
    ),
    "normalised-in-place": (
        Net(lambda s, x: s.stem(x.clone().sub_(0.5).div_(0.2)), stem=nn.Conv2d(3, 4, 3)),
        ["stem"],
    ),
    "batch-norm-before": (nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3)), ["1"]),
    "patches": (
        Net(lambda s, x: s.rest(s.embed(s.norm(to_patches(x)))),
            rest=nn.Linear(8, 8), embed=nn.Linear(768, 8), norm=nn.LayerNorm(768)),
        ["embed"],
    ),
    "permuted": (
        Net(lambda s, x: s.embed(x.permute(0, 2, 3, 1).reshape(1, -1, 3)), embed=nn.Linear(3, 8)),
        ["embed"],
    ),
    "two-stems": (
        Net(lambda s, x: s.join(torch.cat([s.left(x), s.right(x.flip(-1))], 1)),
            join=nn.Conv2d(8, 4, 1), left=nn.Conv2d(3, 4, 3), right=nn.Conv2d(3, 4, 3)),
        ["left", "right"],
    ),
    "image-joined-later": (
        Net(lambda s, x: s.second(torch.cat([x, s.first(x)], 1)),
            first=nn.Conv2d(3, 4, 3, padding=1), second=nn.Conv2d(7, 4, 3)),
        ["first"],
    ),
    "fixed-matrix-before": (
        Net(lambda s, x: s.stem(torch.einsum("nchw,cd->ndhw", x, torch.ones(3, 3, device=x.device))),
            stem=nn.Conv2d(3, 4, 3)),
        ["stem"],
    ),
    "video": (nn.Sequential(nn.Conv3d(3, 4, 3), nn.Flatten()), ["0"]),
    "fails-later": (nn.Sequential(nn.Conv2d(3, 4, 3), nn.Linear(7, 7)), ["0"]),
    "wrong-channels": (nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU()), ["0"]),
    "layer-itself": (nn.Linear(5, 5), [""]),
    "reads-a-value": (
        Net(lambda s, x: s.stem(x) if x.max().item() < 9 else x, stem=nn.Conv2d(3, 4, 3)),
        ["stem"],
    ),
    "list-of-images": (
        Net(lambda s, images: s.stem(torch.stack(images)) if isinstance(images, list) else images[:, :, 0, 0, 0, 0, 0],
            stem=nn.Conv2d(3, 4, 3)),
        ["stem"],
    ),
    "clip": (
        Net(lambda s, x: s.stem(x.transpose(1, 2).reshape(-1, *x.shape[-3:])[:, :3, :8, :8]) if x.dim() == 5 else x[0, 0, 0, 0, 0],
            stem=nn.Conv2d(3, 4, 3)),
        ["stem"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("model", "names"), FOUND.values(), ids=FOUND)
def test_the_first_layer_is_found(model, names):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert find_first_layers(model) == names


TWO_STEMS = {
    "wrong-channels": (nn.Conv2d(1, 4, 3), nn.Conv2d(1, 4, 3), nn.ReLU()),
    "fixed-size": (nn.Conv2d(1, 4, 28), nn.Conv2d(1, 4, 28), nn.Sequential(nn.Flatten(), nn.Linear(4, 2))),
    "rows": (nn.Linear(20, 4), nn.Linear(20, 4), nn.Linear(4, 2)),
    "flattened": (nn.Sequential(nn.Flatten(), nn.Linear(48, 48)), nn.Sequential(nn.Flatten(), nn.Linear(48, 48)), nn.Linear(48, 2)),
    "sound": (nn.Conv1d(2, 4, 3), nn.Conv1d(2, 4, 3), nn.ReLU()),
    "volume": (nn.Conv3d(1, 4, 3), nn.Conv3d(1, 4, 3), nn.ReLU()),
}  # fmt: skip


@pytest.mark.parametrize(("left", "right", "rest"), TWO_STEMS.values(), ids=TWO_STEMS)
def test_a_guess_that_fits_the_found_layer_finds_the_others(left, right, rest):
    model = Net(lambda s, x: s.rest(s.left(x) + s.right(x)), left=left, right=right, rest=rest)
    found = find_first_layers(model)
    assert [name.split(".")[0] for name in found] == ["left", "right"]


def test_a_forward_that_reads_a_value_between_two_stems_is_run():
    model = Net(
        lambda s, x: s.left(x) * s.left(x).max().item() + s.right(x),
        left=nn.Conv2d(3, 4, 3), right=nn.Conv2d(3, 4, 3),
    )  # fmt: skip
    assert find_first_layers(model) == ["left", "right"]


@pytest.mark.parametrize("example", [None, torch.zeros(1, 3, 9, 9)], ids=["guess", "example"])
def test_a_forward_that_always_fails_between_two_stems_is_a_warning(example):
    model = Net(lambda s, x: s.right(s.left(x) / 0 + {}), left=nn.Conv2d(3, 4, 3), right=nn.Conv2d(3, 4, 3))  # fmt: skip
    message = (
        r"a forward of Net failed after it reached 'left' \(unsupported operand .*\); 'right' may "
        r"take the image too\. Pass example_input= with an input of the model, or layers="
    )
    with pytest.warns(UserWarning, match=message):
        assert find_first_layers(model, example) == ["left"]


def on_canvas(x, device=None):
    canvas = torch.zeros(*x.shape[:-2], x.shape[-2] + 4, x.shape[-1] + 4, device=device)
    canvas[..., 2:-2, 2:-2] = x
    return canvas


def copied_into_a_view(x):
    canvas = torch.zeros(x.shape, device=x.device)
    canvas[:, 1:].copy_(x[:, 1:])
    return canvas


def added_to_a_view(x):
    canvas = torch.zeros(x.shape, device=x.device)
    part = canvas[:, 1:]
    part += x[:, 1:]
    return canvas


def written_as_out(x):
    canvas = torch.zeros(x.shape, device=x.device)
    torch.mul(x[:, 1:], 2, out=canvas[:, 1:])
    return canvas


@pytest.mark.parametrize(
    "write",
    [on_canvas, lambda x: on_canvas(x, x.device), copied_into_a_view, added_to_a_view, written_as_out],
    ids=["canvas", "canvas-on-the-device", "copy_", "in-place", "out"],
)  # fmt: skip
def test_an_image_written_into_another_tensor_is_followed(write):
    model = Net(lambda s, x: s.rest(s.stem(write(x))), rest=nn.Conv2d(4, 4, 1), stem=nn.Conv2d(3, 4, 3))  # fmt: skip
    assert find_first_layers(model) == ["stem"]


def test_features_written_into_another_tensor_are_no_image():
    def forward(s, x):
        canvas = torch.cat([x, x], 1)
        canvas[:, :3] = s.first(x)
        return s.second(canvas)

    model = Net(forward, first=nn.Conv2d(3, 3, 1), second=nn.Conv2d(6, 4, 3))
    assert find_first_layers(model) == ["first"]


def test_the_search_on_a_cpu_does_not_touch_gpus(monkeypatch):
    def fail(*args):
        raise AssertionError("no GPU has a part in this")

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "get_rng_state", fail)
    for device in ("cpu", "meta"):
        assert find_first_layers(nn.Sequential(nn.Conv2d(3, 4, 3, device=device))) == ["0"]


def test_the_search_leaves_the_model_and_the_random_state_as_they_were():
    noisy = Net(lambda s, x: s.stem(s.norm(x + torch.rand(3, 1, 1))), stem=nn.Conv2d(3, 4, 3), norm=nn.BatchNorm2d(3))  # fmt: skip
    noisy.stem.eval()
    state, random_state = dict(noisy.state_dict()), torch.get_rng_state()
    assert find_first_layers(noisy) == ["stem"]
    assert torch.equal(torch.get_rng_state(), random_state)
    for name, value in noisy.state_dict().items():
        assert torch.equal(value, state[name])
        assert value.device.type == "cpu"
    assert noisy.training
    assert not noisy.stem.training
    assert noisy.norm.training
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in noisy.modules())


def test_timms_config_names_the_first_layer():
    model = TimmNet(None, stem=nn.Conv2d(3, 4, 3), other=nn.Conv2d(3, 4, 3))
    model.pretrained_cfg = {"first_conv": "other"}
    assert find_first_layers(model) == ["other"]
    model.pretrained_cfg = {"first_conv": ("stem", "other")}
    assert find_first_layers(model) == ["stem", "other"]


def test_timms_config_does_not_speak_for_a_subclass_with_a_layer_in_front():
    def forward(s, x):
        return s.stem(s.adapt(x))

    model = Net(forward, stem=nn.Conv2d(3, 4, 3), adapt=nn.Conv2d(6, 3, 1))
    model.pretrained_cfg = {"first_conv": "stem"}
    assert find_first_layers(model, torch.rand(1, 6, 8, 8)) == ["adapt"]


def test_a_forward_set_on_the_instance_is_followed():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3))
    original = model.forward
    model.forward = lambda x: original(x / 255)
    assert find_first_layers(model) == ["0"]


def test_a_lazy_model_with_a_forward_of_its_own_is_searched_in_a_copy():
    model = Net(
        lambda s, x: s.head(s.stem(x).mean((2, 3))), stem=nn.Conv2d(3, 4, 3), head=nn.LazyLinear(5)
    )
    assert find_first_layers(torch.compile(model)) == ["_orig_mod.stem"]
    model.forward = types.MethodType(type(model).forward, model)
    assert find_first_layers(model) == ["stem"]
    assert model.head.has_uninitialized_params()
    model.forward = lambda x: model.head(model.stem(x).mean((2, 3)))
    with pytest.raises(TrActError, match="it has lazy layers, which a forward would initialise"):
        find_first_layers(model)


def test_an_outdated_name_in_timms_config_is_ignored():
    stem = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    model = TimmNet(lambda s, x: s.head(s.stem(x)), stem=stem, head=nn.Conv2d(4, 4, 3))
    model.pretrained_cfg = {"first_conv": "stem"}
    assert find_first_layers(model) == ["stem.0"]


def test_the_input_size_is_read_from_the_config():
    sizes = []
    model = Net(lambda s, x: sizes.append(tuple(x.shape)) or s.stem(x), stem=nn.Conv2d(3, 4, 3))
    model.pretrained_cfg = {"input_size": (3, 64, 48)}
    find_first_layers(model)
    del model.pretrained_cfg

    class Config:
        image_size, num_channels = 56, 1

    model.config = Config()
    find_first_layers(model)
    model.config.image_size = (30, 40)
    find_first_layers(model)
    assert sizes == [(1, 3, 64, 48), (1, 1, 56, 56), (1, 1, 30, 40)]


@pytest.mark.parametrize(
    ("size", "sides"),
    [
        ({"height": 40, "width": 48}, (40, 48)),
        ([3, 40, 48], (40, 48)),
        *((size, (224, 224)) for size in ({"shortest_edge": 40}, "32", [32], 32.0, 0, True, (8, "9"))),
    ],
    ids=str,
)  # fmt: skip
def test_an_image_size_of_another_kind_is_read_or_ignored(size, sides):
    sizes = []
    model = Net(lambda s, x: sizes.append(tuple(x.shape)) or s.stem(x), stem=nn.Conv2d(3, 4, 3))

    class Config:
        image_size, num_channels = size, "3"

    model.config = Config()
    assert apply_tract(model) == ["stem"]
    assert sizes == [(1, 3, *sides)]


@pytest.mark.parametrize("size", [224, "3,64,64", (3, "a", 64), (3, 64)], ids=str)
def test_an_input_size_in_timms_config_that_is_none_is_ignored(size):
    model = nn.Sequential(nn.Conv2d(3, 4, 3))
    model.pretrained_cfg = {"input_size": size}
    assert find_first_layers(model) == ["0"]


def test_a_hugging_face_model_is_called_by_its_main_input():
    model = Net(lambda s, pixel_values: s.stem(pixel_values), stem=nn.Conv2d(3, 4, 3))
    model.main_input_name, model.config = "pixel_values", object()
    assert find_first_layers(model) == ["stem"]


@pytest.mark.parametrize(
    "example",
    [
        (torch.randn(2, 5), torch.randn(2, 5)),
        {"a": torch.randn(2, 5), "b": torch.randn(2, 5)},
    ],
    ids=["tuple", "mapping"],
)
def test_an_example_input_is_used_as_given(example):
    model = Net(lambda s, a, b: s.left(a) + s.right(b), left=nn.Linear(5, 3), right=nn.Linear(5, 3))
    assert find_first_layers(model, example) == ["left", "right"]
    assert apply_tract(model, example_input=example) == ["left", "right"]


def test_token_ids_as_a_second_input_are_ignored():
    model = Net(
        lambda s, ids, image: s.mix(s.words(ids).mean(1)) + s.stem(image).mean((2, 3)),
        words=nn.Embedding(9, 4), mix=nn.Linear(4, 4), stem=nn.Conv2d(3, 4, 3),
    )  # fmt: skip
    example = torch.zeros(1, 5, dtype=torch.long), torch.randn(1, 3, 8, 8)
    assert find_first_layers(model, example) == ["stem"]


class OwnLinear(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 8))

    def forward(self, x):
        return x.flatten(2).transpose(1, 2) @ self.weight


@pytest.mark.parametrize(
    ("model", "example", "message"),
    [
        (nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4)), torch.zeros(1, 5, dtype=torch.long), r"'0', a Embedding \(embedding\)"),
        (nn.Sequential(OwnLinear(), nn.Linear(8, 4)), None, r"'0', a OwnLinear \(matmul\); TrAct trains nn.Linear"),
        (nn.Sequential(nn.ConvTranspose2d(3, 4, 3)), None, r"'0', a ConvTranspose2d \(conv_transpose2d\)"),
        (nn.Sequential(nn.MultiheadAttention(224, 2)), None, "MultiheadAttention|failed before"),
    ],
    ids=["embedding", "own-class", "transposed", "attention"],
)  # fmt: skip
def test_an_unsupported_first_layer_is_named(model, example, message):
    with pytest.raises(TrActError, match=message):
        find_first_layers(model, example)


def test_an_unsupported_weight_besides_a_found_layer_is_a_warning():
    model = Net(lambda s, x: (s.stem(x), s.own(x)), stem=nn.Conv2d(3, 4, 3), own=OwnLinear())
    with pytest.warns(
        UserWarning, match="also applies weights to the image that TrAct cannot train"
    ):
        assert find_first_layers(model) == ["stem"]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Sequential(nn.ReLU(), nn.Flatten()), "ran without reaching an nn.Linear"),
        (nn.ModuleList([nn.Linear(3, 3)]), "failed before any layer was reached"),
    ],
    ids=["no-layer", "no-forward"],
)
def test_nothing_found_is_an_error_that_says_what_to_do(model, message):
    with pytest.raises(ValueError, match=message) as caught:
        apply_tract(model)
    assert isinstance(caught.value, TrActError)
    assert "pass example_input= with an input of the model, or layers=" in str(caught.value)


def test_a_lazy_layer_is_found_and_refused_and_stays_lazy():
    model = nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyConv2d(4, 3))
    assert find_first_layers(model) == ["0"]
    with pytest.raises(UnsupportedLayerError, match="layer '0': LazyConv2d is lazy"):
        apply_tract(model)
    assert model[1].has_uninitialized_params()


def test_only_modules_are_searched():
    with pytest.raises(TrActError, match=r"takes an nn\.Module; got str"):
        find_first_layers("resnet18")


def test_a_compiled_model_is_searched_without_compiling_it():
    graphs = []

    def count_graphs(graph, inputs):
        graphs.append(graph)
        return graph.forward

    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10))
    model(torch.rand(2, 3, 8, 8))
    compiled = torch.compile(model, backend=count_graphs)
    assert find_first_layers(compiled, torch.rand(2, 3, 8, 8)) == ["_orig_mod.0"]
    assert graphs == []
    compiled(torch.rand(2, 3, 8, 8))
    assert graphs
