"""What ``trainact bench`` measures: the paper's first layers, its networks, and how cost grows."""

import copy
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainact import TrAct, find_first_layers
from trainact.gradient import Memory, apply_precondition
from trainact.lab.cost.timing import Work
from trainact.lab.models.networks.vit import CifarViT
from trainact.lab.torchvision_import import import_torchvision
from trainact.options import DEFAULT_LAM, Options
from trainact.rows import patches_of_layer

__all__ = ["GROWTH", "LAYERS", "NETWORKS", "LayerContest", "NetworkContest"]


@dataclass(frozen=True)
class _Contest:
    """A module, and the shape of an input to it."""

    name: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]

    def _draw(self, device: torch.device, dtype: torch.dtype) -> tuple[nn.Module, Tensor]:
        torch.manual_seed(0)
        plain = self.make().to(device, dtype)
        return plain, torch.randn(self.shape, device=device, dtype=dtype)


class LayerContest(_Contest):
    """Forward and backward of one first layer; its input needs no gradient, as in training."""

    def set_up(self, device: torch.device, dtype: torch.dtype, compiled: bool) -> "Contenders":
        """Return the work of each contender on one and the same input."""
        plain, x = self._draw(device, dtype)
        layers = {"plain": plain, "trainact": TrAct(copy.deepcopy(plain))}
        theirs = _wrap_with_torch_tract(plain, dtype)
        if theirs is not None:
            layers["torch_tract"] = theirs
        grad_z = torch.randn_like(plain(x))
        work = {
            name: _make_layer_work(torch.compile(layer) if compiled else layer, x, grad_z)
            for name, layer in layers.items()
        }
        return Contenders(work, _make_extra_work(plain, x), x.nbytes)


class NetworkContest(_Contest):
    """A whole training step with SGD: forward, backward, update."""

    def set_up(self, device: torch.device, dtype: torch.dtype, compiled: bool) -> "Contenders":
        """Return the work of each contender on one and the same batch."""
        plain, images = self._draw(device, dtype)
        (name,) = find_first_layers(plain)
        models = {"plain": plain, "trainact": copy.deepcopy(plain)}
        TrAct(models["trainact"].get_submodule(name))
        theirs = _wrap_with_torch_tract(plain.get_submodule(name), dtype)
        if theirs is not None:
            models["torch_tract"] = copy.deepcopy(plain)
            models["torch_tract"].set_submodule(name, theirs)
        work = {
            key: _make_step_work(model, torch.compile(model) if compiled else model, images)
            for key, model in models.items()
        }
        stem = plain.get_submodule(name)
        x = _capture_input(plain, stem, images)
        return Contenders(work, _make_extra_work(stem, x), x.nbytes)


@dataclass(frozen=True)
class Contenders:
    """The pieces of work to compare."""

    work: dict[str, Work]
    extra: Work
    """TrAct's own work in backward, alone."""
    input_bytes: int


def _make_resnet(name: str) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        return getattr(import_torchvision().models, name)(weights=None)

    return make


def _make_cifar_resnet() -> nn.Module:
    """Return the authors' ResNet-18 for CIFAR: a 3 x 3 stem of stride 1, the max-pool kept."""
    model = import_torchvision().models.resnet18(weights=None, num_classes=10)
    model.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    return model


def _make_vit_s() -> nn.Module:
    import_torchvision()
    timm: Any = importlib.import_module("timm")
    return timm.create_model("vit_small_patch16_224")


def _conv(outputs: int, kernel: int, stride: int, padding: int = 0) -> Callable[[], nn.Module]:
    return lambda: nn.Conv2d(3, outputs, kernel, stride, padding)


LAYERS = (
    LayerContest("CIFAR 3x3", _conv(64, 3, 1, 1), (128, 3, 32, 32)),
    LayerContest("CIFAR-ViT Linear", lambda: nn.Linear(48, 384), (128, 64, 48)),
    LayerContest("ImageNet 7x7 stride 2", _conv(64, 7, 2, 3), (32, 3, 224, 224)),
    LayerContest("VGG 3x3", _conv(64, 3, 1, 1), (16, 3, 224, 224)),
    LayerContest("ViT-S/16", _conv(384, 16, 16), (32, 3, 224, 224)),
    LayerContest("ViT-B/16", _conv(768, 16, 16), (32, 3, 224, 224)),
)
NETWORKS = (
    NetworkContest("CIFAR ResNet-18, batch 128", _make_cifar_resnet, (128, 3, 32, 32)),
    NetworkContest("CIFAR ViT, batch 128", CifarViT, (128, 3, 32, 32)),
    NetworkContest("ResNet-18 at 224, batch 32", _make_resnet("resnet18"), (32, 3, 224, 224)),
    NetworkContest("ResNet-50 at 224, batch 16", _make_resnet("resnet50"), (16, 3, 224, 224)),
    NetworkContest("ViT-S/16 at 224, batch 16", _make_vit_s, (16, 3, 224, 224)),
)
GROWTH = {
    "batch": [
        (batch, LayerContest(f"batch {batch}", _conv(64, 7, 2, 3), (batch, 3, 224, 224)))
        for batch in (2, 8, 32, 128)
    ],
    "pixels": [
        (size, LayerContest(f"pixels {size}", _conv(64, 7, 2, 3), (8, 3, size, size)))
        for size in (56, 112, 224, 448)
    ],
    "kernel": [
        (k, LayerContest(f"kernel {k}", _conv(64, k, 2, k // 2), (8, 3, 112, 112)))
        for k in (3, 5, 7, 11, 15)
    ],
}


def _make_layer_work(layer: Any, x: Tensor, grad_z: Tensor) -> Work:
    def run() -> None:
        layer.zero_grad()
        layer(x).backward(grad_z)

    return run


def _make_step_work(model: nn.Module, forward: Any, images: Tensor) -> Work:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    labels = torch.arange(len(images), device=images.device) % 10

    def run() -> None:
        optimizer.zero_grad()
        F.cross_entropy(forward(images).float(), labels).backward()
        optimizer.step()

    return run


def _make_extra_work(layer: Any, x: Tensor) -> Work:
    weight = layer.weight.detach().clone().requires_grad_()
    grad_weight = torch.randn_like(weight)
    patches = patches_of_layer(layer)

    def run() -> None:
        weight.grad = None
        same = apply_precondition(weight, x, patches, DEFAULT_LAM, Options(), Memory())
        same.backward(grad_weight)

    return run


def _capture_input(model: nn.Module, layer: nn.Module, images: Tensor) -> Tensor:
    seen: list[Tensor] = []
    handle = layer.register_forward_pre_hook(lambda _, args: seen.append(args[0].detach()))
    with torch.no_grad():
        model.eval()(images[:1])
        model.train()(images)
    handle.remove()
    return seen[-1]


def _wrap_with_torch_tract(layer: nn.Module, dtype: torch.dtype) -> nn.Module | None:
    """Return the layer wrapped by the authors' package, None where it is absent or cannot."""
    try:
        torch_tract: Any = importlib.import_module("torch_tract")
    except ModuleNotFoundError:
        return None
    if dtype != torch.float32:
        return None
    wrapped = torch_tract.TrAct(copy.deepcopy(layer), l=DEFAULT_LAM)
    device = next(layer.parameters()).device
    return wrapped.to(device)
