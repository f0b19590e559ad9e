"""The ranks of a distributed run, as torchrun sets them in the environment."""

import os

__all__ = ["count_ranks", "is_first_rank"]


def count_ranks() -> int:
    """Return how many processes torchrun started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_first_rank() -> bool:
    """Return whether this process prints and writes files: the only one, or rank 0."""
    return count_ranks() == 1 or os.environ.get("RANK", "0") == "0"
