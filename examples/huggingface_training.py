"""TrAct with Hugging Face's Trainer, on a small vision transformer.

pip install trainact transformers accelerate
python examples/huggingface_training.py --steps 50
"""

import argparse
import tempfile
from collections.abc import Sequence

import torch
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

from trainact import apply_tract
from trainact.integrations.huggingface import TrActAccumulation

CLASSES, PIXELS = 10, 32


def make_data(images: int) -> list[dict[str, torch.Tensor]]:
    """Return coloured noise, one colour for each class; use your own data set here."""
    colours = torch.randn(CLASSES, 3, 1, 1)
    labels = torch.randint(CLASSES, (images,))
    return [
        {"pixel_values": torch.randn(3, PIXELS, PIXELS) + colours[label], "labels": label}
        for label in labels
    ]


def main(argv: Sequence[str] | None = None) -> list[float]:
    """Train, and return the logged losses."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=50)
    steps = parser.parse_args(argv).steps

    torch.manual_seed(0)
    config = ViTConfig(
        image_size=PIXELS,
        patch_size=4,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        num_labels=CLASSES,
    )
    model = ViTForImageClassification(config)  # or from_pretrained
    print("TrAct trains", apply_tract(model))  # before Trainer

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=steps,
            per_device_train_batch_size=16,
            gradient_accumulation_steps=2,
            learning_rate=1e-3,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            use_cpu=True,  # remove this line to train on a GPU
        )
        trainer = Trainer(
            model,
            arguments,
            train_dataset=make_data(512),
            callbacks=[TrActAccumulation()],  # one second moment for all micro-batches of a step
        )
        trainer.train()
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    return losses


if __name__ == "__main__":
    main()
