"""trainact report: from folders of results to pages, nothing mixed and nothing lost."""

import json
import re

import pytest

from comparison_records import diverge, make_record, make_study
from html_page import Page
from result_folders import make_faithful, write_record, write_study, write_tuning

pytest.importorskip("matplotlib", reason="pictures need matplotlib")
pytest.importorskip("rich", reason="terminal tables need rich")

from trainact.errors import TrActValueError
from trainact.lab.analysis.answers import answer
from trainact.lab.analysis.studies import find_studies
from trainact.lab.commands import cli
from trainact.lab.records.failures import write_failure
from trainact.lab.report.chapters import ChapterId, Picture
from trainact.lab.report.experiment_page import make_page
from trainact.lab.report.experiments_report import read_report, render_markdown_report
from trainact.lab.report.wording import SMOKE_WARNING

OWN, VIT, TABLE = "cifar10-cpu-resnet-sgd", "cifar10-vit", "cifar100-table"
ARMS = ("plain", "tract-0.1")


def find_chapter(page, id):
    (chapter,) = [chapter for chapter in page.chapters if chapter.id is id]
    return chapter


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Two experiments and a smoke run, one of them with everything that can go wrong."""
    root = tmp_path_factory.mktemp("results")
    write_study(root / OWN, arms=(*ARMS, "lr-10"), budgets=(2, 4), seeds=(0, 1))
    write_record(root / OWN, diverge(make_record("lr-10", 4, 2, 40)))
    write_tuning(root / OWN)
    lost = root / OWN / "runs" / "tract-0.1-4ep-seed7-0123456789"
    lost.mkdir()
    (lost / "recipe.toml").write_text(
        '[schedule]\nepochs = 4\n[run]\nseed = 7\narm = "tract-0.1"\n'
    )
    write_study(root / VIT, arms=ARMS, budgets=(2, 100), seeds=(0, 1))
    for arm in ARMS:
        write_record(root / "photos", make_record(arm, 1, 0, [20.0], kind="smoke"))
    return root


@pytest.fixture(scope="module")
def folder(results, tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    assert cli.main(["report", str(results), "--out", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def text(folder):
    return (folder / "report.html").read_text()


@pytest.fixture(scope="module")
def markdown(folder):
    return (folder / "report.md").read_text()


def test_one_page_holds_all_experiments_and_stands_alone(text):
    page = Page(text)
    assert page.faults == []
    assert page.open == []
    assert not {"script", "link", "iframe", "object"} & {tag for tag, _ in page.tags}
    assert all(image["src"].startswith("data:image/svg") for image in page.find("img"))
    assert not re.search(r"https?:|url\(|@import", text)
    assert len(page.find("h1")) == 1
    assert len(page.find("article")) == 3


def test_the_contents_lead_to_every_part(text):
    page = Page(text)
    targets = [link["href"].removeprefix("#") for link in page.find("a")]
    assert targets == ["overview", OWN, VIT, "claims", "photos-smoke"]
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert sorted(ids) == sorted(targets)


def test_every_experiment_has_its_pictures(folder, markdown):
    named = set(re.findall(r"\]\((.*?\.png)\)", markdown))
    assert named == {str(path.relative_to(folder)) for path in folder.rglob("*.png")}
    three = {"accuracy.png", "budgets.png", "gradients.png"}
    assert {path.name for path in (folder / OWN).iterdir()} == three
    assert {path.name for path in (folder / "photos-smoke").iterdir()} == three - {"budgets.png"}


def test_smoke_runs_stand_apart_under_large_letters(text, markdown):
    assert text.count(f'<p class="smoke">{SMOKE_WARNING}</p>') == 1
    assert text.index(f'<p class="smoke">{SMOKE_WARNING}') > text.index('<div id="claims">')
    overview = text[text.index('<div id="overview">') : text.index("<article")]
    assert "photos" not in overview
    assert markdown.index(f"\n# {SMOKE_WARNING}") > markdown.index("## Claims of the paper")


def test_runs_that_did_not_end_well_are_listed(text, markdown):
    for page in (text, markdown):
        assert "lr-10, 4 epochs, seed 2: the loss is NaN in epoch 2, step 12" in page
        assert "tract-0.1, 4 epochs, seed 7 (tract-0.1-4ep-seed7-0123456789)" in page
        assert "Interrupted or still running" in page


def test_what_was_tried_and_chosen_is_a_table(markdown):
    assert "### Learning-rate tuning" in markdown
    assert "| optimizer.lr | 4 | 0.08 | 60.00 | chosen | 1 | - |" in markdown
    assert "| optimizer.lr | 4 | 0.16 | diverged |  | 1 | - |" in markdown


def test_the_numbers_are_those_of_the_comparison(results, markdown):
    studies, damages = find_studies([results])
    assert damages == []
    own = next(study for study in studies if study.name == OWN)
    difference = answer(own.records).differences[-1]
    assert f"{difference.mean:+.2f}" in markdown
    assert "Whether other processes used the machine was not recorded" in markdown


def test_printed_values_stand_beside_measured_ones(tmp_path):
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


def test_a_figure_without_numbers_is_named(results):
    page = next(page for page in read_report([results]).pages if page.study.name == VIT)
    chapter = find_chapter(page, ChapterId.PAPER)
    assert "Figure 4 (fig:vit-cifar-10)" in chapter.sentences[0]
    assert [row[2:6] for row in chapter.grids[0].rows] == [
        ("seconds of training", "-", "0", "-")
    ] * 2


def test_claims_are_judged_where_records_allow_it(tmp_path):
    for budget, plain, tract in ((200, 60.0, 66.0), (400, 65.0, 70.0)):
        for arm, accuracy in (("plain", plain), ("tract-0.1", tract)):
            record = make_faithful(VIT, make_record(arm, budget, 0, accuracy))
            write_record(tmp_path / VIT, record)
    assert cli.main(["report", str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    markdown = (tmp_path / "out" / "report.md").read_text()
    claim = "TrAct after 200 epochs is comparable to plain after 400"
    (row,) = [line for line in markdown.splitlines() if claim in line]
    assert "| confirmed |" in row
    assert "claims need runs that are missing" in markdown


def test_runs_that_are_not_the_recipes_are_not_held_against_the_paper(tmp_path):
    for budget, plain, tract in ((200, 60.0, 66.0), (400, 65.0, 70.0)):
        for arm, accuracy in (("plain", plain), ("tract-0.1", tract)):
            record = make_faithful(VIT, make_record(arm, budget, 0, accuracy))
            record["recipe"]["data"]["train_images"] = 500
            record["recipe"]["run"]["precision"] = "bf16"  # is its user's choice
            write_record(tmp_path / VIT, record)
    report = read_report([tmp_path])
    chapter = find_chapter(report.pages[0], ChapterId.PAPER)
    assert chapter.sentences[1] == (
        f"4 of 4 runs do not follow the recipe {VIT} and are not compared with the paper. "
        "They have data.train_images 500 (expected: 0)."
    )
    assert "There are no runs of an experiment of the paper." in render_markdown_report(report)
    assert not chapter.grids  # the paper prints none of these


def test_of_many_runs_only_the_recipes_are_counted_beside_the_paper(tmp_path):
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


def test_arms_that_differ_in_more_than_tract_are_refused(tmp_path):
    for arm in ARMS:
        record = make_record(arm, 2, 0, 60)
        record["recipe"]["optimizer"]["lr"] = 0.08 if arm == "plain" else 0.01
        write_record(tmp_path / OWN, record)
    (page,) = read_report([tmp_path]).pages
    assert "do not share a recipe at 2 epochs" in page.problem
    assert "optimizer.lr 0.01 (plain: 0.08)" in page.problem


def test_an_arm_may_be_compared_with_another_than_plain(tmp_path):
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


def test_networks_in_folders_of_their_own_belong_to_one_recipe(tmp_path):
    for network in ("vgg16", "resnet18"):
        for arm in ARMS:
            record = make_record(arm, 200, 0, 70, model__name=f"lab:{network}")
            write_record(tmp_path / TABLE / network, record)
    pages = read_report([tmp_path]).pages
    assert [page.study.key for page in pages] == [f"{TABLE}-resnet18", f"{TABLE}-vgg16"]
    chapter = find_chapter(pages[1], ChapterId.PAPER)
    assert chapter.grids[0].rows[0][6] == "72.12 ± 0.24"
    assert [c.pictures for c in pages[1].chapters if c.pictures] == [(Picture.ACCURACY,)]


def test_an_arm_with_another_network_begins_with_other_weights(tmp_path):
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


def test_damaged_records_are_named_and_left_out(results, tmp_path, capsys):
    damaged = write_record(tmp_path / OWN, make_record("plain", 4, 0, 60)) / "record.json"
    damaged.write_text(damaged.read_text().replace('"budget": 4', '"budget": 5'))
    (tmp_path / OWN / "tuning").mkdir()
    (tmp_path / OWN / "tuning" / "tuning.json").write_text('{"tried": [{}]}')
    write_record(tmp_path / OWN, make_record("plain", 2, 0, 50))
    assert cli.main(["report", str(tmp_path), "--out", str(tmp_path / "out")]) == 1
    told = capsys.readouterr().err
    assert f"skipped: {damaged} is not as it was written" in told
    assert "tuning.json was not written by trainact tune" in told
    markdown = (tmp_path / "out" / "report.md").read_text()
    assert "## Damaged records" in markdown
    assert f"{damaged}" in markdown
    assert "1 experiment, 1 finished run" in markdown


def test_records_that_do_not_belong_together_leave_the_other_experiments(tmp_path, capsys):
    write_study(tmp_path / VIT, arms=ARMS, budgets=(2,), seeds=(0,))
    for rate in (0.1, 0.2):
        record = make_record("plain", 4, int(10 * rate), 60)
        record["recipe"]["optimizer"]["lr"] = rate
        write_record(tmp_path / OWN, record)
    assert cli.main(["report", str(tmp_path), "--out", str(tmp_path / "out")]) == 1
    assert f"{OWN}: runs of plain with 4 epochs do not share a recipe" in capsys.readouterr().err
    markdown = (tmp_path / "out" / "report.md").read_text()
    assert "These records cannot be compared." in markdown
    assert "CIFAR-10, ViT, Adam" in markdown


def test_empty_and_missing_folders_are_refused(tmp_path, capsys):
    assert cli.main(["report", str(tmp_path)]) == 2
    assert "there is no record of a run below" in capsys.readouterr().err
    with pytest.raises(TrActValueError, match="is not a folder"):
        find_studies([tmp_path / "nowhere"])
    assert list(tmp_path.iterdir()) == []


def test_only_interrupted_runs_make_a_page_that_says_so(tmp_path):
    run = tmp_path / OWN / "runs" / "plain-2ep-seed0-abc"
    run.mkdir(parents=True)
    (run / "recipe.toml").write_text("")
    write_failure(run, "the disk is full")
    assert cli.main(["report", str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    told = (tmp_path / "out" / "report.md").read_text()
    assert "No run has finished yet" in told
    assert "it failed: the disk is full" in told


def test_the_same_records_give_the_same_bytes(tmp_path):
    write_study(tmp_path / VIT, arms=ARMS, budgets=(2,), seeds=(0,))
    for name in ("one", "two"):
        cli.main(["report", str(tmp_path / VIT), "--out", str(tmp_path / name)])
    for path in (tmp_path / "one").rglob("*.*"):
        assert (
            path.read_bytes()
            == (tmp_path / "two" / path.relative_to(tmp_path / "one")).read_bytes()
        )


def test_strings_of_records_are_never_markup(tmp_path):
    evil = "<script>alert('1')</script>"
    for record in make_study(arms=("plain", evil), budgets=(2,), seeds=(0,)):
        folder = write_record(tmp_path / "mine", record | {"arm": record["arm"].replace("/", "")})
        assert json.loads((folder / "record.json").read_text())["format"] == 1
    cli.main(["report", str(tmp_path / "mine"), "--out", str(tmp_path / "out")])
    for name in ("report.html", "report.md"):
        assert "<script" not in (tmp_path / "out" / name).read_text()
