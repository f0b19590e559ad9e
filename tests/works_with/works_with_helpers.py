"""Helpers for several of these tests."""

import importlib.util

import pytest

from trainact.lab.torchvision_import import import_torchvision


def import_torchvision_or_skip() -> None:
    """Import torchvision with the lab's function before timm does, or skip the test."""
    for package in ("timm", "torchvision"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs {package}")
    import_torchvision()
