"""trainact bench --zoo: rows of small networks, going on, and the page made from the record."""

import json
import re

import pytest

pytest.importorskip("rich", reason="trainact bench needs the extra 'bench'")

from tools import pages
from tools.evidence import read_evidence
from trainact.lab.commands import cli
from trainact.lab.cost import overhead
from trainact.lab.cost.overhead import TABLE, read_zoo, render_zoo


def test_the_zoo_is_the_table():
    assert len(TABLE) == 36
    assert TABLE[0] == "squeezenet"


def test_each_networks_row_is_written_when_done_and_the_same_command_goes_on(tmp_path, capsys):
    command = ["bench", "--zoo", "--out", str(tmp_path), "--only"]
    assert cli.main([*command, "squeezenet"]) == 0
    first = json.loads((tmp_path / "zoo.json").read_text())
    assert [row["name"] for row in first["networks"]] == ["squeezenet"]
    capsys.readouterr()
    assert cli.main([*command, "squeezenet"]) == 0
    shown = capsys.readouterr().out
    assert "squeezenet, done before" in shown
    assert json.loads((tmp_path / "zoo.json").read_text()) == first
    assert cli.main([*command, "shufflenetv2"]) == 0
    record = read_zoo(tmp_path / "zoo.json")
    assert record is not None
    assert [row["name"] for row in record["networks"]] == ["squeezenet", "shufflenetv2"]
    assert record["networks"][0] == first["networks"][0]
    for row in record["networks"]:
        assert row["plain_ms"]["count"] == row["extra_over_plain"]["count"] == 3
        assert row["extra_over_plain"]["median"] > 0
        assert row["date"]
    assert {"processor", "threads", "packages"} <= set(record["environment"])
    page = render_zoo(record)
    assert page.startswith("2 of the 36 networks")
    assert re.search(r"\| squeezenet \| 781,156 \| \d+ \| [\d.]+ % \[", page)


def test_a_record_of_another_machine_is_not_gone_on_with(tmp_path, capsys):
    made = overhead.describe_environment("cpu") | {"processor": "another"}
    record = {"kind": "bench-zoo", "environment": made, "dtype": "float32", "batch": 8}
    (tmp_path / "zoo.json").write_text(json.dumps(record | {"networks": []}))
    assert cli.main(["bench", "--zoo", "--only", "squeezenet", "--out", str(tmp_path)]) == 2
    assert "was begun elsewhere (processor was another and is" in capsys.readouterr().err
    (tmp_path / "zoo.json").write_text("{}")
    assert cli.main(["bench", "--zoo", "--only", "squeezenet", "--out", str(tmp_path)]) == 2
    assert "is not a record of trainact bench --zoo" in capsys.readouterr().err


def test_without_a_record_the_page_says_so(tmp_path):
    assert render_zoo(None).startswith("There is no record yet")
    evidence = read_evidence(pages.ROOT / "results")
    assert "bench-zoo" in pages.make_tables(evidence)
    assert read_zoo(tmp_path / "zoo.json") is None
