"""torchvision can be imported without its compiled operators, and nothing else is changed."""

import subprocess
import sys

import pytest

from trainact.lab import torchvision_import


def run(code: str) -> str:
    return subprocess.check_output([sys.executable, "-c", code], text=True)


def test_the_operators_are_defined_only_while_torchvision_is_imported():
    code = (
        "import sys, torch\n"
        "from trainact.lab.torchvision_import import import_torchvision\n"
        "torchvision = import_torchvision()\n"
        "assert import_torchvision() is torchvision is sys.modules['torchvision']\n"
        "from torchvision.extension import _has_ops\n"
        "assert torchvision.extension is sys.modules['torchvision.extension']\n"
        "import timm, torchvision.transforms.v2, torchvision.models.detection\n"
        "print(_has_ops() == hasattr(torch.ops.torchvision, 'nms'))\n"
    )
    assert run(code) == "True\n"


def test_another_error_of_the_import_is_raised(monkeypatch):
    class Broken:
        @staticmethod
        def find_spec(name, *others):
            if name == "torchvision":
                raise RuntimeError("no room on the disk")

    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Broken, *sys.meta_path])
    with pytest.raises(RuntimeError, match="no room on the disk"):
        torchvision_import.import_torchvision()
