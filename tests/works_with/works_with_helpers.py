"""What several of these tests need."""

import importlib.util

import pytest

from trainact.lab.torchvision_import import import_torchvision


def import_torchvision_or_skip() -> None:
    """Make ``import timm`` safe: torchvision comes first, and in its own way."""
    for package in ("timm", "torchvision"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs {package}")
    import_torchvision()
