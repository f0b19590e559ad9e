"""trainact figure1: the command."""

import json

import pytest

pytest.importorskip("matplotlib", reason="pictures need matplotlib")

from trainact.lab.commands import cli


def test_the_command_writes_a_picture_and_a_record(tmp_path, capsys):
    command = ["figure1", "--data", "photos", "--seeds", "0", "--out", str(tmp_path)]
    assert cli.main([*command, "data.train_images=160", "data.test_images=80"]) == 0
    assert (tmp_path / "figure1.png").read_bytes().startswith(b"\x89PNG")
    record = json.loads((tmp_path / "figure1.json").read_text())
    assert record["environment"]["packages"]["torch"]
    assert record["data"]["name"] == "photos"
    assert record["caption"] in capsys.readouterr().out


def test_missing_data_are_refused(tmp_path, capsys):
    assert cli.main(["figure1", "--data", str(tmp_path / "none"), "--out", str(tmp_path)]) == 2
    assert "there is no file or folder" in capsys.readouterr().err
