"""Runs with other versions: the environment, the record, and the table of all records."""

import json
import re
import shutil
import sys
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("rich", reason="the lab's tables need rich")

from tools import versions
from tools.versions import FOLDER, ROOT, main, read_counts, read_records, write_versions
from trainact.errors import TrActValueError

UV = f"""#!/bin/sh
echo "$@" >> "$(dirname "$0")/calls"
case "$*" in
  venv*) for home; do :; done
    mkdir -p "$home/bin"
    printf '#!/bin/sh\\nexec {sys.executable} "$@"\\n' > "$home/bin/python"
    chmod +x "$home/bin/python" ;;
  "pip list"*) echo '[{{"name": "Torch", "version": "2.12.1+cpu"}}, {{"name": "torch-tract", "version": "1.0"}},
                      {{"name": "trainact", "version": "0.1.0"}}, {{"name": "other", "version": "3"}}]' ;;
  *torch==9*) exit 1 ;;
esac
"""
TESTS = """
import pytest
def test_one(): pass
def test_two(): assert 0
@pytest.mark.skip
def test_three(): pass
@pytest.fixture
def broken(): raise OSError
def test_four(broken): pass
"""

STATE = {"commit": "0123456789abc", "date": "2026-11-17T12:00:00+00:00"}


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with four tests, and a stand-in for uv whose environment is the running Python."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "uv").write_text(UV)
    (tmp_path / "bin" / "uv").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_small.py").write_text(TESTS)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    monkeypatch.setattr(versions, "ROOT", tmp_path)
    return tmp_path


@pytest.mark.slow
def test_a_run_leaves_a_record_of_its_versions_and_tests(project, capfd):
    words = ["--torch", "2.12.1", "--suites", "core", "--results", str(project), "--lowest"]
    assert main(words) == 1
    (record,) = read_records(project)
    name = f"torch-2.12.1-python-{sys.version_info[0]}.{sys.version_info[1]}-lowest-core.json"
    assert (project / FOLDER / name).exists()
    assert record["packages"] == {"torch": "2.12.1+cpu", "torch-tract": "1.0"}
    assert {"commit", "clean", "date", "processor"} <= set(record)
    core = record["suites"]["core"]
    assert (core["passed"], core["skipped"]) == (1, 1)
    assert [name.split("::")[1] for name in core["failed"]] == ["test_two", "test_four"]
    assert f"{name}: core: 1 passed, 2 failed, 1 skipped" in capfd.readouterr().out
    made, install, editable, _ = (project / "bin" / "calls").read_text().splitlines()
    assert install.endswith("--group dev --resolution lowest-direct torch==2.12.1")
    assert editable.endswith("--no-deps --editable .")
    assert not Path(made.split()[-1]).exists()


@pytest.mark.slow
def test_the_tests_that_failed_can_run_again(project, monkeypatch):
    state = json.dumps({"python": "3.11.7", **STATE})
    monkeypatch.setattr(versions, "ENVIRONMENT", f"print({state!r})")
    assert main(["--suites", "core", "--results", str(project)]) == 1
    small = project / "tests" / "test_small.py"
    small.write_text(small.read_text().replace("assert 0", "assert 1"))
    (file,) = (project / FOLDER).iterdir()
    assert main(["--again", str(file), "--results", str(project)]) == 1
    (record,) = read_records(project)
    core = record["suites"]["core"]
    assert (core["passed"], core["skipped"]) == (2, 1)
    assert [name.split("::")[1] for name in core["failed"]] == ["test_four"]
    assert len(core["again"]["tests"]) == 2
    assert (
        "2026-11-17 at 0123456789; 2 tests again at 0123456789 |"
        in write_versions(project)["versions"]
    )
    assert " torch==2.12.1+cpu torch-tract==1.0" in (project / "bin" / "calls").read_text()


@pytest.mark.slow
def test_a_failed_test_that_pytest_does_not_know_any_more_leaves_the_record_as_it_is(
    project, monkeypatch, capfd
):
    monkeypatch.setattr(versions, "ENVIRONMENT", f"print({json.dumps(STATE)!r})")
    file = project / "old.json"
    failed = ["tests.test_small::test_one", "tests.test_small::test_renamed"]
    file.write_text(json.dumps(make_record("2.12.1", failed=failed)))
    before = file.read_text()
    assert main(["--again", str(file), "--results", str(project)]) == 2
    assert "only 0 of the 2 tests of core that failed ran again" in capfd.readouterr().err
    assert file.read_text() == before
    assert not (project / FOLDER).exists()


