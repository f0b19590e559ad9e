"""The models of timm, torchvision and transformers: a sample of the page docs/zoo.md."""

import importlib.metadata
from pathlib import Path

import pytest
import torch
from torch import nn

from slow_cases import mark_slow
from tools import zoo
from trainact import (
    TrActValueError,
    accumulate,
    apply_tract,
    check_tract,
    find_first_layers,
    whiten,
)
from trainact.lab.models.zoos import build_meta_model, build_on_meta, list_names
from trainact.lab.torchvision_import import import_torchvision

import_torchvision()  # before timm and transformers do

PAGE = Path(__file__).parents[2] / "docs" / "zoo.md"

SAMPLE = [
    # two stems, three stems, a name in another order, .item() in the forward, a subclass of Conv2d
    *("timm:crossvit_tiny_240", "timm:csatv2", "timm:fastvit_t8", "timm:gemma4_vit_167m"),
    *("timm:resnetv2_18", "timm:deit_tiny_patch16_224", "timm:test_resnet", "timm:coat_tiny"),
    *("timm:gmlp_ti16_224", "timm:test_convnext", "timm:cait_xxs24_224"),
    # a list of images, a clip, a pair, a constructor that reads values
    *("torchvision:fasterrcnn_resnet50_fpn", "torchvision:r3d_18", "torchvision:raft_small"),
    *("torchvision:regnet_y_128gf", "torchvision:resnet18", "torchvision:lraspp_mobilenet_v3_large"),
    *("torchvision:vit_b_16", "torchvision:vgg11", "torchvision:swin_t"),
    # a text beside the image, frames before channels
    *("hf:vit", "hf:deit", "hf:dinov2", "hf:swin", "hf:convnext", "hf:beit", "hf:clip"),
    *("hf:siglip_vision_model", "hf:sam_vision_model", "hf:mobilevit", "hf:resnet", "hf:timesformer"),
]  # fmt: skip


@pytest.fixture(scope="module")
def page() -> str:
    return PAGE.read_text()


def is_of_this_timm(page: str) -> bool:
    """Return whether the installed timm wrote the page; models change from version to version."""
    return f" timm {importlib.metadata.version('timm')}," in page


@pytest.mark.parametrize("reference", mark_slow(SAMPLE, fast=1))
def test_the_page_says_what_a_search_finds_today(reference, page):
    source, name = reference.split(":")
    if source == "timm" and name not in list_names("timm"):
        pytest.skip("this version of timm does not have it")
    row = zoo.examine(reference)
    assert str(row) in page.splitlines() or not is_of_this_timm(page)
    assert row.agrees or row.model in zoo.DIFFERENCES


def test_the_page_explains_its_columns(page):
    _, columns = zoo.write_head().split("\n\n- ")
    assert f"\n\n- {columns}" in page


def test_the_page_has_every_family_of_timm(page):
    import timm

    if not is_of_this_timm(page):
        pytest.skip("the page is of another version of timm")
    modules = {timm.models._registry._model_to_module[name] for name in zoo.TIMM_SMALLEST}
    assert modules == set(timm.list_modules())
    assert all(f"\n| {name} |" in page for name in zoo.TIMM_SMALLEST)


def test_the_page_has_every_model_of_torchvision_and_the_towers_asked_for(page):
    assert all(f"\n| {name} |" in page for name in list_names("torchvision"))
    assert all(f"\n| {name} |" in page for name in zoo.TRANSFORMERS)


def test_the_page_explains_every_difference_and_no_other(page):
    for name, reason in zoo.DIFFERENCES.items():
        assert f"- `{name}`: {reason}\n" in page
    assert page.count("\n- `") == len(zoo.DIFFERENCES)
    agreeing = len(zoo.TIMM_SMALLEST) - len(zoo.DIFFERENCES)
    assert f"on {agreeing} of {len(zoo.TIMM_SMALLEST)}." in page


