"""The figures of damaged files and sudden deaths."""

import json

from tools.robustness_page import write_robustness

ENVIRONMENT = {
    "date": "2026-11-17T12:00:00+00:00", "commit": "0123456789abcdef", "clean": True,
    "python": "3.11.7", "packages": {"torch": "2.13.0"}, "processor": "CPU", "threads": 1,
}  # fmt: skip


def write(folder, name, rows):
    (folder / "robustness").mkdir(exist_ok=True)
    record = {"environment": ENVIRONMENT, "rows": rows}
    (folder / "robustness" / f"{name}.json").write_text(json.dumps(record))


def test_without_a_record_the_page_says_how_to_get_one(tmp_path):
    assert set(write_robustness(tmp_path).values()) == {"Not run yet: `make test-thorough`."}


def test_the_last_row_is_the_sum(tmp_path):
    row = {"kind": "images", "cases": 1000, "read": 300, "refused": 700, "faults": 0}
    write(tmp_path, "files", [row, row | {"kind": "shards"}])
    text = write_robustness(tmp_path)["robustness-files"]
    assert "| all | 2,000 | 600 | 1,400 | 0 |" in text
    assert text.endswith(
        "2026-11-17, commit 0123456789, Python 3.11.7, torch 2.13.0, CPU, 1 thread."
    )


def test_kills_and_disks_have_a_table_each(tmp_path):
    kills = {"command": "trainact compare", "kills": 13, "runs": 8, "equal": 8}
    write(tmp_path, "kills", [kills, kills | {"commit": "fedcba9876543210"}])
    write(tmp_path, "disks", [{"disk": "full", "cases": 6, "refused": 5, "equal": 6}])
    text = write_robustness(tmp_path)
    assert "| trainact compare | 13 | 8 | 8 |" in text["robustness-kills"]
    assert "commit 0123456789 and fedcba9876, Python" in text["robustness-kills"]
    assert "| full | 6 | 5 | 6 |" in text["robustness-disks"]
