"""torchvision can be imported without its compiled operators, and nothing else is changed."""

import importlib.metadata
import subprocess
import sys

import pytest
import torch

from trainact.lab import torchvision_import


def run(code: str) -> str:
    return subprocess.check_output([sys.executable, "-c", code], text=True)


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_torchvision_that_does_not_match_is_reported_once():
    code = (
        "from trainact.lab.torchvision_import import import_torchvision\n"
        "extension = [import_torchvision() for _ in range(2)][0].extension\n"
        "print(extension._has_ops())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    messages = done.stderr.splitlines()
    assert (done.stdout, len(messages)) in [("True\n", 0), ("False\n", 1)], done.stderr
    assert all("does not match torch" in message for message in messages)


def test_the_message_names_both_versions_and_comes_from_the_first_rank(caplog, monkeypatch):
    torchvision_import.report_mismatch.__wrapped__()
    [message] = caplog.messages
    assert message.startswith(f"torchvision {importlib.metadata.version('torchvision')} does not")
    assert f"match torch {torch.__version__}: its compiled operators are missing" in message
    monkeypatch.setattr(torchvision_import, "is_first_rank", lambda: False)
    torchvision_import.report_mismatch.__wrapped__()
    assert caplog.messages == [message]


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
