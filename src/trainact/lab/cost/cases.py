"""The cases of ``trainact bench``: the paper's first layers, its networks, and growing sizes."""

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
from trainact.lab.models.networks import build_network
from trainact.lab.models.networks.vit import CifarViT
from trainact.lab.torchvision_import import import_torchvision
from trainact.options import DEFAULT_LAM, Options
from trainact.rows import patches_of_layer

__all__ = [
    *("FAST_NETWORK", "GPU_NETWORKS", "GROWTH", "LAYERS", "NETWORKS"),
    *("Case", "CaseWork", "LayerCase", "NetworkCase", "choose_networks"),
]


@dataclass(frozen=True)
class CaseWork:
    """Functions to time, all on the same input."""

    variants: dict[str, Work]  # plain, trainact, and the authors' torch_tract if installed
    extra: Work  # TrAct's own work in the backward, alone
    input_bytes: int


@dataclass(frozen=True)
class Case:
    """A module and the shape of its input."""

    name: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    layout: torch.memory_format = torch.contiguous_format

    def set_up(self, device: torch.device, dtype: torch.dtype, compiled: bool) -> CaseWork:
        """Build the module and its input, and return what to time."""
        raise NotImplementedError

    def _make_plain(self, device: torch.device, dtype: torch.dtype) -> tuple[nn.Module, Tensor]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            plain, x = self.make(), torch.randn(self.shape)
        plain.to(memory_format=self.layout)  # type: ignore[call-overload]
        return plain.to(device, dtype), x.to(device, dtype, memory_format=self.layout)


class LayerCase(Case):
    """Forward and backward of a first layer; its input needs no gradient, as in training."""

    def set_up(self, device: torch.device, dtype: torch.dtype, compiled: bool) -> CaseWork:
        """Build the layer in each variant, and a gradient of its output."""
        plain, x = self._make_plain(device, dtype)
        layers = {"plain": plain, "trainact": TrAct(copy.deepcopy(plain))}
        theirs = _wrap_with_torch_tract(plain, dtype)
        if theirs is not None:
            layers["torch_tract"] = theirs
        grad_z = torch.randn_like(plain(x))
        variants = {
            name: _make_layer_work(torch.compile(layer) if compiled else layer, x, grad_z)
            for name, layer in layers.items()
        }
        return CaseWork(variants, _make_extra_work(plain, x), x.nbytes)


class NetworkCase(Case):
    """A whole training step with SGD: forward, backward, update."""

    def set_up(self, device: torch.device, dtype: torch.dtype, compiled: bool) -> CaseWork:
        """Build the network in each variant, with its optimizer."""
        plain, images = self._make_plain(device, dtype)
        (name,) = find_first_layers(plain)
        models = {"plain": plain, "trainact": copy.deepcopy(plain)}
        TrAct(models["trainact"].get_submodule(name))
        stem = plain.get_submodule(name)
        theirs = _wrap_with_torch_tract(stem, dtype)
        if theirs is not None:
            models["torch_tract"] = copy.deepcopy(plain)
            models["torch_tract"].set_submodule(name, theirs)
        variants = {
            key: _make_step_work(model, torch.compile(model) if compiled else model, images)
            for key, model in models.items()
        }
        x = _capture_input(plain, stem, images)
        return CaseWork(variants, _make_extra_work(stem, x), x.nbytes)


def _make_resnet(name: str) -> Callable[[], nn.Module]:
    return lambda: getattr(import_torchvision().models, name)(weights=None)


def _make_cifar_resnet() -> nn.Module:
    """Return the authors' ResNet-18 for CIFAR: a 3 x 3 stem with stride 1, and the max-pool."""
    model = import_torchvision().models.resnet18(weights=None, num_classes=10)
    model.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    return model


def _make_vit_s() -> nn.Module:
    import_torchvision()
    timm: Any = importlib.import_module("timm")
    return timm.create_model("vit_small_patch16_224")


def _make_fast_network() -> nn.Module:
    return build_network("speed", 10, image_size=32, widths=(32, 64, 64))


