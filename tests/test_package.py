"""The package as its users meet it: a wheel, a README that runs, imports that go one way."""

import ast
import contextlib
import importlib
import itertools
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
import torch

import trainact
from trainact import TorchVersionError
from trainact.torch_version import OLDEST_TORCH, check_torch_version

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "trainact"
ORDER = [
    "errors",
    "torch_version",
    "lazy_names",
    "defaults",
    "option_checks",
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
    "random_states",
    "evaluation",
    "sharding",
    "example_inputs",
    "first_layer",
    "layer_checks",
    "wrap",
    "accumulation",
    "image_batches",
    "input_statistics",
    "whitening_settings",
    "filters",
    "whitening",
    "reference",
    "diagnosis",
]

JAX = SOURCE / "jax"
JAX_ORDER = [
    "patches",
    "overlapping_patches",
    "outer_products",
    "moments",
    "cholesky",
    "gradient",
    "filters",
    "whitening",
    "flax_layers",
    "linen",
    "nnx_layers",
    "nnx",
    "equinox",
]
"""The modules of ``trainact.jax``; of the others they import only those that need no torch."""
WITHOUT_TORCH = {"defaults", "errors", "option_checks", "whitening_settings"}

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
    "comparisons",
    "commands",
]
"""The lab's modules and packages; each imports only those above it."""


@pytest.fixture(scope="module")
def distributions(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT]
    subprocess.run(command, check=True, capture_output=True)
    return folder


@pytest.mark.slow
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
    command = [python.parent / "trainact", "--help"]
    assert "commands:" in subprocess.check_output(command, text=True, cwd=tmp_path)


def test_the_wheel_has_every_file_of_the_package(distributions):
    (wheel,) = distributions.glob("*.whl")
    files = (
        path for path in SOURCE.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    )
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("trainact/")}
    assert packed == {str(path.relative_to(SOURCE.parent)) for path in files}


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
    assert extras == {"all", "bench", "jax", "lab", "ray"}


def test_the_oldest_torch_is_the_one_of_the_metadata():
    needed = read_project()["project"]["dependencies"]
    assert needed == [f"torch>={'.'.join(map(str, OLDEST_TORCH))}"]


def read_project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_every_dependency_has_a_lower_bound():
    project = read_project()
    lists = [project["project"]["dependencies"], *project["dependency-groups"].values()]
    lists += project["project"]["optional-dependencies"].values()
    for requirement in itertools.chain(*lists):
        assert ">=" in requirement or requirement.startswith("trainact["), requirement


def test_every_package_that_the_lab_imports_is_declared():
    extras = read_project()["project"]["optional-dependencies"]
    declared = {re.split(r"[>\[]", text)[0].lower() for text in itertools.chain(*extras.values())}
    names = {"PIL": "pillow", "skimage": "scikit-image", "tomli_w": "tomli-w"}
    known = {*sys.stdlib_module_names, "trainact", "torch"}
    for file in SOURCE.rglob("*.py"):
        for module in list_top_modules(file) - known:
            assert names.get(module, module).lower() in declared, f"{module} of {file}"


def list_top_modules(file: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(file.read_text())))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    others = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    return {name.split(".")[0] for name in plain | others if name}


def test_the_citation_and_the_changelog_name_the_version():
    assert f"version: {trainact.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {trainact.__version__} - " in (ROOT / "CHANGELOG.md").read_text()


def test_the_links_of_the_readme_are_absolute_and_lead_to_files():
    text, home = (ROOT / "README.md").read_text(), read_project()["project"]["urls"]["Homepage"]
    assert not re.search(r"\]\((?!https?://|#)", re.sub(r"```.*?```", "", text, flags=re.S))
    places = re.findall(rf"{home}/blob/main/([\w./-]+)", text)
    assert len(places) > 5
    for place in places:
        assert (ROOT / place).exists(), place
    for name in re.findall(r"\[(docs/[\w.-]+)\]", text):
        assert f"[{name}]: {home}/blob/main/{name}\n" in text


def test_the_source_distribution_is_whole(distributions):
    (sdist,) = distributions.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {"LICENSE", "README.md", "CITATION.cff", "src/trainact/gradient.py"} <= names
    # what its tests and its site need
    assert {"tools/site.py", "results/bench/bench.json", "CONTRIBUTING.md", "Makefile"} <= names


def test_importing_the_method_imports_nothing_but_torch():
    code = (
        "import torch, sys; before = set(sys.modules); import trainact; "
        "new = {name.split('.')[0] for name in set(sys.modules) - before}; "
        "print(new - set(sys.stdlib_module_names)); "
        "assert not torch.cuda.is_initialized()"
    )
    shown = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert set(ast.literal_eval(shown)) <= {"trainact", "torch"}


