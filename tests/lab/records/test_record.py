"""Records are sealed, and a run's folder is used by one process at a time."""

import errno
import json

import filelock
import pytest

from comparison_records import make_record
from trainact.errors import TrActValueError
from trainact.lab.files import StorageError
from trainact.lab.recipes.recipe import Recipe, change_recipe
from trainact.lab.records.record import (
    RunFolder,
    clear_failure,
    parse_record,
    read_failure,
    read_record,
    seal,
    write_failure,
)


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path, change_recipe(Recipe(), {"run.arm": "plain", "run.seed": 3}))


def test_the_seal_does_not_depend_on_the_order_of_keys():
    record = make_record("plain", 2, 0, 60)
    turned = dict(reversed(record.items()))
    assert list(turned) != list(record)
    assert seal(turned) == seal(record) == seal(record | {"seal": "x"})
    assert seal(record | {"seed": 1}) != seal(record)


def test_a_record_is_read_as_it_was_written(folder):
    record = make_record("plain", 2, 3, float("nan")) | {"recipe_id": folder.identity}
    folder.write_record(record)
    assert folder.path.parent.name == "runs"
    assert folder.path.name == f"plain-5ep-seed3-{folder.identity}"
    again = read_record(folder.record_path)
    assert json.dumps(again) == json.dumps({**record, "seal": seal(record)})
    assert json.dumps(folder.load_record(pytest.fail)) == json.dumps(again)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "x cannot be read"),
        ("[]", "x is not a run's record of format 1"),
        ('{"format": 2}', "x is not a run's record of format 1"),
        ('{"format": 1}', "x is not as it was written: its seal does not fit"),
        ('{"format": 1, "seal": "0"}', "its seal does not fit"),
    ],
)
def test_other_texts_are_refused(text, reason):
    with pytest.raises(TrActValueError, match=reason):
        parse_record(text, "x")


def test_files_that_cannot_be_read_are_refused(tmp_path):
    with pytest.raises(TrActValueError, match="cannot be read"):
        read_record(tmp_path / "nowhere")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(TrActValueError, match="cannot be read"):
        read_record(tmp_path / "bytes")


def test_a_record_of_another_recipe_is_set_aside(folder):
    folder.write_record(make_record("plain", 2, 3, 60) | {"recipe_id": "another"})
    notes = []
    assert folder.load_record(notes.append) is None
    assert notes == [
        "the record is of another recipe; it is kept as record.json.damaged-1 and the run is done "
        "again"
    ]
    assert folder.load_record(pytest.fail) is None


def test_ranks_do_not_wait_for_another_process(folder):
    with folder.hold(pytest.fail):
        lock = filelock.FileLock(folder.path / "run.lock")
        with pytest.raises(filelock.Timeout):
            lock.acquire(timeout=0)
        refused = pytest.raises(StorageError, match="another process is doing the run in")
        with refused, folder.hold(pytest.fail, ranks=2):
            pytest.fail("the run is held twice")
    with folder.hold(pytest.fail, ranks=2):
        pass


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    refused = pytest.raises(StorageError, match="cannot be made")
    with refused, RunFolder(tmp_path / "file", Recipe()).hold(pytest.fail):
        pytest.fail("there is no folder")


def test_a_failure_counts_the_attempts_until_it_is_cleared(tmp_path):
    assert read_failure(tmp_path) is None
    for attempt in (1, 2):
        path = write_failure(tmp_path, "the disk is full", "line one\nline two")
        failure = read_failure(tmp_path)
        assert (failure["failure"], failure["attempts"]) == ("the disk is full", attempt)
        assert failure["trace"] == ["line one", "line two"]
    path.write_text("{}")
    assert read_failure(tmp_path) is None
    for _ in range(2):
        clear_failure(tmp_path)
        assert not path.exists()


def test_a_folder_that_cannot_be_written_is_no_second_failure(tmp_path):
    (tmp_path / "file").write_text("")
    write_failure(tmp_path / "file", "the disk is full")
    clear_failure(tmp_path / "file")
    assert read_failure(tmp_path / "file") is None


@pytest.mark.parametrize(
    "text", ['{"attempts": "2", "failure": "x"}', '{"attempts": 2}', "[" * 20_000, "{"]
)
def test_a_damaged_failure_does_not_stop_the_next_one(tmp_path, text):
    (tmp_path / "failure.json").write_text(text)
    assert read_failure(tmp_path) is None
    write_failure(tmp_path, "again")
    assert read_failure(tmp_path)["attempts"] == 1


def test_a_folder_that_cannot_be_locked_is_an_error(folder, monkeypatch):
    def fail(lock, timeout):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(filelock.FileLock, "acquire", fail)
    refused = pytest.raises(StorageError, match="cannot be written: Read-only file system")
    with refused, folder.hold(pytest.fail):
        pytest.fail("the folder is locked")