@pytest.mark.slow
def test_the_command_writes_the_page_and_fails_on_an_unexplained_difference(tmp_path, monkeypatch, capsys):  # fmt: skip
    references = ["timm:test_resnet", "timm:csatv2", "torchvision:vgg11"]
    monkeypatch.setattr(zoo, "list_references", lambda: references)
    output = tmp_path / "zoo.md"
    assert zoo.main(["--output", str(output)]) == 0
    assert "on 1 of 2" in output.read_text()
    monkeypatch.setattr(zoo, "DIFFERENCES", {})
    assert zoo.main(["--output", str(output)]) == 1
    assert "timm differs for an unknown reason: csatv2" in capsys.readouterr().err
    assert "- `csatv2`: unexplained" in output.read_text()


def test_a_search_leaves_a_model_without_values_as_it_is():
    model = build_on_meta(lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)))
    before = dict(model.state_dict(keep_vars=True))
    assert find_first_layers(model) == ["0"]
    after = model.state_dict(keep_vars=True)
    assert all(after[name] is tensor for name, tensor in before.items())


def test_a_model_without_values_that_reads_one_is_searched_on_zeros():
    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(3, 4, 3)

        def forward(self, x):
            return self.stem(x) if x.mean().item() == 0 else x

    model = build_on_meta(Reader)
    assert model.stem.weight.is_meta
    assert find_first_layers(model) == ["stem"]
    assert model.stem.weight.is_meta


def test_a_constructor_that_reads_values_gives_parameters_without_values():
    layer = build_on_meta(lambda: nn.Sequential(nn.Linear(4, int(torch.full((), 3.0).item()))))[0]
    assert layer.weight.is_meta
    assert layer.weight.shape == (3, 4)
    assert nn.Linear(2, 2).weight.device.type == "cpu"


def test_new_patches_in_timm_lose_the_layer_and_it_is_said():
    import timm

    model = timm.create_model("test_vit", num_classes=2)
    assert apply_tract(model) == ["patch_embed.proj"]
    model.set_input_size(img_size=64, patch_size=8)
    assert type(model.patch_embed.proj) is nn.Conv2d
    with pytest.raises(TrActValueError, match=r"'patch_embed\.proj'.*set_input_size"):
        check_tract(model)
    with pytest.raises(TrActValueError, match=r"'patch_embed\.proj'"), accumulate(model):
        pass
    assert apply_tract(model) == check_tract(model) == ["patch_embed.proj"]


def test_another_image_size_in_timm_keeps_the_layer():
    import timm

    model = timm.create_model("test_vit", num_classes=2)
    apply_tract(model)
    model.set_input_size(img_size=64)
    assert check_tract(model) == ["patch_embed.proj"]


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("timm:resnet81", r"unknown model of timm 'resnet81'; did you mean .*'resnet18'"),
        (
            "vit_b_61",
            r"unknown model of timm and torchvision 'vit_b_61'; did you mean .*'vit_b_16'",
        ),
        ("hf:vitt", r"unknown model of hf 'vitt'; did you mean .*'vit'"),
        ("keras:vgg16", r"names the source 'keras'; use timm:NAME"),
        ("timm:%%%", r"unknown model of timm '%%%'; none of the \d+ known names is similar"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(reference, message):
    with pytest.raises(TrActValueError, match=message):
        build_meta_model(reference)


def make_vit() -> nn.Module:
    import transformers

    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.ViTConfig(**sizes, intermediate_size=32, image_size=32, patch_size=8)
    return transformers.ViTForImageClassification(config)


def make_timm(name: str) -> nn.Module:
    import timm

    return timm.create_model(name)


def make_video() -> nn.Module:
    import torchvision

    return torchvision.models.video.r3d_18()


@pytest.mark.parametrize(
    ("make", "images"),
    [
        (lambda: make_timm("test_resnet"), torch.rand(4, 3, 64, 64)),
        (lambda: make_timm("test_vit"), torch.rand(16, 3, 160, 160)),
        (make_video, torch.rand(2, 3, 4, 32, 32)),
        (make_vit, {"pixel_values": torch.rand(8, 3, 32, 32), "labels": torch.arange(8) % 2}),
    ],
    ids=["resnet", "vit", "video", "transformers"],
)
def test_whiten_changes_the_layer_that_apply_tract_finds(make, images):
    model = make().eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    names = whiten(model, [images])
    after = model.state_dict()
    changed = [name for name, tensor in before.items() if not torch.equal(after[name], tensor)]
    assert changed == [f"{name}.weight" for name in names]
    assert apply_tract(model) == names
