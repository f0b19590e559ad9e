"""Run the tests with other versions: ``python -m tools.versions --torch 2.12.1 --python 3.12``.

uv makes an environment, the suites run there, one record is written to ``results/versions/``, and
the environment is removed. All other packages are the newest that fit; with ``--lowest`` every
declared package has its lower bound. ``--again RECORD`` runs only the tests that failed, with the
record's versions.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from trainact.errors import TrActError, TrActValueError
from trainact.lab.report.grid import Grid, render_markdown
from trainact.lab.schema import check_known
from trainact.lab.text import count

__all__ = ["FOLDER", "SUITES", "main", "read_counts", "read_records", "write_versions"]

ROOT = Path(__file__).parents[1]
FOLDER = "versions"  # below results/
SUITES = {
    "core": ("tests/test_*.py",),
    "works-with": ("tests/works_with",),
    "lab": ("tests/lab/augment", "tests/lab/data", "tests/lab/models"),
}
"""The suites and their files, of the lab those that use other packages most; no slow tests."""
DEFAULT_SUITES = ("core", "works-with")
SHOWN = ("torchvision", "timm", "transformers", "lightning", "accelerate", "numpy")
ENVIRONMENT = (
    "import json; from trainact.lab.environment import describe_environment; "
    "print(json.dumps(describe_environment()))"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Make the environment, run the suites and write the record; return 1 if a test failed."""
    parser = argparse.ArgumentParser("python -m tools.versions", description=__doc__)
    add = parser.add_argument
    add("--torch", default="", help="its version (default: the newest, or the lowest)")
    add("--python", default=sys.executable, help="version or path (default: the running one)")
    add("--lowest", action="store_true", help="the lower bounds of pyproject.toml")
    add(
        "--suites",
        default=",".join(DEFAULT_SUITES),
        help="of core, works-with, lab (default: the first two)",
    )
    add("--again", type=Path, help="a record, whose failed tests are run again")
    add("--results", type=Path, default=ROOT / "results", help="folder of the records")
    arguments = parser.parse_args(argv)
    try:
        suites = arguments.suites.split(",")
        check_known(suites, SUITES, "suite")
        with tempfile.TemporaryDirectory(prefix="trainact-versions-") as name:
            folder, python = Path(name), arguments.python
            if arguments.again:
                record = _run_again(folder, python, json.loads(arguments.again.read_text()))
            else:
                record = _run(folder, python, arguments.torch, arguments.lowest, suites)
    except TrActError as error:
        print(f"tools.versions: {error}", file=sys.stderr)
        return 2
    name = arguments.again.name if arguments.again else f"{_name(record)}.json"
    path = arguments.results / FOLDER / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{json.dumps(record, indent=1)}\n")
    failed = [name for suite in record["suites"].values() for name in suite["failed"]]
    print("\n".join([f"{path.name}: {_describe(record)}", *failed]))
    return 1 if failed else 0


def _run(folder: Path, python: str, torch: str, lowest: bool, suites: list[str]) -> dict[str, Any]:
    """Return the record of the suites in a new environment in ``folder``."""
    wanted = ["--requirements", "pyproject.toml", "--extra", "all", "--group", "dev"]
    wanted += ["--resolution", "lowest-direct"] * lowest + [f"torch=={torch}"] * bool(torch)
    inside = _make_environment(folder, python, wanted)
    listed = json.loads(_call_uv("pip", "list", "--python", inside, "--format", "json"))
    installed = {_normalise(package["name"]): package["version"] for package in listed}
    return {
        **_read_state(inside),
        "set": "lowest" if lowest else "newest",
        "packages": {name: installed[name] for name in _list_declared() if name in installed},
        "suites": {name: _run_tests(inside, folder, _list_files(name)) for name in suites},
    }


def _run_again(folder: Path, python: str, record: dict[str, Any]) -> dict[str, Any]:
    """Return the record with the results that its failed tests have now.

    Raises:
        TrActValueError: pytest does not know one of these tests any more.
    """
    versions = [f"{name}=={version}" for name, version in record["packages"].items()]
    inside = _make_environment(folder, python, versions)
    state, suites = _read_state(inside), {}
    for name, before in record["suites"].items():
        suites[name] = before
        if before["failed"]:
            tests = list(dict.fromkeys(_find_place(test) for test in before["failed"]))
            now = _run_tests(inside, folder, tests)
            ran = now["passed"] + now["skipped"] + len(now["failed"])
            if ran < len(tests):  # an unknown test stops pytest before the others
                raise TrActValueError(
                    f"only {ran} of the {count(len(tests), 'test')} of {name} that failed ran "
                    "again; pytest's message is above. Run the whole suite, without --again."
                )
            suites[name] = before | {
                **{key: before[key] + now[key] for key in ("passed", "skipped", "seconds")},
                "failed": now["failed"],
                "again": {
                    "tests": before["failed"],
                    "commit": state["commit"],
                    "date": state["date"],
                },
            }
    return record | {"suites": suites}


def _find_place(test: str) -> str:
    """Return pytest's name of a test in a record, or the file of an error that came before tests.

    >>> _find_place("tests.test_wrap::test_one[3]"), _find_place("::tests.test_wrap")
    ('tests/test_wrap.py::test_one[3]', 'tests/test_wrap.py')
    """
    module, _, name = test.partition("::")
    return f"{(module or name).replace('.', '/')}.py" + (f"::{name}" if module else "")


def _make_environment(folder: Path, python: str, wanted: list[str]) -> str:
    """Return the Python of a new environment with this project, from its files."""
    home, inside = folder / "env", str(folder / "env" / "bin" / "python")
    _call_uv("venv", "--python", python, str(home))
    _call_uv("pip", "install", "--python", inside, *wanted)
    _call_uv("pip", "install", "--python", inside, "--no-deps", "--editable", ".")
    return inside


