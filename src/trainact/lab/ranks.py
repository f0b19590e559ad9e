"""The ranks of a distributed run, as torchrun sets them in the environment."""

import os
import sys

__all__ = ["count_ranks", "is_first_rank", "leave_ranks"]


def count_ranks() -> int:
    """Return how many processes torchrun started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_first_rank() -> bool:
    """Return whether this process prints and writes files: the only one, or rank 0."""
    return count_ranks() == 1 or os.environ.get("RANK", "0") == "0"


def leave_ranks() -> None:
    """Leave the group of ranks and end this process with code 0, if there is a group.

    Call this last. It skips Python's own clean-up, in which the group's threads sometimes abort the
    process.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
