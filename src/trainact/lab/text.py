"""Numbers and names as a reader writes them."""

__all__ = ["count_epochs"]


def count_epochs(number: int) -> str:
    """Return ``1 epoch`` or ``2 epochs``."""
    return f"{number} epoch{'s' * (number != 1)}"
