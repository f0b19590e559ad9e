"""Tables of a comparison: accuracy and secondary metrics."""

import pytest

from comparison_records import diverge, make_record, make_study

pytest.importorskip("rich", reason="the lab's tables need rich")

from trainact.lab.analysis.answers import answer
from trainact.lab.report.grid import render_text
from trainact.lab.report.tables import make_accuracy_grid, make_secondary_grid, print_accuracy


def test_the_main_table_has_its_columns(capsys):
    study = make_study(arms=("plain", "tract-0.1", "lr-10"), budgets=(2, 4), seeds=(0, 1))
    answers = answer([*study[:-1], diverge(study[-1], 2)])
    grid = make_accuracy_grid(answers)
    columns = ("arm", "epochs", "accuracy, %", "n", "difference to plain", "time per epoch")
    assert grid.head == columns
    assert [row[:2] for row in grid.rows[:2]] == [("plain", "2"), ("TrAct λ=0.1", "2")]
    assert grid.rows[-1][3] == "1 (1 diverged)"
    assert make_accuracy_grid(answer(study, jobs=0)).head == columns[:-1]  # who knows what else ran
    print_accuracy(answers)
    assert capsys.readouterr().out == render_text(grid) + "\n"


def make_runs(**last):
    """Return runs of two arms, two seeds each, with these secondary metrics in the last epoch."""
    records = []
    for arm in ("tract-0.1", "plain"):
        for seed in (0, 1):
            record = make_record(arm, 2, seed, 50.0, data__classes=1000)
            record["epochs"][-1] |= {name: part[arm][seed] for name, part in last.items()}
            records.append(record)
    return records


def test_top_5_is_the_mean_over_seeds_of_the_last_epoch():
    grid = make_secondary_grid(
        make_runs(test_top5={"plain": (1500, 1600), "tract-0.1": (1700, 1800)})
    )
    assert grid.head == ("arm", "epochs", "top-5, %")
    assert grid.rows == (("plain", "2", "77.50"), ("TrAct λ=0.1", "2", "87.50"))


def test_averaged_weights_are_shown_if_every_run_recorded_them():
    records = make_runs(ema_correct={"plain": (1000, 1000), "tract-0.1": (1200, 1200)})
    grid = make_secondary_grid(records)
    assert grid.head[-1] == "accuracy of averaged weights (EMA), %"
    assert [row[-1] for row in grid.rows] == ["50.00", "60.00"]
    del records[0]["epochs"][-1]["ema_correct"]
    assert "EMA" not in str(make_secondary_grid(records).head)


def test_nothing_is_shown_for_few_classes_or_diverged_runs():
    few = [{**record, "data": {"classes": 10}} for record in make_runs()]
    assert not make_secondary_grid(few).rows
    lost = [{**record, "status": "diverged", "epochs": []} for record in make_runs()]
    assert not make_secondary_grid(lost).rows
