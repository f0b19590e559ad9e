"""TrAct in a plain PyTorch loop: one line before training.

python examples/plain_loop.py --steps 100
"""

import argparse
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainact import apply_tract

CLASSES = 10


def make_batches(steps: int, size: int = 32) -> list[tuple[Tensor, Tensor]]:
    """Return coloured noise, one colour for each class; use your own DataLoader here."""
    colours = torch.randn(CLASSES, 3, 1, 1)
    labels = torch.randint(CLASSES, (steps, size))
    return [(torch.randn(size, 3, 32, 32) + colours[batch], batch) for batch in labels]


def main(argv: Sequence[str] | None = None) -> list[float]:
    """Train, and return the losses."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    steps = parser.parse_args(argv).steps

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, CLASSES),
    )
    print("TrAct trains", apply_tract(model))  # the only line that is new

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    losses = []
    for images, labels in make_batches(steps):
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    return losses


if __name__ == "__main__":
    main()
