"""Rules for the first layer's gradient, each against a computation written in another way."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from cases import CASES, assert_close
from lab_helpers import ignore, make_quick
from trainact import apply_tract
from trainact.lab.training.first_layer.gradient_rules import (
    Centralised,
    Mac,
    NormPreserving,
    choose_rho,
)
from trainact.lab.training.first_layer.row_moments import RowMoments
from trainact.lab.training.train import train
from trainact.reference import cut_patches, preactivations_as_rows

LAYERS = {
    "conv": lambda bias: nn.Conv2d(3, 6, 5, stride=2, padding=2, bias=bias),
    "patches": lambda bias: nn.Conv2d(3, 40, 4, stride=4, bias=bias),
    "groups": lambda bias: nn.Conv2d(3, 9, 3, groups=3, padding_mode="reflect", padding=1, bias=bias),
}  # fmt: skip


def draw_images(kind, cifar_images):
    if kind == "cifar":
        return cifar_images / 64 - 2
    walk = torch.randn(24, 3, 16, 16).double().cumsum(2).cumsum(3)
    return walk / walk.std() + 0.5


def backward(layer, images, seed=3):
    """Set the layer's gradients and return ∇z, in the shape of z."""
    z = layer(images)
    grad_z = torch.randn(z.shape, generator=torch.Generator().manual_seed(seed), dtype=z.dtype)
    layer.zero_grad()
    z.backward(grad_z)
    return grad_z


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_centralised_is_a_projection_of_each_output_and_leaves_the_bias(case):
    layer, x = case.draw()
    backward(layer, x)
    plain, bias = layer.weight.grad.clone(), None if layer.bias is None else layer.bias.grad.clone()
    Centralised([layer]).apply()
    n = plain[0].numel()
    projection = torch.eye(n).double() - torch.ones(n, n).double() / n
    expected = torch.einsum("mi,ij->mj", plain.reshape(len(plain), n), projection)
    torch.testing.assert_close(layer.weight.grad, expected.reshape(plain.shape))
    assert layer.weight.grad.reshape(len(plain), n).sum(1).abs().max() < 1e-12 * n + 1e-10
    assert bias is None or torch.equal(layer.bias.grad, bias)


@pytest.mark.parametrize("kind", ["cifar", "walk"])
@pytest.mark.parametrize("name", list(LAYERS))
def test_norm_preserving_has_the_norm_of_plain_and_the_direction_of_tract(cifar_images, name, kind):
    images, layer = draw_images(kind, cifar_images), LAYERS[name](True).double()
    tract = nn.Sequential(copy.deepcopy(layer))
    apply_tract(tract, 0.05)
    backward(tract, images)
    rule = NormPreserving([layer], RowMoments([layer], None, torch.clone), 0.05)
    backward(layer, images)
    plain, bias = layer.weight.grad.clone(), layer.bias.grad.clone()
    rule.apply()
    changed = layer.weight.grad
    assert changed.norm().item() == pytest.approx(plain.norm().item(), rel=1e-12)
    wanted = tract[0].weight.grad
    assert_close(changed / changed.norm(), wanted / wanted.norm())
    assert (wanted / wanted.norm() - plain / plain.norm()).norm() > 0.1
    assert torch.equal(layer.bias.grad, bias)


def test_norm_preserving_pools_micro_batches(cifar_images):
    images, layer = draw_images("cifar", cifar_images), LAYERS["conv"](False).double()
    rule = NormPreserving([layer], RowMoments([layer], None, torch.clone), 0.1)
    grad_z = backward(layer, images)
    rule.apply()
    whole = layer.weight.grad.clone()
    layer.zero_grad()
    for part, grad in zip(images.split([3, 29]), grad_z.split([3, 29]), strict=True):
        layer(part).backward(grad)
    rule.apply()
    assert_close(layer.weight.grad, whole)


def test_norm_preserving_keeps_a_zero_gradient_and_skips_an_absent_one(cifar_images):
    layer = LAYERS["conv"](True).double()
    rule = NormPreserving([layer], RowMoments([layer], None, torch.clone), 0.1)
    rule.apply()
    assert layer.weight.grad is None
    (layer(cifar_images) * 0).sum().backward()
    rule.apply()
    assert torch.equal(layer.weight.grad, torch.zeros_like(layer.weight))


def make_mac(layer, batches, reduce=torch.clone):
    network = nn.Sequential(layer)
    return Mac([layer], network, lambda: batches, None, reduce)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", list(LAYERS))
