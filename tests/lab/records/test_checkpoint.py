"""Checkpoints: any state of tensors and numbers, the newest two files, damage noticed."""

import hashlib

import pytest
import safetensors.torch
import torch

from trainact.errors import TrActTypeError
from trainact.lab.records.checkpoint import load_checkpoint, remove_checkpoints, save_checkpoint


def test_a_state_is_loaded_as_it_was_saved(tmp_path):
    state = {
        "model": {"weight": torch.rand(2, 3), "steps": torch.tensor(3)},
        "list": [1, 2.5, None, True, "text", (1, torch.zeros(0))],
        7: {"empty": {}},
    }
    save_checkpoint(tmp_path, 5, state)
    loaded = load_checkpoint(tmp_path, pytest.fail)
    assert torch.equal(loaded["model"]["weight"], state["model"]["weight"])
    assert torch.equal(loaded["model"]["steps"], state["model"]["steps"])
    assert loaded["list"][:5] == state["list"][:5]
    assert isinstance(loaded["list"][5], tuple)
    assert loaded[7] == {"empty": {}}


def test_the_newest_two_are_kept_until_the_run_ends(tmp_path):
    assert load_checkpoint(tmp_path, pytest.fail) is None
    paths = [save_checkpoint(tmp_path, step, {"step": step}) for step in (1, 2, 10)]
    assert sorted(tmp_path.iterdir()) == paths[1:]
    assert load_checkpoint(tmp_path, pytest.fail) == {"step": 10}
    remove_checkpoints(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_checkpoint_is_set_aside_for_the_one_before(tmp_path):
    save_checkpoint(tmp_path, 1, {"step": 1})
    newest = save_checkpoint(tmp_path, 2, {"step": 2})
    newest.write_bytes(newest.read_bytes()[:-1] + b"?")
    notes = []
    assert load_checkpoint(tmp_path, notes.append) == {"step": 1}
    damaged = f"{newest.name}.damaged-1"
    assert notes == [f"checkpoint {newest.name} is damaged; it is kept as {damaged} and not used"]
    remove_checkpoints(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [damaged]


def test_what_would_need_pickling_is_refused(tmp_path):
    with pytest.raises(TrActTypeError, match=r"state\.model\.0 of a checkpoint is a set"):
        save_checkpoint(tmp_path, 1, {"model": [{1}]})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"no tensors", safetensors.torch.save({})])
def test_a_file_of_others_with_a_fitting_name_is_set_aside(tmp_path, content):
    digest = hashlib.sha256(content).hexdigest()[:16]
    save_checkpoint(tmp_path, 1, {"step": 1})
    (tmp_path / f"checkpoint-000000002-{digest}.safetensors").write_bytes(content)
    (tmp_path / f"checkpoint-000000003-{digest}.safetensors").mkdir()
    notes = []
    assert load_checkpoint(tmp_path, notes.append) == {"step": 1}
    assert [note[:30] for note in notes] == [
        f"checkpoint checkpoint-00000000{i}"[:30] for i in (3, 2)
    ]
    assert len(list(tmp_path.glob("*.damaged-1"))) == 2
