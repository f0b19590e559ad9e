"""What a report tells besides accuracy, and the command that it says repeats the runs."""

import pytest

from comparison_records import make_record

pytest.importorskip("rich", reason="the lab's tables need rich")

from trainact.lab.report.besides import make_besides_grid


def make_runs(**last):
    """Return runs of two arms, two seeds each, whose last epochs have these numbers besides."""
    records = []
    for arm in ("tract-0.1", "plain"):
        for seed in (0, 1):
            record = make_record(arm, 2, seed, 50.0, data__classes=1000)
            record["epochs"][-1] |= {name: part[arm][seed] for name, part in last.items()}
            records.append(record)
    return records


def test_top_5_is_the_mean_over_seeds_of_the_last_epoch():
    grid = make_besides_grid(
        make_runs(test_top5={"plain": (1500, 1600), "tract-0.1": (1700, 1800)})
    )
    assert grid.head == ("arm", "epochs", "top-5, %")
    assert grid.rows == (("plain", "2", "77.50"), ("TrAct λ=0.1", "2", "87.50"))


def test_averaged_weights_are_told_where_every_run_has_them():
    records = make_runs(ema_correct={"plain": (1000, 1000), "tract-0.1": (1200, 1200)})
    grid = make_besides_grid(records)
    assert grid.head[-1] == "accuracy of averaged weights (EMA), %"
    assert [row[-1] for row in grid.rows] == ["50.00", "60.00"]
    del records[0]["epochs"][-1]["ema_correct"]
    assert "EMA" not in str(make_besides_grid(records).head)


def test_of_few_classes_and_of_diverged_runs_nothing_is_told():
    few = [{**record, "data": {"classes": 10}} for record in make_runs()]
    assert not make_besides_grid(few).rows
    lost = [{**record, "status": "diverged", "epochs": []} for record in make_runs()]
    assert not make_besides_grid(lost).rows