@pytest.mark.slow
def test_a_file_that_could_not_be_read_is_run_again_as_a_whole(project, monkeypatch):
    state = json.dumps({"python": "3.11.7", **STATE})
    monkeypatch.setattr(versions, "ENVIRONMENT", f"print({state!r})")
    broken = project / "tests" / "test_broken.py"
    broken.write_text("import absent\n")
    assert main(["--suites", "core", "--results", str(project)]) == 1
    (file,) = (project / FOLDER).iterdir()
    core = json.loads(file.read_text())["suites"]["core"]
    assert core["passed"] == 1  # the other files ran
    assert core["failed"][0] == "::tests.test_broken"
    broken.write_text("def test_one(): pass\ndef test_two(): pass\n")
    assert main(["--again", str(file), "--results", str(project)]) == 1
    core = read_records(project)[0]["suites"]["core"]
    assert core["passed"] == 3
    assert len(core["failed"]) == 2


def test_a_run_of_other_suites_replaces_no_record(tmp_path, monkeypatch):
    counts = {"passed": 1, "skipped": 0, "failed": []}
    full = make_record("2.12.1", **{"works-with": counts})
    other = full | {"suites": {"lab": counts}}
    for record in (full, other, full):
        monkeypatch.setattr(versions, "_run", lambda *words, record=record: record)
        assert main(["--results", str(tmp_path)]) == 0
    names = [path.name for path in sorted((tmp_path / FOLDER).iterdir())]
    assert names == ["torch-2.12.1-python-3.12-lab.json", "torch-2.12.1-python-3.12.json"]
    assert list(read_records(tmp_path)[1]["suites"]) == ["core", "works-with"]


def test_every_committed_record_has_the_name_of_its_run():
    for path in (ROOT / "results" / FOLDER).glob("*.json"):
        assert path.stem == versions._name(json.loads(path.read_text()))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--torch", "9.0"], "torch==9.0 failed; its message is above."),
        (["--suites", "cores"], "unknown suite 'cores'"),
    ],
)
def test_what_cannot_run_gives_one_message_and_no_record(project, words, message, capfd):
    assert main([*words, "--results", str(project)]) == 2
    assert message in capfd.readouterr().err
    assert not (project / FOLDER).exists()


def test_without_uv_the_message_says_how_to_get_it(project, monkeypatch, capfd):
    monkeypatch.setenv("PATH", "")
    assert main(["--results", str(project)]) == 2
    assert "pip install uv" in capfd.readouterr().err


def test_a_run_of_pytest_that_died_is_no_record(tmp_path):
    with pytest.raises(TrActValueError, match="pytest stopped before its end"):
        read_counts(tmp_path / "core.xml")


def make_record(torch, python="3.12.1", failed=(), **suites):
    return {
        "python": python, **STATE, "set": "newest", "packages": {"torch": torch, "timm": "1.0.30"},
        "suites": {"core": {"passed": 3, "skipped": 1, "failed": list(failed)}, **suites},
    }  # fmt: skip


def test_the_table_has_a_row_for_each_record_the_oldest_torch_first(tmp_path):
    assert write_versions(tmp_path)["versions"] == "No record yet."
    (tmp_path / FOLDER).mkdir()
    records = [make_record("2.10.0+cpu", failed=["a::b"]), make_record("2.9.1", lab={"passed": 5, "skipped": 0, "failed": []})]  # fmt: skip
    for number, record in enumerate(records):
        (tmp_path / FOLDER / f"{number}.json").write_text(json.dumps(record))
    head, _, old, new, _, note = write_versions(tmp_path)["versions"].splitlines()
    assert head == "| torch | Python | other packages | core | lab | when |"
    assert old.endswith("| 3 passed, 1 skipped | 5 passed, 0 skipped | 2026-11-17 at 0123456789 |")
    assert new.startswith(
        "| 2.10.0+cpu | 3.12.1 | newest: timm 1.0.30 | 3 passed, 1 failed, 1 skipped | - |"
    )
    assert note == "Failed with torch 2.10.0+cpu: `a::b`."


def test_the_metadata_declares_the_versions_that_ran():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    records = read_records(ROOT / "results")
    ran = {record["python"].rsplit(".", 1)[0] for record in records}
    declared = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert declared == sorted(ran, key=lambda version: int(version[2:]))
    assert project["requires-python"] == f">={declared[0]}"
    lowest = next(record for record in records if record["set"] == "lowest")
    assert f"torch>={lowest['packages']['torch'].rsplit('.', 1)[0]}" in project["dependencies"]
    assert not any(suite["failed"] for record in records for suite in record["suites"].values())
