"""The records of trainact bench: continued ones, the committed ones, and plots."""

import io
import json
import re
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("rich", reason="trainact bench needs the extra 'bench'")

from rich.console import Console

from trainact.lab.commands import cli
from trainact.lab.cost import bench
from trainact.lab.cost.bench import (
    TABLE_NETWORKS,
    Bench,
    draw_growth,
    make_table,
    read_bench,
    read_zoo,
    render_zoo,
)
from trainact.lab.cost.cases import LAYERS, NETWORKS
from trainact.lab.cost.timing import summarise
from trainact.lab.environment import describe_environment

RESULTS = Path(__file__).parents[3] / "results" / "bench"


def test_the_zoo_is_the_table():
    assert len(TABLE_NETWORKS) == 36
    assert TABLE_NETWORKS[0] == "squeezenet"


@pytest.mark.slow
def test_each_networks_row_is_written_when_done_and_the_same_command_continues(tmp_path, capsys):
    command = ["bench", "--zoo", "--out", str(tmp_path), "--only"]
    assert cli.main([*command, "squeezenet"]) == 0
    first = json.loads((tmp_path / "zoo.json").read_text())
    assert [row["name"] for row in first["networks"]] == ["squeezenet"]
    capsys.readouterr()
    assert cli.main([*command, "squeezenet"]) == 0
    shown = capsys.readouterr().out
    assert "already measured: squeezenet" in shown
    assert json.loads((tmp_path / "zoo.json").read_text()) == first
    assert cli.main([*command, "shufflenetv2"]) == 0
    record = read_zoo(tmp_path / "zoo.json")
    assert record is not None
    assert [row["name"] for row in record["networks"]] == ["squeezenet", "shufflenetv2"]
    assert record["networks"][0] == first["networks"][0]
    for row in record["networks"]:
        rounds = 3 * row["attempts"]
        assert row["plain_ms"]["count"] == row["extra_over_plain"]["count"] == rounds
        assert row["extra_over_plain"]["median"] > 0
        assert row["date"]
        assert row["plain_again_over_plain"]["count"] == rounds
        row["noisy"] = False  # here, whatever else runs on the machine
    assert {"processor", "threads", "packages"} <= set(record["environment"])
    page = render_zoo(record)
    assert page.startswith("2 of the 36 networks: TrAct's own work is between")
    assert re.search(r"\| squeezenet \| 781,156 \| \d+ \| [\d.]+ % \[", page)


def test_an_interrupted_measurement_is_continued_by_the_same_code(tmp_path, monkeypatch):
    made = describe_environment("cpu") | {"clean": True}
    monkeypatch.setattr(bench, "describe_environment", lambda device: dict(made))
    row = json.loads((RESULTS / "bench.json").read_text())["layer"][0]
    measured = []

    def measure(self, case, rounds, advance):
        measured.append(case.name)
        if len(measured) == 3:
            raise KeyboardInterrupt
        return row | {"name": case.name}

    monkeypatch.setattr(Bench, "_measure_ratios", measure)
    one = Bench(tmp_path, Console(file=io.StringIO()), torch.device("cpu"))
    with pytest.raises(KeyboardInterrupt):
        one.measure(["layer"])
    names = [case.name for case in LAYERS]
    assert [row["name"] for row in read_bench(tmp_path / "bench.json")["layer"]] == names[:2]
    record = one.measure(["layer", "step"])
    assert measured[3:9] == [*names[2:], NETWORKS[0].name, NETWORKS[1].name]
    assert [row["name"] for row in record["layer"]] == names
    assert "already measured: CIFAR 3x3, CIFAR-ViT Linear" in one.console.file.getvalue()
    for change in ({"commit": "another"}, {"clean": False}):
        made.update(change)
        measured[:] = ["one", "two", "three"]
        assert len(one.measure(["layer"])["layer"]) == len(measured) - 3 == 6


def test_a_noisy_row_has_no_ratio_of_whole_times():
    record = json.loads((RESULTS / "bench.json").read_text())
    row = record["layer"][0] | {"noisy": True, "plain_again_over_plain": summarise([0.9, 1.1])}
    cells = [next(iter(column.cells)) for column in make_table("layer", [row]).columns]
    extra = "{median:.3f} [{low:.3f}, {high:.3f}]".format(**row["extra_over_plain"])
    assert cells[2:6] == ["1.000 [0.900, 1.100]", "noisy", extra, "noisy"]


def test_a_record_of_another_machine_is_not_continued(tmp_path, capsys):
    made = describe_environment("cpu") | {"processor": "another"}
    record = {"kind": "bench-zoo", "environment": made, "dtype": "float32", "batch": 8}
    (tmp_path / "zoo.json").write_text(json.dumps(record | {"networks": []}))
    assert cli.main(["bench", "--zoo", "--only", "squeezenet", "--out", str(tmp_path)]) == 2
    assert "is from another setup (processor was another and is" in capsys.readouterr().err
    (tmp_path / "zoo.json").write_text("{}")
    assert cli.main(["bench", "--zoo", "--only", "squeezenet", "--out", str(tmp_path)]) == 2
    assert "is not a record of trainact bench --zoo" in capsys.readouterr().err


def test_without_a_record_the_page_says_so(tmp_path):
    assert read_zoo(tmp_path / "zoo.json") is None
    assert render_zoo(None).startswith("Not measured yet")


def test_the_committed_records_give_tables_and_plots(tmp_path, monkeypatch):
    zoo = read_zoo(RESULTS / "zoo.json")
    assert zoo is not None
    assert [row["name"] for row in zoo["networks"]] == TABLE_NETWORKS
    assert render_zoo(zoo) in (RESULTS.parents[1] / "docs" / "cost.md").read_text()
    record = json.loads((RESULTS / "bench.json").read_text())
    assert make_table("layer", record["layer"]).row_count == 6
    monkeypatch.delitem(sys.modules, "matplotlib.pyplot", raising=False)
    paths = draw_growth(record, tmp_path)
    assert [path.name for path in paths] == ["growth-ms.png", "growth-memory.png"]
    assert "matplotlib.pyplot" not in sys.modules
    quiet = paths[0].read_bytes(), paths[1].read_bytes()
    record["growth"]["batch"][0]["noisy"] = True
    draw_growth(record, tmp_path)
    assert paths[0].read_bytes() != quiet[0]
    assert paths[1].read_bytes() == quiet[1]
