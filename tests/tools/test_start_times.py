"""The times of make demo and make test in CONTRIBUTING."""

import json
import subprocess

from tools import start_times


def test_both_targets_are_timed_in_a_clone_without_samples(tmp_path, monkeypatch):
    repository = tmp_path / "repository"
    repository.mkdir()
    log = tmp_path / "log.txt"
    lines = "".join(
        f'{target}:\n\techo "{target} $$TRAINACT_SAMPLES" >> {log}\n' for target in ("demo", "test")
    )
    (repository / "Makefile").write_text(lines)
    name = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "."], [*name, "commit", "-q", "-m", "one"]):
        subprocess.run(["git", *command], cwd=repository, check=True)
    monkeypatch.setenv("TRAINACT_SAMPLES", "here")
    record = start_times.measure_start(repository)
    assert log.read_text().split() == ["demo", "test"]
    assert set(record["seconds"]) == {"demo", "test"}


def test_without_a_record_the_text_says_how_to_measure(tmp_path):
    text = start_times.write_start_times(tmp_path)["start-times"]
    assert "python -m tools.start_times" in text


def test_the_text_has_the_times_of_the_record(tmp_path):
    environment = {"cores": 2, "processor": "Some CPU", "python": "3.12.1", "date": "2026-01-02T03"}
    file = tmp_path / start_times.FILE
    file.parent.mkdir()
    record = {"environment": environment, "seconds": {"demo": 61.0, "test": 361.0}}
    file.write_text(json.dumps(record))
    text = start_times.write_start_times(tmp_path)["start-times"]
    assert "`make demo` took 61 s, and `make test` after it 6.0 min" in text
    assert "2 cores (Some CPU), Python 3.12.1, 2026-01-02." in text
