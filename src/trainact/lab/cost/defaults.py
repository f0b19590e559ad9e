"""Defaults that the command line needs before torch is imported."""

__all__ = ["BATCH", "SECTIONS"]

BATCH = 128
"""Images in the training step whose cost is estimated."""

SECTIONS = ("layer", "step", "growth")
"""Parts of ``trainact bench``."""
