"""TrAct with Lightning, also with ``accumulate_grad_batches``.

pip install trainact lightning
python examples/lightning_training.py --steps 50
"""

import argparse
from collections.abc import Sequence

import lightning
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from trainact import apply_tract
from trainact.integrations.lightning import TrActAccumulation

CLASSES = 10


class Classifier(lightning.LightningModule):
    """A small network; only the line with ``apply_tract`` is new."""

    def __init__(self, lam: float = 0.1) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, stride=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(64, CLASSES),
        )
        apply_tract(self.network, lam)
        self.losses: list[float] = []

    def training_step(self, batch: tuple[Tensor, Tensor], number: int) -> Tensor:
        """Return the loss of one micro-batch."""
        images, labels = batch
        loss = F.cross_entropy(self.network(images), labels)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer of all parameters."""
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def make_data(images: int) -> TensorDataset:
    """Return coloured noise, one colour for each class; use your own data set here."""
    colours = torch.randn(CLASSES, 3, 1, 1)
    labels = torch.randint(CLASSES, (images,))
    return TensorDataset(torch.randn(images, 3, 32, 32) + colours[labels], labels)


def main(argv: Sequence[str] | None = None) -> list[float]:
    """Train, and return the losses of the micro-batches."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=50)
    steps = parser.parse_args(argv).steps

    lightning.seed_everything(0)
    module = Classifier()
    trainer = lightning.Trainer(
        max_steps=steps,
        accumulate_grad_batches=2,
        gradient_clip_val=5.0,
        callbacks=[TrActAccumulation()],  # one second moment for all micro-batches of a step
        accelerator="cpu",  # remove this line to train on a GPU
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(make_data(512), batch_size=16, shuffle=True))
    print(f"loss {module.losses[0]:.3f} -> {module.losses[-1]:.3f}")
    return module.losses


if __name__ == "__main__":
    main()
