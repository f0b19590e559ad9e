"""What is summed over an epoch, when several ranks save it and another number loads it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trainact.lab.training import saving
from trainact.lab.training.progress import TOTALS, Progress
from trainact.lab.training.saving import Saver


class Part:
    """A session that keeps nothing."""

    recipe = SimpleNamespace(run=SimpleNamespace(checkpoint_seconds=0.0))
    batches = SimpleNamespace(steps=10)

    def __init__(self, rank: int, ranks: int) -> None:
        self.accelerator = SimpleNamespace(
            num_processes=ranks, process_index=rank, is_main_process=rank == 0
        )

    def state(self) -> dict[str, Any]:
        return {}

    def load(self, state: dict[str, Any]) -> None:
        del state


def make_saver(rank: int, ranks: int, folder: Path) -> Saver:
    session: Any = Part(rank, ranks)
    return Saver(session, Progress(torch.device("cpu"), {}), folder)


@pytest.mark.parametrize(
    ("ranks", "loaded"), [(2, [1.5, 2.25]), (1, [3.75]), (3, [3.75, 0.0, 0.0])]
)
def test_each_rank_continues_with_its_own_totals(tmp_path, monkeypatch, ranks, loaded):
    first = make_saver(0, 2, tmp_path)
    first.progress.totals += 1.5
    rows = [first.progress.totals.tolist(), [2.25] * len(TOTALS)]
    monkeypatch.setattr(
        saving, "gather_object", lambda values: rows if values == rows[:1] else values
    )
    first.save_if_due()
    state = saving.load_checkpoint(tmp_path, pytest.fail)
    assert state is not None
    found = []
    for rank in range(ranks):
        saver = make_saver(rank, ranks, tmp_path)
        saver.load(state)
        found.append(saver.progress.totals.tolist())
    assert found == [[value] * len(TOTALS) for value in loaded]
