"""How far a run is: one object changes it, and checkpoints keep it."""

import ast
from pathlib import Path

import torch

import trainact.lab.training
from trainact.lab.records.checkpoint import load_checkpoint, save_checkpoint
from trainact.lab.training.progress import TOTALS, Progress

CPU = torch.device("cpu")
KEYS = {"epoch", "step", "seconds", "sessions", "order", "history", "totals", "environments"}


def advance(progress: Progress) -> None:
    for step in range(1, 4):
        progress.add_step(torch.full((len(TOTALS),), 0.5), seconds=float(step))


def test_steps_add_up_and_an_epoch_starts_again_at_zero():
    progress = Progress(CPU, {})
    advance(progress)
    assert (progress.epoch, progress.step, progress.seconds) == (0, 3, 3.0)
    assert progress.totals.tolist() == [1.5] * len(TOTALS)
    assert progress.totals.dtype == torch.float64
    progress.finish_epoch({"train_loss": 1.0}, "digest")
    assert (progress.epoch, progress.step, progress.seconds, progress.order) == (1, 0, 0, "digest")
    assert progress.totals.tolist() == [0] * len(TOTALS)
    assert progress.history == [{"train_loss": 1.0}]


def test_a_checkpoint_keeps_the_progress_and_all_sessions(tmp_path):
    first, second = {"commit": "a"}, {"commit": "b"}
    progress, resumed = Progress(CPU, first), Progress(CPU, second)
    advance(progress)
    progress.finish_epoch({"train_loss": 1.0}, "digest")
    advance(progress)
    assert set(progress.state()) == KEYS
    save_checkpoint(tmp_path, 1, progress.state())
    resumed.load(load_checkpoint(tmp_path, print))
    before, after = progress.state(), resumed.state()
    assert after.pop("totals").tolist() == before.pop("totals").tolist()
    assert after == before | {"sessions": 2, "environments": [first, second]}


def test_a_checkpoint_of_an_earlier_version_can_be_loaded():
    state = Progress(CPU, {}).state()
    del state["environments"]
    resumed = Progress(CPU, {"commit": "b"})
    resumed.load(state)
    assert (resumed.sessions, resumed.environments) == (2, [{"commit": "b"}])


def test_nothing_else_in_training_changes_the_progress():
    """No assignment to an attribute of these names outside of the class.

    A user's own loop has no such progress.
    """
    for file in Path(trainact.lab.training.__file__).parent.rglob("*.py"):
        if file.name == "progress.py" or file.parent.name == "own_loop":
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                assert node.attr not in KEYS, f"{file.name}, line {node.lineno}"
