"""The package as its users meet it: a wheel, a README that runs, imports that go one way."""

import ast
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
import torch

import trainact

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "trainact"
ORDER = [
    "errors",
    "torch_internals",
    "options",
    "device_costs",
    "rows",
    "operators",
    "overlapping_patches",
    "outer_products",
    "cholesky",
    "synchronisation",
    "second_moment",
    "preconditioner",
    "gradient",
    "functional",
    "layers",
    "wrapped_layers",
    "state",
    "example_inputs",
    "first_layer",
    "layer_checks",
    "wrap",
    "sharding",
    "accumulation",
    "random_states",
    "image_batches",
    "input_statistics",
    "filters",
    "whitening",
    "reference",
    "diagnosis",
]

LAB = SOURCE / "lab"
LAB_ORDER = [
    "files",
    "text",
    "schema",
    "ranks",
    "randomness",
    "environment",
    "metric",
    "statistics",
    "torchvision_import",
    "recipes",
    "records",
    "data",
    "augment",
    "models",
    "training",
    "running",
    "analysis",
    "paper",
    "cost",
    "report",
    "commands",
]
"""The lab's modules and packages; each imports only those above it."""


@pytest.fixture(scope="module")
def distributions(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT]
    subprocess.run(command, check=True, capture_output=True)
    return folder


def test_the_wheel_imports_in_an_empty_environment(distributions, tmp_path):
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    (wheel,) = distributions.glob("*.whl")
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel], check=True
    )
    site = subprocess.check_output(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True
    )
    torch_home = Path(torch.__file__).parent.parent  # torch is at hand already: it is kept
    (Path(site.strip()) / "torch_here.pth").write_text(f"{torch_home}\n")
    code = (
        "import torch, trainact; conv = trainact.TrAct(torch.nn.Conv2d(3, 4, 3)); "
        "conv(torch.rand(2, 3, 8, 8)).sum().backward(); print(trainact.__file__)"
    )
    shown = subprocess.check_output([python, "-I", "-c", code], text=True, cwd=tmp_path)
    assert str(tmp_path) in shown


def test_the_core_needs_torch_alone_and_takes_the_one_that_is_there(distributions):
    (wheel,) = distributions.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (n for n in archive.namelist() if n.endswith("METADATA"))
        lines = archive.read(metadata).decode().splitlines()
        assert "trainact/py.typed" in archive.namelist()
    needed = [line for line in lines if line.startswith("Requires-Dist") and "extra ==" not in line]
    assert len(needed) == 1
    assert re.fullmatch(r"Requires-Dist: torch>=[\d.]+", needed[0])
    extras = {line.removeprefix("Provides-Extra: ") for line in lines if "Provides-Extra" in line}
    assert {"lab", "bench", "dev"} <= extras


def test_the_source_distribution_is_whole(distributions):
    (sdist,) = distributions.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {"LICENSE", "README.md", "CITATION.cff", "src/trainact/gradient.py"} <= names


def test_importing_the_method_imports_nothing_but_torch():
    code = (
        "import torch, sys; before = set(sys.modules); import trainact; "
        "new = {name.split('.')[0] for name in set(sys.modules) - before}; "
        "print(new - set(sys.stdlib_module_names)); "
        "assert not torch.cuda.is_initialized()"
    )
    shown = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert set(ast.literal_eval(shown)) <= {"trainact", "torch"}


@pytest.mark.parametrize("name", ORDER)
def test_imports_go_one_way(name):
    imported = list_imports(SOURCE / f"{name}.py", "trainact")
    assert imported <= set(ORDER[: ORDER.index(name)])


@pytest.mark.parametrize("name", LAB_ORDER)
def test_imports_of_the_lab_go_one_way(name):
    package = LAB / name
    above = set(LAB_ORDER[: LAB_ORDER.index(name) + 1])
    for file in package.rglob("*.py") if package.is_dir() else [package.with_suffix(".py")]:
        tops = {module.split(".")[0] for module in list_imports(file, "trainact.lab")}
        assert tops <= above, file


def list_imports(file: Path, package: str) -> set[str]:
    """Return the modules of ``package`` that a file imports, also inside functions."""
    prefix = f"{package}."
    imported = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            imported |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == package:
            imported |= {prefix + name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module or "")
    return {name.removeprefix(prefix) for name in imported if name.startswith(prefix)}


def test_every_module_has_its_place_in_the_order():
    assert {path.stem for path in SOURCE.glob("*.py")} - {"__init__"} == set(ORDER)
    found = {path.stem for path in LAB.iterdir() if not path.name.startswith("__")}
    assert found == set(LAB_ORDER)


def test_the_map_names_every_part_of_the_lab():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    parts = [path for path in LAB.iterdir() if not path.name.startswith("__")]
    for part in parts:
        assert (f"  {part.name}/" if part.is_dir() else part.stem) in text, part


def test_every_public_name_exists_and_is_documented():
    for name in trainact.__all__:
        assert getattr(trainact, name).__doc__, name


@pytest.mark.parametrize("page", ["README.md", "docs/method.md"])
def test_the_snippets_of_a_page_run_in_order(page, capsys):
    snippets = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.M | re.S)
    assert snippets
    namespace: dict[str, object] = {}
    for snippet in snippets:
        exec(compile(snippet, page, "exec"), namespace)


def test_every_row_of_what_tract_works_with_names_a_test_that_exists():
    rows = [
        line
        for line in (ROOT / "docs" / "works-with.md").read_text().splitlines()
        if line.startswith("| ") and not line.startswith("| what |")
    ]
    assert rows
    for row in rows:
        files = re.findall(r"`(?:tests/)?(test_\w+\.py)`", row.rsplit("|", 2)[1])
        assert files, row
        for file in files:
            assert list((ROOT / "tests").rglob(file)), row


def test_the_readme_says_what_matters_first():
    first = "\n".join((ROOT / "README.md").read_text().splitlines()[:30])
    for phrase in (
        "pip install trainact",
        "TrAct(model[0], lam=0.1)",
        "apply_tract(model)",
        "remove_tract(model)",
        "plain:  G = grad_zᵀ x",
        "TrAct:  G (xᵀx / b + λ I)⁻¹",
        "Not for",
        "make demo",
        "make test",
    ):
        assert phrase in first, phrase
