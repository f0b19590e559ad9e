"""``trainact inspect MODEL`` through the command line."""

import json

import pytest

from trainact.lab.commands.cli import main


def inspect(capsys, *arguments: str) -> str:
    assert main(["inspect", *arguments]) == 0
    return capsys.readouterr().out


def test_a_model_of_timm_is_described(capsys):
    shown = inspect(capsys, "timm:test_vit").splitlines()
    assert shown[0] == "timm:test_vit"
    assert shown[1] == "first layer      patch_embed.proj"
    assert "Conv2d(3, 64, kernel_size=(16, 16), stride=(16, 16))" in shown[2]
    assert shown[3] == "inputs per row   n = 768"
    assert shown[4] == "rows per image   100"
    assert shown[5].startswith("estimated cost   ")
    assert shown[5].endswith(" % of a step's multiply-adds at batch 128")
    assert shown[6] == "code             trainact.apply_tract(model)"


@pytest.mark.parametrize(
    ("name", "full", "layer"),
    [
        ("resnet18", "timm:resnet18", "conv1"),
        ("vit_b_16", "torchvision:vit_b_16", "conv_proj"),
        ("torchvision:vgg11", "torchvision:vgg11", "features.0"),
        ("hf:vit", "hf:vit", "embeddings.patch_embeddings.projection"),
        ("lab:speed", "lab:speed", "stem"),
        ("hf:ResNetForImageClassification", "hf:ResNetForImageClassification", "resnet.embedder.embedder.convolution"),
    ],
)  # fmt: skip
def test_models_are_found_in_their_sources(name, full, layer, capsys):
    shown = inspect(capsys, name).splitlines()
    assert shown[0] == full
    assert shown[1].split()[-1] == layer


def test_several_first_layers_are_all_shown(capsys):
    shown = inspect(capsys, "timm:crossvit_tiny_240")
    assert "patch_embed.0.proj" in shown
    assert "patch_embed.1.proj" in shown


def test_json_holds_the_same_numbers(capsys):
    shown = json.loads(inspect(capsys, "timm:test_vit", "--json", "--batch", "8"))
    assert shown["model"] == "timm:test_vit"
    (layer,) = shown["layers"]
    assert (layer["name"], layer["num_inputs"], layer["rows_per_image"]) == ("patch_embed.proj", 768, 100)  # fmt: skip
    assert shown["batch"] == 8
    assert shown["ratio"] == pytest.approx(layer["extra"] / (3 * 8 * shown["forward"]))
    assert shown["to_write"] == "trainact.apply_tract(model)"


@pytest.mark.parametrize(
    ("model", "rows"),
    [("timm:test_vit", 16), ("timm:test_resnet", 1024), ("torchvision:vit_b_16", 16), ("torchvision:resnet18", 1024), ("hf:vit", 16), ("lab:resnet18-tract", 4096)],
)  # fmt: skip
def test_the_image_size_can_be_chosen(model, rows, capsys):
    shown = json.loads(inspect(capsys, model, "--image-size", "64", "--json"))
    assert shown["layers"][0]["rows_per_image"] == rows


def test_a_cost_that_is_only_a_bound_says_so(capsys):
    shown = inspect(capsys, "torchvision:ssdlite320_mobilenet_v3_large")
    assert "estimated cost   < " in shown
    assert "upper bound" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["timm:resnet81"], "unknown model of timm 'resnet81'; did you mean"),
        (["keras:vgg16"], "use timm:NAME, torchvision:NAME, hf:NAME, lab:NAME"),
        (["lab:resnet81"], "unknown model of lab 'resnet81'; did you mean"),
        (["timm:test_vit", "--image-size", "0"], "--image-size takes a positive number; got 0"),
        (["hf:bert"], "pass example_input="),
    ],
    ids=["unknown-name", "unknown-source", "unknown-network", "no-size", "no-images"],
)
def test_what_cannot_be_inspected_is_one_line_on_standard_error(arguments, message, capsys):
    assert main(["inspect", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.startswith("trainact: ")
