"""timm's Muon against its formula, and the weights that it takes."""

import numpy as np
import pytest
import torch
from torch import nn

from small_models import make_deep
from trainact import find_first_layers
from trainact.errors import TrActError
from trainact.lab.models.networks import build_network
from trainact.lab.models.zoos import build_zoo_model
from trainact.lab.recipes.recipe import OptimizerFields
from trainact.lab.training.first_layer.muon import find_hidden_weights, keep_norms, make_muon
from trainact.lab.training.optimizers import make_optimizers


def orthogonalise(matrix):
    """Five Newton-Schulz steps on the singular values, one by one."""
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    values = values / np.sqrt((values**2).sum())
    for _ in range(5):
        values = 3.4445 * values - 4.775 * values**3 + 2.0315 * values**5
    return left @ np.diag(values) @ right


@pytest.mark.parametrize("shape", [(16, 3, 3, 3), (64, 16), (6, 8, 5, 5)])
def test_a_step_of_muon_is_its_formula(shape):
    """timm computes in bfloat16, which has three digits."""
    weight = nn.Parameter(torch.randn(shape))
    optimizer = make_muon([{"params": [weight]}], 0.02, 0.9, 0.5)
    walk = torch.randn(4, *shape).cumsum(0)
    momentum, expected = np.zeros(shape), weight.detach().double().numpy().copy()
    start = weight.detach().clone()
    for grad in walk:
        weight.grad = grad.clone()
        optimizer.step()
        momentum = 0.9 * momentum + grad.double().numpy()
        update = grad.double().numpy() + 0.9 * momentum
        rows, columns = shape[0], update[0].size
        step = orthogonalise(update.reshape(rows, columns)).reshape(shape)
        expected = expected * (1 - 0.02 * 0.5) - 0.02 * max(1, rows / columns) ** 0.5 * step
    moved = torch.from_numpy(expected) - start.double()
    error = (weight.detach().double() - torch.from_numpy(expected)).norm() / moved.norm()
    assert error < 0.03


def name_hidden(model, first):
    found = set(map(id, find_hidden_weights(model, first)))
    return {name for name, p in model.named_parameters() if id(p) in found}


def test_hidden_matrices_and_convolutions_are_found_and_nothing_else():
    assert name_hidden(make_deep(5), ["0"]) == {"2.weight", "8.weight"}
    vit = build_network("vit-cifar", 10, width=24, depth=1, heads=2)
    parts = [*(f"attention.{n}" for n in ("query", "key", "value", "output")), "mlp.0", "mlp.2"]
    assert name_hidden(vit, ["embed"]) == {f"blocks.0.{part}.weight" for part in parts}
    squeeze = build_network("squeezenet", 100)  # its classifier is a convolution
    first = find_first_layers(squeeze, torch.zeros(2, 3, 32, 32))
    left = {name for name, p in squeeze.named_parameters() if p.ndim > 1}
    left -= name_hidden(squeeze, first)
    assert len(left) == 2
    assert {f"{first[0]}.weight"} < left
    assert sum(name.startswith("head.") for name in left) == 1


def test_the_classifier_of_a_zoo_model_is_left_out():
    vit = build_zoo_model("timm", "vit_tiny_patch16_224", 32, num_classes=7, depth=1)
    assert name_hidden(vit, ["patch_embed.proj"]) == {
        f"blocks.0.{part}.weight" for part in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
    }
    names = {"conv1.weight", "fc.weight"}
    resnet = build_zoo_model("torchvision", "resnet18", 32, num_classes=7)
    matrices = {name for name, p in resnet.named_parameters() if p.ndim > 1}
    assert name_hidden(resnet, ["conv1"]) == matrices - names


def test_matrices_of_attention_are_hidden_and_positions_are_not():
    model = nn.Sequential(
        nn.Linear(12, 8), nn.TransformerEncoderLayer(8, 2, 16), nn.Embedding(5, 8), nn.Linear(8, 3)
    )
    model.positions = nn.Parameter(torch.zeros(1, 5, 8))
    model.table = nn.Parameter(torch.zeros(5, 8))
    parts = ("self_attn.in_proj_weight", "self_attn.out_proj.weight", "linear1.weight",
             "linear2.weight")  # fmt: skip
    assert name_hidden(model, ["0"]) == {f"1.{part}" for part in parts}


def test_weights_that_are_frozen_or_computed_are_left_out():
    model = make_deep(5)
    model[2].weight.requires_grad_(False)
    nn.utils.parametrizations.weight_norm(model[8])
    assert name_hidden(model, ["0"]) == set()


def test_a_timm_without_muon_is_named(monkeypatch):
    import timm.optim

    monkeypatch.delattr(timm.optim, "Muon")
    with pytest.raises(TrActError, match="pip install --upgrade timm"):
        make_muon([{"params": [nn.Parameter(torch.ones(2, 2))]}], 0.1, 0.9, 0.0)


def test_weights_keep_their_norm_and_have_no_decay():
    torch.manual_seed(0)
    weights = [nn.Parameter(torch.randn(6, 4, 3, 3)), nn.Parameter(torch.zeros(50, 3))]
    groups = [{"params": weights[:1]}, {"params": weights[1:], "weight_decay": 0.3}]
    optimizer = make_muon(groups, 0.02, 0.9, 0.5)
    free = make_muon([{"params": [nn.Parameter(weights[0].detach().clone())]}], 0.02, 0.9, 0.0)
    keep_norms(optimizer)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.0, 0.0]
    (twin,) = free.param_groups[0]["params"]
    for _ in range(3):
        weights[0].grad = torch.randn(6, 4, 3, 3)
        weights[1].grad = torch.zeros(50, 3)
        twin.grad = weights[0].grad.clone()
        optimizer.step()
        free.step()
        with torch.no_grad():
            twin *= 6**0.5 / (twin**2).sum().sqrt()
        torch.testing.assert_close(weights[0], twin)
    assert weights[1].eq(0).all()


def test_a_body_of_muon_is_normalised_where_the_recipe_says_so():
    fields = OptimizerFields(body="muon", muon_normalise=True, weight_decay=0.1)
    network = build_network("speed", 10, widths=[24, 24, 24])
    stem, hidden = network.stem.weight.detach().clone(), network.groups[0].conv1.weight
    optimizers = make_optimizers(network, ["stem"], fields)
    for parameter in network.parameters():
        parameter.grad = torch.zeros_like(parameter)
    for optimizer in optimizers:
        optimizer.step()
    assert hidden.norm().item() == pytest.approx(24**0.5)
    torch.testing.assert_close(network.stem.weight.detach(), stem * (1 - fields.lr * 0.1))
