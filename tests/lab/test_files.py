"""Files are written whole or not at all."""

import errno
import os

import pytest

from trainact.lab.files import StorageError, replace_atomically, set_aside, write_atomically


def test_a_file_is_written_with_its_folders(tmp_path):
    path = tmp_path / "a" / "b" / "file"
    write_atomically(path, b"one")
    write_atomically(path, b"two")
    assert path.read_bytes() == b"two"
    assert list(path.parent.iterdir()) == [path]


def test_a_block_that_fails_leaves_the_earlier_file(tmp_path):
    path = tmp_path / "file"
    write_atomically(path, b"one")

    def fail(error):
        with replace_atomically(path) as temporary:
            temporary.write_bytes(b"tw")
            raise error

    for error in (KeyboardInterrupt(), ValueError()):
        with pytest.raises(type(error)):
            fail(error)
    with pytest.raises(StorageError, match=r"the disk is full.*give the same command again"):
        fail(OSError(errno.ENOSPC, "No space left on device"))
    assert path.read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [path]


def test_a_disk_that_is_full_at_the_end_leaves_the_earlier_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"one")

    def fail(handle):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StorageError, match="file could not be written: Input/output error"):
        write_atomically(path, b"two")
    assert path.read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_a_file_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="could not be written"):
        write_atomically(tmp_path / "file" / "below", b"")


def test_a_damaged_file_that_cannot_be_renamed_is_an_error(tmp_path):
    with pytest.raises(
        StorageError, match=r"record.json is damaged and cannot be renamed: No such"
    ):
        set_aside(tmp_path / "record.json")


def test_damaged_files_are_kept_under_other_names(tmp_path):
    path = tmp_path / "record.json"
    for number in (1, 2):
        path.write_text(str(number))
        assert set_aside(path) == tmp_path / f"record.json.damaged-{number}"
    assert sorted(file.read_text() for file in tmp_path.iterdir()) == ["1", "2"]