def test_mac_solves_the_damped_least_squares_problem_with_a_column_of_ones(
    cifar_images, name, bias
):
    """If the batch is the training set, the step is a ridge regression of ∇z on [x, 1]."""
    images, layer = draw_images("cifar", cifar_images), LAYERS[name](bias).double()
    grad_z = backward(layer, images)
    make_mac(layer, images.split(11)).apply()
    rows = cut_patches(images, layer).numpy()
    groups, count, _ = rows.shape
    targets = preactivations_as_rows(grad_z, layer).reshape(count, groups, -1).numpy()
    rho = choose_rho(layer)
    assert rho == (3.0 if name == "patches" else 1.0)
    for g in range(groups):
        x = np.hstack([rows[g], np.ones((count, 1))]) if bias else rows[g]
        left = np.vstack([x / np.sqrt(count), np.sqrt(rho) * np.eye(x.shape[1])])
        right = np.vstack(
            [np.sqrt(count) * targets[:, g], np.zeros((x.shape[1], targets.shape[2]))]
        )
        solution = np.linalg.lstsq(left, right, rcond=None)[0].T  # [m/g, n (+ 1)]
        n, outputs = rows.shape[2], slice(g * len(solution), (g + 1) * len(solution))
        changed = layer.weight.grad[outputs].flatten(1)
        assert_close(changed, torch.from_numpy(solution[:, :n].copy()))
        if bias:
            assert_close(layer.bias.grad[outputs], torch.from_numpy(solution[:, n].copy()))


def test_mac_measures_the_training_images_once_and_continues_from_a_checkpoint(cifar_images):
    images, layer = draw_images("cifar", cifar_images), LAYERS["conv"](True).double()
    reads = []

    def read():
        reads.append(1)
        return images.split(9)

    rule = Mac([layer], nn.Sequential(layer), read, None, lambda tensor: 2 * tensor)
    for _ in range(2):
        backward(layer, images[:4])
        rule.apply()
    assert len(reads) == 1
    assert int(rule.moments[0].num_rows) == 2 * 32 * 16 * 16
    other = copy.deepcopy(layer)
    again = make_mac(other, [])
    again.load_state_dict(rule.state_dict())
    backward(other, images[:4])
    again.apply()
    assert torch.equal(other.weight.grad, layer.weight.grad)
    assert torch.equal(other.bias.grad, layer.bias.grad)


def test_mac_leaves_a_bias_that_is_not_trained(cifar_images):
    layer = LAYERS["conv"](True).double()
    layer.bias.requires_grad_(False)
    backward(layer, cifar_images)
    plain = layer.weight.grad.clone()
    make_mac(layer, [cifar_images]).apply()
    rows = cut_patches(cifar_images, layer)[0]
    system = rows.T @ rows / len(rows) + torch.eye(rows.shape[1])
    expected = torch.linalg.solve(system, plain.flatten(1), left=False)
    assert_close(layer.weight.grad.flatten(1), expected, rtol=1e-8)
    assert layer.bias.grad is None


def test_a_fixed_second_moment_under_sgd_is_training_in_whitened_coordinates():
    """W = W̃R with R = (S + ρI)^(-½): a step on W̃ moves W as MAC's rule does without a bias."""
    x = torch.randn(60, 8).double().cumsum(1) + 1
    labels = torch.randint(0, 5, (60,))
    layer = nn.Linear(8, 5, bias=False).double()
    values, vectors = torch.linalg.eigh(x.T @ x / 60 + 3 * torch.eye(8))
    root = vectors @ torch.diag(values.rsqrt()) @ vectors.T
    white = nn.Linear(8, 5, bias=False).double()
    with torch.no_grad():
        white.weight.copy_(layer.weight @ torch.linalg.inv(root))
    rule = make_mac(layer, [x])
    optimizers = [torch.optim.SGD(some.parameters(), 0.5, 0.9) for some in (layer, white)]
    start = layer.weight.detach().clone()
    for step in range(20):
        part = slice(step % 3 * 20, step % 3 * 20 + 20)
        for some, inputs, optimizer in zip((layer, white), (x, x @ root), optimizers, strict=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(some(inputs[part]), labels[part]).backward()
            if some is layer:
                rule.apply()
            optimizer.step()
    assert_close(layer.weight.detach(), (white.weight @ root).detach())
    assert (layer.weight - start).norm() > 0.1


def test_a_rule_is_applied_before_the_norms_are_measured(tmp_path):
    """One step each: the norm-preserving rule has plain's norm, the others do not."""
    norms = {}
    for rule in ("none", "norm-preserving", "centralised", "mac"):
        recipe = make_quick(
            tract__enabled=False, optimizer__first_layer_rule=rule, schedule__epochs=1,
            data__train_images=32,
        )  # fmt: skip
        [epoch] = train(recipe, tmp_path, ignore)["epochs"]
        norms[rule] = epoch["first_layer_grad_norm"]
    assert norms["norm-preserving"] == pytest.approx(norms["none"], rel=1e-5)
    for rule in ("centralised", "mac"):
        assert norms[rule] < 0.98 * norms["none"]


def test_micro_batches_do_not_change_what_a_rule_computes(tmp_path):
    losses = []
    for parts in (1, 2):
        recipe = make_quick(
            tract__enabled=False, optimizer__first_layer_rule="norm-preserving",
            run__accumulation=parts, schedule__epochs=2,
        )  # fmt: skip
        losses.append([e["train_loss"] for e in train(recipe, tmp_path, ignore)["epochs"]])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
