"""What is imported with what."""

import doctest
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jaxlib", reason="trainact.jax needs jax")


def run(code: str) -> str:
    return subprocess.check_output([sys.executable, "-c", code], text=True)


def test_trainact_does_not_import_jax():
    assert run("import sys, trainact; trainact.TrAct; print('jax' in sys.modules)") == "False\n"


@pytest.mark.parametrize(
    ("module", "needs"),
    [
        ("trainact.jax", None),
        ("trainact.jax.nnx", "flax"),
        ("trainact.jax.linen", "flax"),
        ("trainact.jax.equinox", "equinox"),
    ],
)
def test_no_torch_is_imported(module, needs):
    if needs:
        pytest.importorskip(needs, reason=f"needs {needs}")
    code = (
        f"import sys, {module}; names = ('torch', 'flax', 'equinox'); "
        "print([name for name in names if name in sys.modules])"
    )
    assert run(code) == f"{[needs] if needs else []}\n"


def list_modules() -> list[str]:
    package = importlib.import_module("trainact.jax")
    return [f"trainact.jax.{module.name}" for module in pkgutil.iter_modules(package.__path__)]


@pytest.mark.parametrize("name", list_modules())
def test_doctests(name):
    for package in ("flax", "equinox"):
        pytest.importorskip(package, reason=f"needs {package}")
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.slow
def test_the_snippets_of_the_page_run_in_order():
    for package in ("flax", "equinox"):
        pytest.importorskip(package, reason=f"needs {package}")
    page = Path(__file__).parents[2] / "docs" / "jax.md"
    snippets = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)
    assert len(snippets) == 4
    namespace: dict[str, object] = {"__name__": "page"}
    for snippet in snippets:
        exec(compile(snippet, str(page), "exec"), namespace)
    assert namespace["z"].shape == (32, 16, 32, 32)
    assert namespace["gradient"].shape == (3, 3, 3, 16)
    assert set(namespace["variables"]["params"]) == {"Conv_0", "Dense_0"}
