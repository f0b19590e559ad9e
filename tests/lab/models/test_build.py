"""Models of a recipe: functions of the user's own modules, and the hash of weights."""

import sys

import pytest
import torch
from torch import nn

from trainact.errors import TrActValueError
from trainact.lab.models.build import build_model, hash_weights
from trainact.lab.recipes.recipe import ModelFields


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
