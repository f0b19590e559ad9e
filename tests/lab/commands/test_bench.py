"""trainact bench through the command line."""

import json
import re

import pytest
import torch

from trainact.lab.commands import cli
from trainact.lab.cost.cases import LayerCase

pytest.importorskip("rich", reason="trainact bench needs the extra 'bench'")


def test_the_command_writes_a_record_and_a_table(tmp_path, capsys):
    out = tmp_path / "bench"
    arguments = ["bench", "--quick", "--sections", "layer", "--only", "cifar", "--out", str(out)]
    assert cli.main(arguments) == 0
    record = json.loads((out / "bench.json").read_text())
    assert [row["name"] for row in record["layer"]] == ["CIFAR 3x3", "CIFAR-ViT Linear"]
    for row in record["layer"]:
        assert row["trainact_over_plain"]["count"] == 5
        assert row["extra_over_plain"]["median"] > 0
        assert row["plain_again_over_plain"]["count"] == 5
        assert row["noisy"] in (True, False)
        assert set(row["load"]) == {"load_before", "load_after", "cores_of_others"}
    assert [row["name"] for row in record["launches"]["stems"]] == ["CIFAR 3x3", "CIFAR-ViT Linear"]
    made = record["environment"]
    assert made["packages"]["torch"] == torch.__version__
    assert made["threads"] == torch.get_num_threads()
    assert re.fullmatch(r"[0-9a-f]{40}", made["commit"] or "0" * 40)
    assert "CIFAR 3x3" in capsys.readouterr().out


@pytest.mark.slow
def test_a_case_that_does_not_fit_is_left_out_and_the_others_are_kept(
    tmp_path, capsys, monkeypatch
):
    original = LayerCase.set_up

    def set_up(self, *rest):
        if self.name == "CIFAR 3x3":
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
        return original(self, *rest)

    monkeypatch.setattr(LayerCase, "set_up", set_up)
    words = ["bench", "--quick", "--sections", "layer", "--only", "cifar", "--out", str(tmp_path)]
    assert cli.main(words) == 0
    record = json.loads((tmp_path / "bench.json").read_text())
    assert [row["name"] for row in record["layer"]] == ["CIFAR-ViT Linear"]
    said = " ".join(capsys.readouterr().out.split())
    assert "CIFAR 3x3 does not fit into the memory of the GPU and is left out" in said
    assert "try --dtype bfloat16" in said


@pytest.mark.slow
def test_growth_is_measured_and_drawn(tmp_path):
    out = str(tmp_path)
    arguments = ["bench", "--quick", "--sections", "growth", "--out", out]
    assert cli.main([*arguments, "--only", "kernel"]) == 0
    record = json.loads((tmp_path / "bench.json").read_text())
    assert [row["kernel"] for row in record["growth"]["kernel"]] == [3, 5]
    for name in ("growth-ms.png", "growth-memory.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_launches_are_counted_and_only_their_section_is_written(tmp_path, capsys):
    before = {"kind": "bench", "layer": [{"name": "x"}], "environment": {"date": "once"}}
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(before))
    command = ["bench", "--launches", "--only", "linear"]
    assert cli.main([*command, "--out", str(tmp_path)]) == 0
    record = json.loads(path.read_text())
    (row,) = record.pop("launches")["stems"]
    assert row["accelerator"]["method"] == "by large chunks"
    assert record == before
    assert "was never run on CUDA" in capsys.readouterr().out
    path.write_text("{}")
    assert cli.main([*command, "--out", str(tmp_path)]) == 2
    assert "is not a record of trainact bench" in capsys.readouterr().err


def test_counting_some_stems_again_keeps_the_others(tmp_path, capsys):
    command = ["bench", "--launches", "--out", str(tmp_path), "--only"]
    assert cli.main([*command, "cifar"]) == 0
    path = tmp_path / "bench.json"
    before = json.loads(path.read_text())
    stems = before["launches"]["stems"]
    before["launches"]["stems"] = [stems[0], stems[1] | {"methods": {}}]
    path.write_text(json.dumps(before))
    assert cli.main([*command, "linear"]) == 0
    assert json.loads(path.read_text())["launches"]["stems"] == stems
    before["launches"]["torch"] = "1.0"
    path.write_text(json.dumps(before))
    capsys.readouterr()
    assert cli.main([*command, "linear"]) == 2
    assert "counted with torch 1.0, and this is" in capsys.readouterr().err
    assert json.loads(path.read_text()) == before


def test_launches_of_a_model_by_name(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    assert cli.main(["bench", "--launches", "--model", "timm:test_vit"]) == 0
    shown = capsys.readouterr().out
    assert "timm:test_vit at batch 128" in shown
    assert "patch_embed" in shown
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_calibration_prints_costs_and_choices(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    assert cli.main(["bench", "--calibrate", "--quick", "--only", "linear"]) == 0
    shown = capsys.readouterr().out
    assert "line_product" in shown
    assert "250,000" in shown
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sections", "speed"], "--sections 'speed': use one or more of layer, step, growth"),
        (["--device", "cuda:77"], "--device 'cuda:77' cannot be used here"),
        (["--model", "resnet18"], "--model belongs to --launches: add --launches"),
        (["--calibrate", "--zoo"], "--zoo and --calibrate do different things: choose one"),
        (["--calibrate"], "--calibrate only prints and writes no record: remove --out"),
        (["--device", "toaster"], "--device 'toaster' cannot be used here"),
    ],
)
def test_bad_options_end_with_one_line_and_exit_code_2(arguments, message, capsys, tmp_path):
    assert cli.main(["bench", *arguments, "--out", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.slow
def test_jax_is_measured_on_the_same_layers(tmp_path, capsys):
    for package in ("jaxlib", "flax", "optax"):
        pytest.importorskip(package, reason=f"bench --jax needs {package}")
    words = ["bench", "--jax", "--quick", "--out", str(tmp_path)]
    assert cli.main([*words, "--sections", "layer", "--only", "cifar"]) == 0
    record = json.loads((tmp_path / "jax.json").read_text())
    assert record["kind"] == "bench-jax"
    assert {"jax", "jaxlib", "flax", "torch"} <= set(record["environment"]["packages"])
    assert [row["name"] for row in record["layer"]] == ["CIFAR 3x3", "CIFAR-ViT Linear"]
    for row in record["layer"]:
        assert row["trainact_over_plain"]["count"] == 5
        assert 0 < row["extra_bytes"] <= 2.5 * row["input_bytes"]
    assert "CIFAR 3x3" in capsys.readouterr().out


@pytest.mark.slow
def test_steps_of_jax_are_measured(tmp_path):
    for package in ("jaxlib", "flax", "optax"):
        pytest.importorskip(package, reason=f"bench --jax needs {package}")
    words = ["bench", "--jax", "--quick", "--out", str(tmp_path), "--sections", "step"]
    assert cli.main([*words, "--only", "ViT"]) == 0
    record = json.loads((tmp_path / "jax.json").read_text())
    assert [row["name"] for row in record["step"]] == ["ViT-S/16 at 224, batch 4"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--jax", "--zoo"], "--zoo and --jax do different things: choose one of them."),
        (["--jax", "--dtype", "float64"], "--jax measures float32 or bfloat16: choose one of them"),
        (["--jax", "--compile"], "--jax always compiles, and runs on JAX's default device"),
        (["--jax", "--device", "cuda"], "--jax always compiles, and runs on JAX's default device"),
    ],
)
def test_options_that_do_not_go_with_jax_are_refused(words, message, capsys):
    assert cli.main(["bench", *words]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
