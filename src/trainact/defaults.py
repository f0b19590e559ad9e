"""Defaults that the command line needs before torch is imported."""

__all__ = ["DEFAULT_LAM"]

DEFAULT_LAM = 0.1
"""λ of the paper's experiments; the paper suggests 0.05 for short and 0.2 for long training."""
