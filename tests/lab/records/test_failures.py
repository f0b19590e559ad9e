"""Why a run failed: kept in its folder until the run ends."""

from trainact.lab.records.failures import clear_failure, read_failure, write_failure


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
