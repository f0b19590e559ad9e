"""Initial weights from files: what fits, what is replaced or resized, and what is refused."""

import math

import pytest
import safetensors.torch
import torch

from lab_helpers import make_quick
from small_models import make_tiny
from trainact.errors import TrActValueError
from trainact.lab.models.build import load_initial_weights
from trainact.lab.models.networks import build_network
from trainact.lab.models.pretrained import find_weights, load_weights, read_weights
from trainact.lab.recipes.experiment import find_experiment
from trainact.lab.recipes.recipe import ModelFields
from trainact.lab.records.record import RunFolder
from trainact.lab.torchvision_import import import_torchvision
from trainact.lab.training.train import train

import_torchvision()  # before timm

SMALL = {"width": 24, "depth": 2, "heads": 3, "patch_size": 4}


def make_vit(classes=5, size=16):
    return build_network("deit3-small", classes, image_size=size, **SMALL)


def save(network, path, **changes):
    tensors = {k: v.clone() for k, v in network.state_dict().items()} | changes
    safetensors.torch.save_file(tensors, path)
    return path


@pytest.mark.parametrize("kind", ["safetensors", "pth", "wrapped"])
def test_all_weights_of_a_file_are_taken(tmp_path, kind):
    source, network = make_tiny(5), make_tiny(5)
    path = tmp_path / ("a.safetensors" if kind == "safetensors" else "a.pth")
    if kind == "safetensors":
        save(source, path)
    else:
        tensors = {f"module.{k}": v for k, v in source.state_dict().items()}
        torch.save({"model": tensors, "epoch": 3} if kind == "wrapped" else tensors, path)
    loaded = load_weights(network, path, strict=True)
    assert all(
        torch.equal(a, b) for a, b in zip(source.parameters(), network.parameters(), strict=True)
    )
    assert loaded.describe() == f"weights from {path}"
    assert len(loaded.sha256) == 64


def test_a_classifier_of_another_size_is_drawn_anew(tmp_path):
    source, network = make_tiny(5), make_tiny(3)
    before = network[4].weight.clone()
    loaded = load_weights(network, save(source, tmp_path / "a.safetensors"), strict=True)
    assert loaded.replaced == ("4.weight", "4.bias")
    assert torch.equal(network[4].weight, before)
    assert torch.equal(network[0].weight, source[0].weight)
    assert "random for another number of classes: 4.weight, 4.bias" in loaded.describe()


def test_positions_are_resized_as_timm_does_it(tmp_path):
    from timm.layers import resample_abs_pos_embed

    source, network = make_vit(size=12), make_vit(size=16)
    loaded = load_weights(network, save(source, tmp_path / "a.safetensors"), strict=True)
    assert loaded.resized == ("pos_embed",)
    expected = resample_abs_pos_embed(source.pos_embed, [4, 4], num_prefix_tokens=0)
    assert network.pos_embed.shape == (1, 16, 24)
    torch.testing.assert_close(network.pos_embed, expected)


@pytest.mark.parametrize("grid", [3, 6])
def test_positions_are_resized_without_antialiasing_as_deit_does_it(tmp_path, grid):
    """A position of the new grid is a cubic mixture, a = -0.75, of the four nearest on each axis."""
    source, network = make_vit(size=16), make_vit(size=4 * grid)
    torch.nn.init.normal_(source.pos_embed)
    path = save(source, tmp_path / "a.safetensors")
    load_weights(network, path, strict=True, positions="bicubic")
    mixing = torch.zeros(grid, 4)
    for new in range(grid):
        place = (new + 0.5) * 4 / grid - 0.5
        for tap in range(math.floor(place) - 1, math.floor(place) + 3):
            x, a = abs(place - tap), -0.75
            near, far = (a + 2) * x**3 - (a + 3) * x**2 + 1, a * (x**3 - 5 * x**2 + 8 * x - 4)
            mixing[new, min(max(tap, 0), 3)] += near if x <= 1 else far
    old = source.pos_embed.detach().view(4, 4, 24)
    expected = torch.einsum("ai,bj,ijc->abc", mixing, mixing, old).reshape(1, grid**2, 24)
    torch.testing.assert_close(network.pos_embed.detach(), expected, atol=1e-5, rtol=1e-5)
    load_weights(network, path, strict=True)
    assert float((network.pos_embed.detach() - expected).abs().max()) > 0.01


def test_a_run_resizes_positions_as_its_recipe_says(tmp_path):
    source = make_vit(size=16)
    torch.nn.init.normal_(source.pos_embed)
    path, embeddings = save(source, tmp_path / "a.safetensors"), []
    for positions in ("antialiased", "bicubic"):
        network = make_vit(size=24)
        recipe = make_quick(model__weights=str(path), model__positions=positions)
        load_initial_weights(recipe, network)
        embeddings.append(network.pos_embed.detach())
    assert not torch.allclose(*embeddings)
    for candidate in ("a", "b"):
        for run in find_experiment(f"deit3-vit-b-finetune-{candidate}").plan():
            assert run.model.positions == "bicubic"


