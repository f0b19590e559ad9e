"""The page on one experiment of a report."""

import pytest

from comparison_records import make_record
from result_folders import find_chapter, make_faithful, write_record, write_tuning

pytest.importorskip("matplotlib", reason="pictures need matplotlib")
pytest.importorskip("rich", reason="terminal tables need rich")

from trainact.lab.analysis.studies import find_studies
from trainact.lab.report.chapters import ChapterId, Picture
from trainact.lab.report.experiment_page import make_page
from trainact.lab.report.experiments_report import read_report

OWN, TABLE = "cifar10-cpu-resnet-sgd", "cifar100-table"
ARMS = ("plain", "tract-0.1")


def test_arms_that_differ_in_more_than_tract_are_refused(tmp_path):
    for arm in ARMS:
        record = make_record(arm, 2, 0, 60)
        record["recipe"]["optimizer"]["lr"] = 0.08 if arm == "plain" else 0.01
        write_record(tmp_path / OWN, record)
    (page,) = read_report([tmp_path]).pages
    assert "do not share a recipe at 2 epochs" in page.problem
    assert "optimizer.lr 0.01 (plain: 0.08)" in page.problem


def test_an_arm_may_be_compared_with_an_arm_other_than_plain(tmp_path):
    name, arm = "cifar10-resnet18-adam-sgd", "sgd-first tract-0.1"
    for seed in (0, 1):
        for one, accuracy in (("plain", 80), ("tract-0.1", 82), (arm, 83 + seed)):
            write_record(
                tmp_path / name, make_faithful(name, make_record(one, 100, seed, accuracy))
            )
    (page,) = read_report([tmp_path]).pages
    chapter = find_chapter(page, ChapterId.ACCURACY)
    (row,) = chapter.grids[1].rows
    assert row[:3] == (arm, "TrAct λ=0.1", "100")
    assert row[3].startswith("+1.50 [")


def test_the_page_says_what_is_left_and_lists_runs_beyond_the_recipes(tmp_path):
    name = "imagenette-cpu-vit"
    for arm in ARMS:
        for seed in (0, 3, 4):
            record = make_faithful(name, make_record(arm, 24, seed, 40))
            write_record(tmp_path / name, record)
    (page,) = read_report([tmp_path]).pages
    assert page.description[-1] == "2 of the recipe's 12 runs are done."
    command = find_chapter(page, ChapterId.REPRODUCE).command
    assert command.endswith("--epochs 24 --seeds 3,4 --arms plain,tract-0.1")


def test_the_tuning_command_names_the_budgets_that_were_tuned(tmp_path):
    name = "cifar10-speed"
    for arm in ARMS:
        write_record(tmp_path / name, make_faithful(name, make_record(arm, 5, 0, 40)))
    write_tuning(tmp_path / name)
    (page,) = read_report([tmp_path]).pages
    command = find_chapter(page, ChapterId.REPRODUCE).command
    assert command.splitlines()[0] == f"trainact tune {name} --epochs 2,4"


def test_networks_in_separate_folders_belong_to_one_recipe(tmp_path):
    for network in ("vgg16", "resnet18"):
        for arm in ARMS:
            record = make_record(arm, 200, 0, 70, model__name=f"lab:{network}")
            write_record(tmp_path / TABLE / network, record)
    pages = read_report([tmp_path]).pages
    assert [page.study.key for page in pages] == [f"{TABLE}-resnet18", f"{TABLE}-vgg16"]
    chapter = find_chapter(pages[1], ChapterId.PAPER)
    assert chapter.grids[0].rows[0][6] == "72.12 ± 0.24"
    assert [c.pictures for c in pages[1].chapters if c.pictures] == [(Picture.ACCURACY,)]


def test_an_arm_with_another_network_may_have_other_initial_weights(tmp_path):
    name = "cifar10-vit-norms"
    for arm in (*ARMS, "dual-patch-norm"):
        record = make_faithful(name, make_record(arm, 100, 0, 60))
        if arm == "dual-patch-norm":
            record["model"]["initial_weights"] = "of more layers"
        write_record(tmp_path / name, record)
    studies, _ = find_studies([tmp_path])
    page = make_page(studies[0])
    assert [d.arm.name for d in page.answers.differences] == ["tract-0.1", "dual-patch-norm"]
    studies[0].records[-1]["model"]["initial_weights"] = "others"
    assert "they differ in initial weights" in make_page(studies[0]).problem
