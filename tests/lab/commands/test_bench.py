"""trainact bench: the measuring itself, the record, and the pages made from it."""

import json
import re

import pytest
import torch
from torch import nn

from tools import pages
from trainact.lab.commands import cli
from trainact.lab.cost.cases import LAYERS, NETWORKS, LayerContest
from trainact.lab.cost.timing import compare_times, measure_peak_memory, summarise
from trainact.lab.models.networks.vit import CifarViT

pytest.importorskip("rich", reason="trainact bench needs the extra 'bench'")
CPU = torch.device("cpu")


def test_work_takes_turns_and_the_order_rotates():
    calls = []
    work = {name: lambda name=name: calls.append(name) for name in "abc"}
    times = compare_times(work, 3, CPU)
    assert {name: len(samples) for name, samples in times.items()} == {"a": 3, "b": 3, "c": 3}
    order = [name for i, name in enumerate(calls) if i == 0 or calls[i - 1] != name]
    assert "".join(order[-9:]) == "abcbcacab"


def test_a_spread_is_median_and_quartiles():
    spread = summarise([4.0, 1.0, 3.0, 2.0, 5.0])
    assert (spread.median, spread.low, spread.high, spread.count) == (3, 2, 4, 5)
    assert summarise([7.0]).low == 7


def test_peak_memory_is_what_the_allocator_held_at_once():
    def work():
        first = torch.empty(1000, dtype=torch.float64)
        del first
        return torch.empty(3000, dtype=torch.float64)

    assert measure_peak_memory(work, CPU) == pytest.approx(24_000, abs=200)


def test_contenders_compute_the_same_gradient_but_for_the_plain_one():
    contest = LayerContest("small", lambda: torch.nn.Conv2d(3, 4, 3, padding=1), (4, 3, 12, 12))
    contenders = contest.set_up(CPU, torch.float32, compiled=False)
    assert set(contenders.work) >= {"plain", "trainact"}
    for run in (*contenders.work.values(), contenders.extra):
        run()
    assert contenders.input_bytes == 4 * 3 * 12 * 12 * 4


def test_the_overlapping_stems_stay_within_twice_the_input():
    """Peak extra memory of TrAct's own work, without the n × n terms; no time is asserted."""
    small = LayerContest("7x7, batch 16", lambda: nn.Conv2d(3, 64, 7, 2, 3), (16, 3, 224, 224))
    for contest in (*LAYERS, small):
        contenders = contest.set_up(CPU, torch.float32, compiled=False)
        extra = measure_peak_memory(contenders.extra, CPU)
        weight = contest.make().weight[0].numel()
        square_terms = 6 * 8 * weight**2
        limit = 1.1 if "ViT" in contest.name else 2.0
        assert extra <= limit * contenders.input_bytes + square_terms, contest.name


def test_the_command_writes_a_record_and_a_table(tmp_path, capsys):
    out = tmp_path / "bench"
    arguments = ["bench", "--quick", "--sections", "layer", "--only", "cifar", "--out", str(out)]
    assert cli.main(arguments) == 0
    record = json.loads((out / "bench.json").read_text())
    assert [row["name"] for row in record["layer"]] == ["CIFAR 3x3", "CIFAR-ViT Linear"]
    for row in record["layer"]:
        assert row["trainact_over_plain"]["count"] == 5
        assert row["extra_over_plain"]["median"] > 0
    made = record["environment"]
    assert made["packages"]["torch"] == torch.__version__
    assert made["threads"] == torch.get_num_threads()
    assert re.fullmatch(r"[0-9a-f]{40}", made["commit"] or "0" * 40)
    assert "CIFAR 3x3" in capsys.readouterr().out


def test_growth_is_measured_and_drawn(tmp_path):
    out = str(tmp_path)
    arguments = ["bench", "--quick", "--sections", "growth", "--out", out]
    assert cli.main([*arguments, "--only", "kernel"]) == 0
    record = json.loads((tmp_path / "bench.json").read_text())
    assert [row["kernel"] for row in record["growth"]["kernel"]] == [3, 5]
    for name in ("growth-ms.png", "growth-memory.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sections", "speed"], "--sections 'speed': use one or more of layer, step, growth"),
        (["--device", "cuda:77"], "--device 'cuda:77' cannot be used here"),
        (["--device", "toaster"], "--device 'toaster' cannot be used here"),
    ],
)
def test_bad_options_end_with_one_line_and_exit_code_2(arguments, message, capsys, tmp_path):
    assert cli.main(["bench", *arguments, "--out", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_missing_package_names_the_extra(monkeypatch, capsys):
    def refuse(module):
        raise ModuleNotFoundError(f"No module named 'no_such_package', in {module}", name="no_such")

    monkeypatch.setattr(cli.importlib, "import_module", refuse)
    assert cli.main(["bench"]) == 2
    assert "comes with the extra 'bench': pip install 'trainact[bench]'" in capsys.readouterr().err


def test_the_command_line_lists_its_commands(capsys):
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--help"])
    shown = capsys.readouterr().out
    assert all(name in shown for name in cli.COMMANDS)
    with pytest.raises(SystemExit, match="2"):
        cli.main(["nonsense"])


def test_the_networks_are_those_of_the_paper():
    assert sum(p.numel() for p in CifarViT().parameters()) == 6_268_810
    resnet = next(n for n in NETWORKS if n.name.startswith("CIFAR ResNet")).make()
    assert resnet.conv1.stride == (1, 1)
    assert resnet.maxpool.kernel_size == 3


def test_the_pages_hold_what_the_committed_record_says():
    assert pages.main(["--check"]) == 0


def test_a_page_with_an_unknown_mark_is_refused():
    with pytest.raises(ValueError, match="no table is named 'speed'; there are bench"):
        pages.fill_page("<!-- speed --><!-- /speed -->", {"bench": ""})