def _list_files(suite: str) -> list[str]:
    return [str(path) for pattern in SUITES[suite] for path in sorted(ROOT.glob(pattern))]


def _read_state(inside: str) -> dict[str, Any]:
    """Return the commit, the date, the versions and the hardware of an environment."""
    shown = subprocess.check_output([inside, "-c", ENVIRONMENT], cwd=ROOT, text=True)
    return dict(json.loads(shown))


def _run_tests(inside: str, folder: Path, tests: list[str]) -> dict[str, Any]:
    """Run tests that are not slow, in one process with one thread."""
    report = folder / "report.xml"
    report.unlink(missing_ok=True)
    options = ["-q", "-m", "not slow", "-p", "no:cacheprovider", f"--junitxml={report}"]
    options += ["--continue-on-collection-errors"]
    process = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([inside, "-m", "pytest", *options, *tests], cwd=ROOT, env=process)
    return read_counts(report)


def _call_uv(*words: str) -> str:
    """Return what a command of uv prints.

    Raises:
        TrActValueError: uv is missing or fails, for example because a version does not exist.
    """
    if shutil.which("uv") is None:
        raise TrActValueError("uv makes the environments, and it is missing: pip install uv.")
    done = subprocess.run(["uv", *words], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise TrActValueError(f"uv {' '.join(words)} failed; its message is above.")
    return done.stdout


def read_counts(report: Path) -> dict[str, Any]:
    """Return how many tests passed and were skipped, and which failed, from pytest's JUnit file.

    Raises:
        TrActValueError: pytest stopped before it wrote the file.
    """
    if not report.exists():
        raise TrActValueError("pytest stopped before its end; its message is above.")
    cases = list(ElementTree.parse(report).iter("testcase"))
    kinds = [{child.tag for child in case} for case in cases]
    failed = [
        f"{case.get('classname')}::{case.get('name')}"
        for case, kind in zip(cases, kinds, strict=True)
        if kind & {"failure", "error"}
    ]
    skipped = sum("skipped" in kind for kind in kinds)
    return {
        "passed": len(cases) - len(failed) - skipped,
        "skipped": skipped,
        "failed": failed,
        "seconds": round(sum(float(case.get("time", 0)) for case in cases)),
    }


def _list_declared() -> list[str]:
    """Return the names of all other packages in ``pyproject.toml``."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lists = [project["project"]["dependencies"], project["dependency-groups"]["dev"]]
    lists += project["project"]["optional-dependencies"].values()
    names = {_normalise(re.split(r"[>\[]", text)[0]) for texts in lists for text in texts}
    return sorted(names - {"trainact"})


def _normalise(name: str) -> str:
    """Return the name of a package as PyPI compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_records(results: Path) -> list[dict[str, Any]]:
    """Return the records, the oldest torch first."""
    records = [json.loads(path.read_text()) for path in sorted((results / FOLDER).glob("*.json"))]
    return sorted(
        records, key=lambda record: (_sort(record["packages"]["torch"]), record["python"])
    )


def _sort(version: str) -> list[int]:
    return list(map(int, re.findall(r"\d+", version.split("+")[0])))


def write_versions(results: Path) -> dict[str, str]:
    """Return the table of all records as the text of the marked place."""
    records = read_records(results)
    if not records:
        return {"versions": "No record yet."}
    suites = [name for name in SUITES if any(name in record["suites"] for record in records)]
    head = ("torch", "Python", "other packages", *suites, "when")
    rows = tuple(
        (
            record["packages"]["torch"],
            record["python"],
            _describe_packages(record),
            *(_describe_counts(record["suites"].get(name)) for name in suites),
            _describe_runs(record),
        )
        for record in records
    )
    notes = [
        f"Failed with torch {record['packages']['torch']}: `{name}`."
        for record in records
        for suite in record["suites"].values()
        for name in suite["failed"]
    ]
    table = render_markdown(Grid("", head, rows, text_columns=len(head)))
    return {"versions": "\n\n".join([table, *notes])}


def _describe_packages(record: dict[str, Any]) -> str:
    packages = record["packages"]
    shown = ", ".join(f"{name} {packages[name]}" for name in SHOWN if name in packages)
    return f"{record['set']}: {shown}"


def _describe_counts(suite: dict[str, Any] | None) -> str:
    if suite is None:
        return "-"
    failed = [f"{len(suite['failed'])} failed"] if suite["failed"] else []
    return ", ".join([f"{suite['passed']} passed", *failed, f"{suite['skipped']} skipped"])


def _describe_runs(record: dict[str, Any]) -> str:
    repeats = [suite["again"] for suite in record["suites"].values() if "again" in suite]
    again = [f"{count(len(r['tests']), 'test')} again at {r['commit'][:10]}" for r in repeats]
    return "; ".join([f"{record['date'][:10]} at {record['commit'][:10]}", *again])


def _describe(record: dict[str, Any]) -> str:
    return "; ".join(f"{k}: {_describe_counts(suite)}" for k, suite in record["suites"].items())


def _name(record: dict[str, Any]) -> str:
    """Return the name of a record's file, such as ``torch-2.12.1-python-3.12``.

    Other suites than the default ones are in the name: their record replaces no other.
    """
    torch, python = record["packages"]["torch"].split("+")[0], record["python"].rsplit(".", 1)[0]
    suites = [suite for suite in SUITES if suite in record["suites"]]
    parts = ["lowest"] * (record["set"] == "lowest") + suites * (suites != list(DEFAULT_SUITES))
    return "-".join([f"torch-{torch}-python-{python}", *parts])


if __name__ == "__main__":
    raise SystemExit(main())
