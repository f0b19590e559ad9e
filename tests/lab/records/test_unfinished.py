"""Messages about unfinished runs that a new run does not continue."""

import pytest

from lab_helpers import (
    InterruptedRunError,
    ignore,
    make_quick,
    stop_after,
)
from trainact.lab.records.record import RunFolder
from trainact.lab.records.unfinished import describe_unfinished
from trainact.lab.running.plan import PlannedRun
from trainact.lab.running.runner import do_run
from trainact.lab.training import train as train_module
from trainact.lab.training.train import train

SMALL_VIT = {
    "model__name": "lab:vit-cifar",
    "model__arguments": {"width": 24, "depth": 1, "heads": 2},
    "data__train_images": 128,
}


@pytest.fixture(autouse=True)
def _often(monkeypatch):
    monkeypatch.setattr(train_module, "REPORT_EVERY", 2)


def leave_unfinished(recipe, root):
    with pytest.raises(InterruptedRunError):
        train(recipe, root, stop_after([3]))


def describe(recipe, root):
    return describe_unfinished(RunFolder(root, recipe))


def test_the_setting_that_keeps_a_run_from_being_continued_is_named(tmp_path):
    begun = make_quick(run__precision="bf16", run__accumulation=2)
    leave_unfinished(begun, tmp_path)
    assert describe(begun, tmp_path) == []
    [message] = describe(make_quick(run__precision="bf16"), tmp_path)
    name = RunFolder(tmp_path, begun).path.name
    assert message == (
        "starts from the beginning: an unfinished run has run.accumulation=2, this one "
        f"run.accumulation=1; give run.accumulation=2 to continue that one ({name})"
    )
    [message] = describe(make_quick(run__compile=True), tmp_path)
    assert (
        "has run.accumulation=2 and run.compile=false and run.precision=bf16, this one" in message
    )


def test_an_argument_of_the_network_that_one_run_lacks_is_named(tmp_path):
    begun = make_quick(model__name="small_models:make_tiny", model__arguments={"width": 16})
    leave_unfinished(begun, tmp_path)
    [message] = describe(make_quick(model__name="small_models:make_tiny"), tmp_path)
    assert "has model.arguments.width=16, this one no model.arguments.width; give" in message


def test_an_unfinished_run_whose_recipe_is_damaged_is_not_mentioned(tmp_path):
    begun = make_quick(run__accumulation=2)
    leave_unfinished(begun, tmp_path)
    recipe = RunFolder(tmp_path, begun).path / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("accumulation = 2", 'accumulation = "two"'))
    assert describe(make_quick(), tmp_path) == []


def test_other_experiments_and_finished_runs_are_not_mentioned(tmp_path):
    leave_unfinished(make_quick(optimizer__lr=0.2), tmp_path)
    far = {"optimizer__name": "adam", "optimizer__lr": 1e-3, "run__ema": 0.9, "data__flip": False}
    assert describe(make_quick(**far), tmp_path) == []
    assert describe(make_quick(run__seed=1), tmp_path) == []
    assert describe(make_quick(schedule__epochs=4), tmp_path) == []
    assert len(describe(make_quick(), tmp_path)) == 1
    train(make_quick(optimizer__lr=0.2), tmp_path, ignore)
    assert describe(make_quick(), tmp_path) == []


def test_a_folder_that_cannot_be_read_is_passed_over(tmp_path):
    begun = make_quick(run__precision="bf16")
    leave_unfinished(begun, tmp_path)
    (RunFolder(tmp_path, begun).path / "recipe.toml").write_text("[data")
    assert describe(make_quick(), tmp_path) == []


def test_micro_batches_of_a_network_without_batch_norm_continue_the_run(tmp_path):
    split, whole = (make_quick(**SMALL_VIT, run__accumulation=n) for n in (4, 1))
    leave_unfinished(split, tmp_path)
    events = []
    result = do_run(PlannedRun(whole, tmp_path), events.append, train_module.load_data)
    assert result.failure is None
    notes = [event.text for event in events if event.kind == "note"]
    assert notes[0] == "continues with run.accumulation=1 (before: run.accumulation=4)"
    assert any(note.startswith("resumed in epoch") for note in notes)
    assert result.record["sessions"] == 2
    assert result.record["recipe"]["run"]["accumulation"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("enabled", [False, True], ids=["plain", "tract"])
def test_micro_batches_of_such_a_network_change_only_rounding(tmp_path, enabled):
    """Which is why its recipes share an identity."""
    records = [
        train(
            make_quick(**SMALL_VIT, run__accumulation=parts, tract__enabled=enabled),
            tmp_path / str(parts),
            ignore,
        )
        for parts in (1, 4)
    ]
    assert records[0]["recipe_id"] == records[1]["recipe_id"]
    for one, other in zip(*(record["epochs"] for record in records), strict=True):
        assert one["train_loss"] == pytest.approx(other["train_loss"], rel=1e-4)
        assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-3)