def test_the_names_of_deits_own_files_are_understood(tmp_path):
    source, network = make_vit(), make_vit()
    source.blocks[0].ls1.gamma.data.fill_(0.5)
    tensors = {
        k.replace(".ls1.gamma", ".gamma_1").replace(".ls2.gamma", ".gamma_2"): v
        for k, v in source.state_dict().items()
    }
    torch.save({"model": tensors}, tmp_path / "deit.pth")
    load_weights(network, tmp_path / "deit.pth", strict=True)
    assert torch.equal(network.blocks[0].ls1.gamma, source.blocks[0].ls1.gamma)


def test_timms_own_network_has_the_same_names():
    import timm

    theirs = timm.create_model("deit3_small_patch16_224", num_classes=10, img_size=32)
    ours = build_network("deit3-small", 10, image_size=32)
    shapes = [{k: v.shape for k, v in n.state_dict().items()} for n in (theirs, ours)]
    assert shapes[0] == shapes[1]


def test_what_does_not_fit_is_refused_and_reported_or_left_out(tmp_path):
    network = make_tiny(5)
    tensors = dict(network.state_dict())
    del tensors["0.bias"]
    tensors |= {"extra.weight": torch.ones(2), "0.weight": torch.ones(8, 3, 2, 2)}
    path = tmp_path / "a.safetensors"
    safetensors.torch.save_file(tensors, path)
    with pytest.raises(TrActValueError) as caught:
        load_weights(network, path, strict=True)
    text = str(caught.value)
    assert "missing: 0.bias;" in text
    assert "unexpected: extra.weight" in text
    assert "of another shape: 0.weight is [8, 3, 2, 2], not [8, 3, 4, 4]" in text
    assert "model.weights_strict=false" in text
    loaded = load_weights(network, path, strict=False)
    assert loaded.missing == ("0.weight", "0.bias")
    assert "missing and random: 0.weight, 0.bias; not used: extra.weight" in loaded.describe()


def test_files_that_are_no_weights_are_refused(tmp_path):
    (tmp_path / "a.safetensors").write_bytes(b"not weights")
    torch.save({"rate": 3}, tmp_path / "b.pth")
    torch.save({"weight": torch.nn.Linear(2, 2)}, tmp_path / "c.pth")  # needs code to unpickle
    for name, message in (("a.safetensors", "cannot be read as weights"),
                          ("b.pth", "holds no named weights"),
                          ("c.pth", "cannot be read as weights")):  # fmt: skip
        with pytest.raises(TrActValueError, match=message):
            read_weights(tmp_path / name)


def test_a_file_is_found_by_arm_seed_and_pattern(tmp_path):
    folder = tmp_path / "tract-400ep-seed3-abc"
    folder.mkdir()
    file = folder / "weights.safetensors"
    file.write_bytes(b"x")
    pattern = f"{tmp_path}/{{pretraining}}-400ep-seed{{seed}}-*/weights.safetensors"
    assert find_weights(ModelFields(weights=pattern, pretraining="tract"), 3) == file
    for fields, message in (
        (ModelFields(weights=pattern, pretraining="plain"), "there is no .*plain-400ep-seed3"),
        (ModelFields(weights=str(file), pretraining="plain"), "write {pretraining} in place"),
        (ModelFields(pretraining="plain"), "give their file as --model.weights"),
        (ModelFields(weights=f"{tmp_path}/*/*"), "2 files match"),
    ):
        (folder / "other").write_bytes(b"x")
        with pytest.raises(TrActValueError, match=message):
            find_weights(fields, 3)


def test_a_run_starts_from_the_weights_of_another_and_its_record_says_so(tmp_path):
    first = make_quick(schedule__epochs=1, run__arm="plain")
    train(first, tmp_path, lambda event: None)
    file = RunFolder(tmp_path, first).weights_path
    second = make_quick(schedule__epochs=1, model__weights=str(file), optimizer__lr=1e-9)
    events = []
    record = train(second, tmp_path, events.append)
    assert record["model"]["weights"]["file"] == str(file)
    assert any(event.text.startswith("weights from") for event in events)
    before = safetensors.torch.load_file(file)
    after = safetensors.torch.load_file(RunFolder(tmp_path, second).weights_path)
    for key, value in before.items():
        torch.testing.assert_close(after[key], value, atol=1e-5, rtol=0)


def test_names_that_are_no_names_are_refused(tmp_path):
    torch.save({1: torch.zeros(2)}, tmp_path / "a.pth")
    with pytest.raises(TrActValueError, match="holds no named weights"):
        read_weights(tmp_path / "a.pth")


def test_positions_of_no_grid_are_refused(tmp_path):
    path = save(make_vit(), tmp_path / "a.safetensors", pos_embed=torch.zeros(1, 0, 24))
    with pytest.raises(TrActValueError, match=r"of another shape: pos_embed is \[1, 0, 24\]"):
        load_weights(make_vit(), path, strict=True)
