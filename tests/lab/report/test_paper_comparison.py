"""Measured values next to the paper's, and its claims checked on them."""

import pytest

from comparison_records import make_record
from result_folders import (
    find_chapter,
    make_faithful,
    write_record,
    write_study,
    write_tuning,
)

pytest.importorskip("matplotlib", reason="pictures need matplotlib")
pytest.importorskip("rich", reason="terminal tables need rich")

from trainact.lab.report.chapters import ChapterId
from trainact.lab.report.experiments_report import read_report, render_markdown_report

VIT, TABLE = "cifar10-vit", "cifar100-table"
ARMS = ("plain", "tract-0.1")


def test_measured_and_printed_values_are_in_one_table(tmp_path):
    for arm, accuracy in (("plain", 72.0), ("tract-0.1", 72.5)):
        for seed in (0, 1):
            record = make_record(arm, 200, seed, accuracy + seed, model__name="lab:vgg16")
            write_record(tmp_path / TABLE, make_faithful(TABLE, record))
    (page,) = read_report([tmp_path]).pages
    chapter = find_chapter(page, ChapterId.PAPER)
    rows = {(row[0], row[2]): row[3:] for row in chapter.grids[0].rows}
    assert rows["plain", "top-1, %"] == ("72.50 ± 0.71", "2", "-", "72.12 ± 0.24", "-")
    assert rows["TrAct λ=0.1", "top-1, %"] == (
        *("73.00 ± 0.71", "2", "+0.50 [0.50, 0.50]"),
        *("72.73 ± 0.16", "+0.61"),
    )
    assert rows["TrAct λ=0.1", "top-5, %"][3] == "90.11 ± 0.15"


def test_a_figure_without_numbers_is_named(tmp_path):
    write_study(tmp_path / VIT, arms=ARMS, budgets=(2, 100), seeds=(0, 1))
    (page,) = read_report([tmp_path]).pages
    chapter = find_chapter(page, ChapterId.PAPER)
    assert "Figure 4 (fig:vit-cifar-10)" in chapter.sentences[0]
    assert [row[2:6] for row in chapter.grids[0].rows] == [
        ("seconds of training", "-", "0", "-")
    ] * 2


def test_claims_are_checked_if_their_runs_exist(tmp_path):
    for budget, plain, tract in ((200, 60.0, 66.0), (400, 65.0, 70.0)):
        for arm, accuracy in (("plain", plain), ("tract-0.1", tract)):
            record = make_faithful(VIT, make_record(arm, budget, 0, accuracy))
            write_record(tmp_path / VIT, record)
    markdown = render_markdown_report(read_report([tmp_path]))
    claim = "TrAct after 200 epochs is comparable to plain after 400"
    (row,) = [line for line in markdown.splitlines() if claim in line]
    assert "| confirmed |" in row
    assert "claims need runs that are missing" in markdown


def test_runs_that_deviate_from_the_recipe_are_not_compared(tmp_path):
    for budget, plain, tract in ((200, 60.0, 66.0), (400, 65.0, 70.0)):
        for arm, accuracy in (("plain", plain), ("tract-0.1", tract)):
            record = make_faithful(VIT, make_record(arm, budget, 0, accuracy))
            record["recipe"]["data"]["train_images"] = 500
            record["recipe"]["run"]["precision"] = "bf16"  # does not matter
            write_record(tmp_path / VIT, record)
    report = read_report([tmp_path])
    chapter = find_chapter(report.pages[0], ChapterId.PAPER)
    assert chapter.sentences[1] == (
        f"4 of 4 runs do not follow the recipe {VIT} and are not compared with the paper. "
        "They have data.train_images 500 (expected: 0)."
    )
    assert "There are no runs of an experiment of the paper." in render_markdown_report(report)
    assert not chapter.grids  # the paper prints none of these


def test_only_runs_that_follow_the_recipe_are_counted(tmp_path):
    for seed in (0, 1, 2):
        for arm, accuracy in (("plain", 72.0), ("tract-0.1", 72.5)):
            record = make_record(arm, 200, seed, accuracy + seed, model__name="lab:vgg16")
            record = make_faithful(TABLE, record)
            if seed == 2:
                record["data"]["train_images"] = 1000
            write_record(tmp_path / TABLE, record)
    (page,) = read_report([tmp_path]).pages
    chapter = find_chapter(page, ChapterId.PAPER)
    rows = {(row[0], row[2]): row[3:6] for row in chapter.grids[0].rows}
    assert rows["TrAct λ=0.1", "top-1, %"] == ("73.00 ± 0.71", "2", "+0.50 [0.50, 0.50]")
    assert chapter.sentences[1].endswith("They have training images 1000 (expected: 50000).")


def test_runs_with_tuned_rates_stand_beside_the_paper(tmp_path):
    """Table 2 prints ResNet-50 at 30 epochs; its grid has five rates."""
    name = "imagenet-resnet50"
    for arm, accuracy in (("plain", 70.0), ("tract-0.1", 71.0)):
        record = make_faithful(name, make_record(arm, 30, 0, accuracy))
        record["recipe"]["optimizer"]["lr"] = 0.2
        write_record(tmp_path / name, record)
    (before,) = read_report([tmp_path]).pages
    write_tuning(tmp_path / name, chosen=0.2, budgets=(30,), rates=(0.2, 0.141, 0.1, 0.071, 0.05))
    (page,) = read_report([tmp_path]).pages
    counts = [
        [row[4] for row in find_chapter(one, ChapterId.PAPER).grids[0].rows]
        for one in (before, page)
    ]
    assert counts == [["0"] * 4, ["1"] * 4]
    chosen = "trainact tune chose optimizer.lr 0.2 (recipe: 0.141) at 30 epochs."
    assert chosen in find_chapter(page, ChapterId.PAPER).sentences
