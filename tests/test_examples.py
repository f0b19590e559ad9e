"""The examples train for a few steps, and the notebook runs from the first cell to the last."""

import importlib.util
import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from slow_cases import mark_slow

EXAMPLES = Path(__file__).parents[1] / "examples"
NEEDS = {
    "plain_loop.py": (),
    "timm_training.py": ("timm", "torchvision"),
    "lightning_training.py": ("lightning",),
    "huggingface_training.py": ("transformers", "accelerate"),
    "jax_nnx.py": ("jaxlib", "flax", "optax", "skimage"),
}
OPTIONS = {
    "timm_training.py": ["--epochs", "3", "--steps", "6", "--pixels", "32"],
    "jax_nnx.py": ["--steps", "20"],
}
NOTEBOOK = EXAMPLES / "own_images.ipynb"
SHORT = 'MODEL = "timm:test_resnet"\nEPOCHS, SEEDS = "2", "0-1"\n'
"""Settings for the test, after those of the notebook."""


def test_every_example_is_tested_and_on_the_page():
    scripts = {path.name for path in EXAMPLES.glob("*.py")}
    assert scripts == {*NEEDS, "fsdp2_training.py"}
    page = (EXAMPLES.parent / "docs" / "examples.md").read_text()
    linked = re.findall(r"^\[.*\]\(\.\./examples/(.*)\)$", page, re.M)
    assert set(linked) == {*scripts, NOTEBOOK.name}


@pytest.mark.filterwarnings("ignore:.*does not have many workers.*")
@pytest.mark.filterwarnings("ignore:.*number of training batches.*smaller than the logging")
@pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning:lightning.*")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", mark_slow(NEEDS, 1))
def test_an_example_trains(name, capsys):
    for package in NEEDS[name]:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs {package}")
    if NEEDS[name]:
        from trainact.lab.torchvision_import import import_torchvision

        import_torchvision()  # before the example does
    main = runpy.run_path(str(EXAMPLES / name))["main"]
    losses = main(OPTIONS.get(name, ["--steps", "8"]))
    assert losses[-1] < losses[0]
    assert capsys.readouterr().out


@pytest.mark.slow
def test_the_fsdp2_example_trains_on_two_ranks():
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        *(EXAMPLES / "fsdp2_training.py", "--steps", "8"),
    ]
    shown = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout
    first, last = map(float, re.search(r"loss ([\d.]+) -> ([\d.]+)", shown).groups())
    assert last < first
    assert "0.weight, 0.bias" in shown


def test_the_notebook_is_committed_without_output():
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] or cell["execution_count"] for cell in code)
    tags = [tag for cell in code for tag in cell["metadata"].get("tags", [])]
    assert tags == ["install", "parameters"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_notebook_leads_to_a_verdict(tmp_path):
    nbformat = pytest.importorskip("nbformat", reason="notebooks need nbformat")
    nbclient = pytest.importorskip("nbclient", reason="notebooks need nbclient")
    pytest.importorskip("ipykernel", reason="notebooks need a kernel")
    pytest.importorskip("skimage", reason="the photographs are in scikit-image")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    install, settings = (
        next(cell for cell in notebook.cells if tag in cell.metadata.get("tags", []))
        for tag in ("install", "parameters")
    )
    notebook.cells.remove(install)
    settings.source += f"\n{SHORT}"
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(
        notebook, timeout=900, kernel_name="python3", resources=resources
    ).execute()
    shown = "".join(
        output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", [])
    )
    assert re.search(r"2 epochs: TrAct λ=0.1.* points", shown)
    assert (tmp_path / "my-comparison" / "comparison.html").exists()