def _make_deit(size: str, pixels: int) -> Callable[[], nn.Module]:
    return lambda: build_network(f"deit3-{size}", 1000, image_size=pixels)


def _conv(outputs: int, kernel: int, stride: int, padding: int = 0) -> Callable[[], nn.Module]:
    return lambda: nn.Conv2d(3, outputs, kernel, stride, padding)


LAYERS = (
    LayerCase("CIFAR 3x3", _conv(64, 3, 1, 1), (128, 3, 32, 32)),
    LayerCase("CIFAR-ViT Linear", lambda: nn.Linear(48, 384), (128, 64, 48)),
    LayerCase("ImageNet 7x7 stride 2", _conv(64, 7, 2, 3), (32, 3, 224, 224)),
    LayerCase("VGG 3x3", _conv(64, 3, 1, 1), (16, 3, 224, 224)),
    LayerCase("ViT-S/16", _conv(384, 16, 16), (32, 3, 224, 224)),
    LayerCase("ViT-B/16", _conv(768, 16, 16), (32, 3, 224, 224)),
)
FAST_NETWORK = "CIFAR fast recipe, batch 1024"
"""The network of the recipe cifar10-speed."""
NETWORKS = (
    NetworkCase("CIFAR ResNet-18, batch 128", _make_cifar_resnet, (128, 3, 32, 32)),
    NetworkCase("CIFAR ViT, batch 32", CifarViT, (32, 3, 32, 32)),
    NetworkCase("ResNet-18 at 224, batch 8", _make_resnet("resnet18"), (8, 3, 224, 224)),
    NetworkCase("ResNet-50 at 224, batch 8", _make_resnet("resnet50"), (8, 3, 224, 224)),
    NetworkCase("ViT-S/16 at 224, batch 4", _make_vit_s, (4, 3, 224, 224)),
    NetworkCase(FAST_NETWORK, _make_fast_network, (1024, 3, 32, 32), torch.channels_last),
)
GPU_NETWORKS = (
    NetworkCase("DeiT-III ViT-S at 224, batch 512", _make_deit("small", 224), (512, 3, 224, 224)),
    NetworkCase("DeiT-III ViT-B at 192, batch 256", _make_deit("base", 192), (256, 3, 192, 192)),
)
"""The share of one of the paper's GPUs, too large for a CPU."""
GROWTH = {
    "batch": {
        batch: LayerCase(f"batch {batch}", _conv(64, 7, 2, 3), (batch, 3, 224, 224))
        for batch in (2, 8, 32, 128)
    },
    "pixels": {
        size: LayerCase(f"pixels {size}", _conv(64, 7, 2, 3), (8, 3, size, size))
        for size in (56, 112, 224, 448)
    },
    "kernel": {
        k: LayerCase(f"kernel {k}", _conv(64, k, 2, k // 2), (8, 3, 112, 112))
        for k in (3, 5, 7, 11, 15)
    },
}
"""What grows, its values, and the case of each."""


def choose_networks(device: torch.device) -> tuple[NetworkCase, ...]:
    """Return the networks whose steps are measured on a device.

    >>> len(choose_networks(torch.device("cuda"))) - len(choose_networks(torch.device("cpu")))
    2
    """
    return NETWORKS if device.type == "cpu" else NETWORKS + GPU_NETWORKS


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
    """Return the input of ``layer`` in a forward of ``model``."""
    seen: list[Tensor] = []
    handle = layer.register_forward_pre_hook(lambda _, args: seen.append(args[0].detach()))
    with torch.no_grad():
        model(images)
    handle.remove()
    return seen[0]


def _wrap_with_torch_tract(layer: nn.Module, dtype: torch.dtype) -> nn.Module | None:
    """Return a copy wrapped by the authors' package; None if it is missing or not float32."""
    try:
        torch_tract: Any = importlib.import_module("torch_tract")
    except ModuleNotFoundError:
        return None
    if dtype != torch.float32:
        return None
    wrapped = torch_tract.TrAct(copy.deepcopy(layer), l=DEFAULT_LAM)
    return wrapped.to(next(layer.parameters()).device)
