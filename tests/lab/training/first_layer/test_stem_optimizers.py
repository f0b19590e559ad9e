"""Optimizers of the first layer's weight, against explicit sums over all steps in float64."""

import copy
import math

import numpy as np
import pytest
import scipy.linalg
import torch
from torch import nn

from cases import assert_close
from lab_helpers import ignore, make_quick
from trainact import apply_tract
from trainact.lab.training.first_layer.row_moments import RowMoments
from trainact.lab.training.first_layer.stem_optimizers import Asgo, Foof
from trainact.lab.training.train import train
from trainact.reference import cut_patches


def make_layer(dtype=torch.float64):
    return nn.Conv2d(3, 6, 3, stride=2, groups=3, bias=False).to(dtype)


def make_foof(layer, lr=0.1, lam=0.1, **options):
    rows = RowMoments([layer], None, torch.clone)
    return Foof([{"params": [layer.weight]}], rows, lr, lam, **options)


def make_asgo(layer, lr=0.1, **options):
    return Asgo([{"params": [layer.weight]}], [layer], lr, **options)


MAKERS = {"foof": make_foof, "asgo": make_asgo}


def run(layer, optimizer, batches, seed=1):
    """Take one step on each batch and return the gradients, which do not depend on the weight."""
    generator = torch.Generator().manual_seed(seed)
    grads = []
    for images in batches:
        optimizer.zero_grad()
        z = layer(images)
        grad_z = torch.randn(z.shape, generator=generator, dtype=z.dtype) / len(images)
        z.backward(grad_z)
        grads.append(layer.weight.grad.clone())
        optimizer.step()
    return grads


def test_foof_without_memory_steps_along_the_gradient_of_tract(cifar_images):
    images = cifar_images / 64 - 2
    for options in ({}, {"weight_decay": 0.2}):
        layer = nn.Conv2d(3, 6, 5, stride=2, padding=2, bias=False).double()
        tract = nn.Sequential(copy.deepcopy(layer))
        apply_tract(tract, 0.05)
        grad_z = torch.randn(tract(images).shape).double()
        tract(images).backward(grad_z)
        optimizer = make_foof(layer, 0.3, 0.05, decay=0.0, refresh=1, momentum=0.0, **options)
        before = layer.weight.detach().clone()
        layer(images).backward(grad_z)
        optimizer.step()
        kept = before * (1 - 0.3 * options.get("weight_decay", 0.0))
        assert_close(layer.weight.detach(), kept - 0.3 * tract[0].weight.grad)


@pytest.mark.parametrize("refresh", [1, 3])
def test_foof_is_its_formula(cifar_images, refresh):
    batches = (cifar_images / 64 - 2).split(4)
    layer = make_layer()
    expected = layer.weight.detach().clone().reshape(3, 2, 9).numpy()
    optimizer = make_foof(layer, 0.1, 0.02, refresh=refresh)
    grads = [g.reshape(3, 2, 9).numpy() for g in run(layer, optimizer, batches)]
    moments = [(r.mT @ r / r.shape[1]).numpy() for r in (cut_patches(b, layer) for b in batches)]
    assert len(batches) == 8
    inverse = None
    for t in range(1, 9):
        momentum = sum(0.9 ** (t - s) * grads[s - 1] for s in range(1, t + 1))
        if (t - 1) % refresh == 0:
            average = sum(0.05 * 0.95 ** (t - s) * moments[s - 1] for s in range(1, t + 1))
            inverse = np.linalg.inv(average / (1 - 0.95**t) + 0.02 * np.eye(9))
        expected = expected - 0.1 * momentum @ inverse
    assert_close(layer.weight.detach(), torch.from_numpy(expected).reshape(layer.weight.shape))


