"""Train a small network twice from the same seed, plain and with TrAct, and print both losses.

The images are drawn from a power law like that of photographs, so that their second moment has
eigenvalues of very different sizes; the labels come from a random filter.
"""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainact import apply_tract

STEPS, BATCH, CLASSES = 120, 128, 8


def draw_images(count: int, generator: torch.Generator) -> Tensor:
    frequency = torch.fft.fftfreq(32)
    radius = (frequency[:, None] ** 2 + frequency[None, :] ** 2).sqrt().clamp(min=1 / 32)
    noise = torch.randn(count, 3, 32, 32, generator=generator)
    images = torch.fft.ifft2(torch.fft.fft2(noise) / radius**1.5).real
    return (images - images.mean()) / images.std()


def label_images(images: Tensor, generator: torch.Generator) -> Tensor:
    edges = torch.randn(CLASSES, 3, 3, 3, generator=generator)
    edges = edges - edges.mean((1, 2, 3), keepdim=True)
    return F.conv2d(images, edges).square().mean((2, 3)).sqrt().softmax(1).argmax(1)


def train(model: nn.Module, images: Tensor, labels: Tensor) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    order = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(STEPS):
        batch = torch.randint(len(images), (BATCH,), generator=order)
        loss = F.cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    images = draw_images(2048, generator)
    labels = label_images(images, generator)
    torch.manual_seed(0)
    plain = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, CLASSES),
    )
    tract = copy.deepcopy(plain)
    names = apply_tract(tract)
    print(f"TrAct on layer {names[0]!r}: {tract.get_submodule(names[0])}")
    curves = {"plain": train(plain, images, labels), "TrAct": train(tract, images, labels)}
    print(f"{'step':>6}" + "".join(f"{name:>10}" for name in curves))
    for step in range(STEPS // 4 - 1, STEPS, STEPS // 4):
        means = (sum(c[step - 9 : step + 1]) / 10 for c in curves.values())
        print(f"{step + 1:>6}" + "".join(f"{mean:>10.4f}" for mean in means))


if __name__ == "__main__":
    main()
