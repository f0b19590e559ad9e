"""Models of a recipe: functions of the user's own modules, hashes, and TrAct."""

import sys

import pytest
import torch
from torch import nn

from trainact.errors import TrActValueError
from trainact.lab.models import build
from trainact.lab.models.build import add_tract, build_model, hash_weights
from trainact.lab.recipes.recipe import ModelFields, TractFields


def test_a_module_in_the_working_directory_is_found_and_the_path_restored(tmp_path, monkeypatch):
    (tmp_path / "own_networks.py").write_text(
        "from torch import nn\n"
        "def make(num_classes, width=3):\n"
        "    import own_sizes\n"
        "    return nn.Linear(width, num_classes * own_sizes.FACTOR)\n"
    )
    (tmp_path / "own_sizes.py").write_text("FACTOR = 2\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    before = list(sys.path)
    fields = ModelFields(name="own_networks:make", arguments={"width": 5})
    assert build_model(fields, 10, 3, 32).weight.shape == (20, 5)
    fields = ModelFields(name="own_networks:make", arguments={"wide": 5})
    with pytest.raises(TrActValueError, match="cannot be built with num_classes=10, wide=5"):
        build_model(fields, 10, 3, 32)
    assert sys.path == before


def test_torchvision_takes_only_colour_images():
    with pytest.raises(TrActValueError, match="resnet18 takes 3 channels, the images have 1"):
        build_model(ModelFields(name="torchvision:resnet18"), 10, 1, 32)


def test_the_hash_of_weights_depends_on_names_and_values():
    torch.manual_seed(0)
    layer = nn.Linear(3, 2)
    hashes = {hash_weights(layer), hash_weights(nn.Sequential(layer))}
    with torch.no_grad():
        layer.bias[0] += 1
    assert len(hashes | {hash_weights(layer)}) == 3


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, [(["a", "b"], {})]),
        ({"relative": True}, [(["a", "b"], {"relative": True})]),
        ({"moment_decay": 0.9}, [(["a", "b"], {"moment_decay": 0.9})]),
        ({"center": True}, [(["a"], {"center": True}), (["b"], {"center": "batchnorm"})]),
    ],
)
def test_options_of_tract_are_passed_only_if_they_are_set(monkeypatch, fields, expected):
    """A layer without a trained bias is centered as before a batch norm."""
    model = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
    model["b"].bias.requires_grad_(False)
    calls = []

    def apply(network, lam, *, layers, moment_dtype, sync, **options):
        assert (network, lam, moment_dtype, sync) == (model, 0.1, None, False)
        calls.append((layers, options))

    monkeypatch.setattr(build, "apply_tract", apply)
    add_tract(model, ["a", "b"], TractFields(**fields))
    assert calls == expected
    add_tract(model, ["a", "b"], TractFields(**fields, enabled=False))
    assert calls == expected