def test_asgo_is_its_formula(cifar_images):
    batches = (cifar_images / 64 - 2).split(4)
    layer = make_layer()
    expected = layer.weight.detach().clone().reshape(3, 2, 9).numpy() * 1.0
    optimizer = make_asgo(layer, 0.1, eps=1e-3, weight_decay=0.3)
    grads = [g.reshape(3, 2, 9).numpy() for g in run(layer, optimizer, batches)]
    for t in range(1, 9):
        momentum = sum(0.1 * 0.9 ** (t - s) * grads[s - 1] for s in range(1, t + 1))
        for g in range(3):
            average = sum(
                0.05 * 0.95 ** (t - s) * np.einsum("mi,mj->ij", grads[s - 1][g], grads[s - 1][g])
                for s in range(1, t + 1)
            )
            root = scipy.linalg.sqrtm(average + 1e-3 * np.eye(9)).real
            step = np.linalg.solve(root, momentum[g].T).T
            expected[g] = expected[g] * (1 - 0.1 * 0.3) - 0.1 * step
    wanted = torch.from_numpy(expected).reshape(layer.weight.shape)
    assert_close(layer.weight.detach(), wanted, rtol=1e-7)


def test_asgo_does_not_depend_on_the_scale_of_the_gradient_and_is_bounded(cifar_images):
    """The first step has singular values .1 / √.05, whatever the gradient is."""
    for scale in (1e3, 1.0, 1e-3):
        layer = nn.Conv2d(3, 6, 3, bias=False).double()
        before = layer.weight.detach().clone()
        optimizer = make_asgo(layer, 1.0, eps=1e-24)
        (layer(cifar_images / 64 - 2).square().mean() * scale).backward()
        optimizer.step()
        step = (before - layer.weight.detach()).flatten(1)
        values = torch.linalg.svdvals(step)
        assert values.max().item() == pytest.approx(0.1 / math.sqrt(0.05), rel=1e-6)


@pytest.mark.parametrize("name", list(MAKERS))
def test_a_resumed_optimizer_takes_the_same_steps_bit_for_bit(cifar_images, name):
    """With float32 weights the statistics are float64, and stay so."""
    batches = (cifar_images.float() / 64 - 2).split(4)
    layer = make_layer(torch.float32)
    optimizer = MAKERS[name](layer)
    run(layer, optimizer, batches[:3])
    other = copy.deepcopy(layer)
    other._forward_hooks.clear()
    resumed = MAKERS[name](other)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert resumed.state[other.weight]["average"].dtype == torch.float64
    run(layer, optimizer, batches[3:])
    run(other, resumed, batches[3:])
    assert torch.equal(layer.weight, other.weight)


def test_foof_steps_the_same_when_gradients_are_cleared_after_the_forward_pass(cifar_images):
    images, layer = cifar_images / 64 - 2, make_layer()
    other = copy.deepcopy(layer)
    for some, clears_late in ((layer, False), (other, True)):
        optimizer = make_foof(some)
        for batch in images.split(8):
            if not clears_late:
                optimizer.zero_grad()
            loss = some(batch).square().mean()
            if clears_late:
                optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert torch.equal(layer.weight, other.weight)


def test_a_skipped_step_leaves_no_rows_behind(cifar_images):
    """A step that overflows with fp16 is not taken, but its gradient is cleared."""
    layer, images = make_layer(), cifar_images / 64 - 2
    other = copy.deepcopy(layer)
    optimizer, straight = make_foof(layer), make_foof(other)
    layer(images[:8] * math.inf).sum().backward()
    optimizer.zero_grad()
    for some, steps in ((layer, optimizer), (other, straight)):
        some(images[8:]).square().mean().backward()
        steps.step()
    assert torch.equal(layer.weight, other.weight)
    assert layer.weight.isfinite().all()


def test_asgo_with_a_gradient_that_is_not_finite_gives_nan_and_no_error(cifar_images):
    layer = make_layer()
    optimizer = make_asgo(layer)
    layer(cifar_images * math.nan).sum().backward()
    optimizer.step()
    assert layer.weight.isnan().all()


@pytest.mark.parametrize("name", ["foof", "asgo", "muon"])
def test_a_run_that_diverges_is_recorded_as_such(tmp_path, name):
    recipe = make_quick(
        tract__enabled=False, optimizer__first_layer_name=name,
        model__name="small_models:Overflowing",
    )  # fmt: skip
    assert train(recipe, tmp_path, ignore)["status"] == "diverged"