def run_python(code: str, *folders: Path) -> str:
    """Return what a fresh process prints; ``folders`` come first in its path."""
    path = os.pathsep.join(map(str, [*folders, *filter(None, sys.path)]))
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize("name", ["trainact", "trainact.lab.commands.cli", "trainact.layers"])
def test_an_old_torch_gives_one_message(tmp_path, name):
    package = tmp_path / "torch-2.8.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.8.0\n")
    code = f"try: import {name}\nexcept ImportError as error: print(type(error).__name__, error)"
    assert run_python(code, tmp_path) == (
        "TorchVersionError trainact needs torch 2.9 or newer, but torch 2.8.0 is installed: run "
        "pip install --upgrade 'torch>=2.9'. On older versions torch.compile would train without "
        "TrAct.\n"
    )


@pytest.mark.parametrize(
    ("version", "is_old"),
    [
        ("2.8.1+cu128", True),
        ("2.10.0", False),
        ("2.9.0a0+git", False),
        ("1.13", True),
        ("?", False),
    ],
)
def test_the_version_of_a_torch_that_is_imported_counts(version, is_old, monkeypatch):
    monkeypatch.setattr(torch, "__version__", version)
    expected = pytest.raises(TorchVersionError) if is_old else contextlib.nullcontext()
    with expected:
        check_torch_version()


def test_names_are_imported_on_first_use_and_all_are_listed():
    code = (
        "import sys, trainact; assert 'torch' not in sys.modules; "
        "assert set(trainact.__all__) <= set(dir(trainact)); "
        "from trainact import *; assert TrAct is trainact.wrap.TrAct; "
        "assert trainact.reference.__name__ == 'trainact.reference'; print('TrAct' in vars(trainact))"
    )
    assert run_python(code) == "True\n"
    with pytest.raises(AttributeError, match="module 'trainact' has no attribute 'TrAckt'"):
        trainact.TrAckt  # noqa: B018


def test_type_checkers_see_the_names_where_they_are():
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    (block,) = (n for n in tree.body if isinstance(n, ast.If) and "not" not in ast.unparse(n.test))
    homes = {alias.name: node.module for node in block.body for alias in node.names}
    assert set(homes) == set(trainact.__all__)
    for name, module in homes.items():
        assert getattr(trainact, name) is getattr(importlib.import_module(module), name)


@pytest.mark.slow
def test_a_name_may_be_used_first_inside_a_compiled_function():
    code = (
        "import torch, trainact\n"
        "def forward(w, x): return x @ trainact.precondition_grad(w, x).T\n"
        "w = torch.randn(3, 4, requires_grad=True)\n"
        "torch.compile(forward, backend='eager', fullgraph=True)(w, torch.randn(5, 4)).sum().backward()\n"
        "print(w.grad.shape)"
    )
    assert "torch.Size([3, 4])" in run_python(code).splitlines()


@pytest.mark.parametrize("name", ORDER)
def test_imports_go_one_way(name):
    imported = list_imports(SOURCE / f"{name}.py", "trainact")
    assert imported <= set(ORDER[: ORDER.index(name)])


@pytest.mark.parametrize("name", JAX_ORDER)
def test_imports_for_jax_go_one_way_and_avoid_torch(name):
    file = JAX / f"{name}.py"
    above = {f"jax.{module}" for module in JAX_ORDER[: JAX_ORDER.index(name)]}
    assert list_imports(file, "trainact") <= above | WITHOUT_TORCH
    assert "torch" not in list_top_modules(file)


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
    assert {path.stem for path in JAX.glob("*.py")} - {"__init__"} == set(JAX_ORDER)
    found = {path.stem for path in LAB.iterdir() if not path.name.startswith("__")}
    assert found == set(LAB_ORDER)


def test_the_map_names_every_module_of_the_core():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    for module in ORDER:
        assert re.search(rf"\b{module}\b", text), module


def test_the_map_names_every_part_of_the_lab():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    parts = [path for path in LAB.iterdir() if not path.name.startswith("__")]
    for part in parts:
        assert (f"  {part.name}/" if part.is_dir() else part.stem) in text, part


def test_every_public_name_exists_and_is_documented():
    for name in trainact.__all__:
        assert getattr(trainact, name).__doc__, name


@pytest.mark.parametrize(
    "page", ["README.md", "docs/how-it-works.md", "docs/index.md", "docs/method.md"]
)
def test_the_snippets_of_a_page_run_in_order(page, capsys):
    snippets = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.M | re.S)
    assert snippets
    namespace: dict[str, object] = {}
    for snippet in snippets:
        exec(compile(snippet, page, "exec"), namespace)


def test_every_row_of_what_tract_works_with_names_a_test_that_exists():
    text = (ROOT / "docs" / "works-with.md").read_text()
    written = re.sub(r"<!-- versions -->.*<!-- /versions -->", "", text, flags=re.S)
    rows = [
        line
        for line in written.splitlines()
        if line.startswith("| ") and not line.startswith("| what |")
    ]
    assert rows
    for row in rows:
        files = re.findall(r"`([\w/]*test_\w+\.py)`", row.rsplit("|", 2)[1])
        assert files, row
        for file in files:
            assert (ROOT / ("" if "/" in file else "tests/works_with") / file).exists(), row


def test_the_readme_says_what_matters_first():
    first = "\n".join((ROOT / "README.md").read_text().splitlines()[:60])
    for phrase in (
        "pip install trainact",
        "git clone ",
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
