"""trainact report: one HTML page and one Markdown page on all runs below folders."""

import json
import re

import pytest

from comparison_records import diverge, make_record, make_study
from html_page import Page
from result_folders import write_record, write_study, write_tuning

pytest.importorskip("matplotlib", reason="pictures need matplotlib")
pytest.importorskip("rich", reason="terminal tables need rich")

from trainact.errors import TrActValueError
from trainact.lab.analysis.answers import answer
from trainact.lab.analysis.studies import find_studies
from trainact.lab.commands import cli
from trainact.lab.records.record import write_failure
from trainact.lab.report.chapters import ChapterId
from trainact.lab.report.experiments_report import list_overview, make_overview_grid, read_report
from trainact.lab.report.wording import SMOKE_WARNING

OWN, VIT, TABLE = "cifar10-cpu-resnet-sgd", "cifar10-vit", "cifar100-table"
ARMS = ("plain", "tract-0.1")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Two experiments and a smoke run; one has diverged and interrupted runs."""
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


def test_one_self_contained_page_has_all_experiments(text):
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


def test_smoke_runs_are_separate_and_have_a_warning(text, markdown):
    assert text.count(f'<p class="smoke">{SMOKE_WARNING}</p>') == 1
    assert text.index(f'<p class="smoke">{SMOKE_WARNING}') > text.index('<div id="claims">')
    overview = text[text.index('<div id="overview">') : text.index("<article")]
    assert "photos" not in overview
    assert markdown.index(f"\n# {SMOKE_WARNING}") > markdown.index("## Claims of the paper")


def test_diverged_and_interrupted_runs_are_listed(text, markdown):
    for page in (text, markdown):
        assert "lr-10, 4 epochs, seed 2: the loss is NaN in epoch 2, step 12" in page
        assert "tract-0.1, 4 epochs, seed 7 (tract-0.1-4ep-seed7-0123456789)" in page
        assert "Interrupted or still running" in page


def test_the_tuned_values_are_a_table(markdown):
    assert "### Learning-rate tuning" in markdown
    assert "| optimizer.lr | 4 | 0.08 | 60.00 | chosen | 1 | - |" in markdown
    assert "| optimizer.lr | 4 | 0.16 | diverged |  | 1 | - |" in markdown


def test_a_budget_without_tuning_is_named(tmp_path):
    for budget in (2, 4):
        write_record(tmp_path / OWN, make_record("plain", budget, 0, 50))
    write_tuning(tmp_path / OWN, budgets=(2,))
    (page,) = read_report([tmp_path]).pages
    (chapter,) = (c for c in page.chapters if c.id == ChapterId.TUNING)
    assert "Nothing was tuned for runs of 4 epochs." in chapter.notes
    assert not any("2 epochs." in note and "Nothing" in note for note in chapter.notes)


def test_the_numbers_are_those_of_the_comparison(results, markdown):
    studies, damages = find_studies([results])
    assert damages == []
    own = next(study for study in studies if study.name == OWN)
    difference = answer(own.records).differences[-1]
    assert f"{difference.mean:+.2f}" in markdown
    assert "whether other processes used the machine was not recorded" in markdown


def test_the_overview_compares_the_same_seeds(tmp_path):
    for seed, accuracy in enumerate((50, 52, 90)):
        write_record(tmp_path / OWN, make_record("plain", 4, seed, accuracy))
    for seed, accuracy in enumerate((53, 55)):
        write_record(tmp_path / OWN, make_record("tract-0.1", 4, seed, accuracy))
    (row,) = make_overview_grid(list_overview(read_report([tmp_path]).pages)).rows
    assert row[2:6] == ("4", "2", "51.00 ± 1.41", "54.00 ± 1.41")


def test_the_overview_shows_diverged_runs_and_no_single_seed_of_a_larger_budget(tmp_path):
    def read_row():
        (row,) = make_overview_grid(list_overview(read_report([tmp_path]).pages)).rows
        return row[2:7]

    for seed, accuracy in enumerate((50, 52)):
        write_record(tmp_path / OWN, make_record("plain", 4, seed, accuracy))
        write_record(tmp_path / OWN, make_record("tract-0.1", 4, seed, accuracy + 3))
    for arm in ARMS:
        write_record(tmp_path / OWN, make_record(arm, 8, 0, 60))
    assert read_row()[:2] == ("4", "2")
    write_record(tmp_path / OWN, diverge(make_record("tract-0.1", 8, 1, 60), 3))
    assert read_row() == ("8", "1", "60.00", "60.00, 1 diverged", "0.00 [one seed]")
    write_record(tmp_path / OWN, diverge(make_record("tract-0.1", 8, 0, 60), 3))
    assert read_row() == ("8", "0", "-", "diverged", "-")


def test_damaged_records_are_skipped_and_named(results, tmp_path, capsys):
    damaged = write_record(tmp_path / OWN, make_record("plain", 4, 0, 60)) / "record.json"
    damaged.write_text(damaged.read_text().replace('"budget": 4', '"budget": 5'))
    (tmp_path / OWN / "tuning").mkdir()
    (tmp_path / OWN / "tuning" / "tuning.json").write_text('{"tried": [{}]}')
    write_record(tmp_path / OWN, make_record("plain", 2, 0, 50))
    assert cli.main(["report", str(tmp_path), "--out", str(tmp_path / "out")]) == 1
    printed = capsys.readouterr().err
    assert f"skipped: {damaged} is not as it was written" in printed
    assert "tuning.json was not written by trainact tune" in printed
    markdown = (tmp_path / "out" / "report.md").read_text()
    assert "## Damaged records" in markdown
    assert f"{damaged}" in markdown
    assert "1 experiment, 1 finished run" in markdown


def test_records_that_cannot_be_compared_do_not_affect_other_experiments(tmp_path, capsys):
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


def test_interrupted_runs_alone_make_a_page(tmp_path):
    run = tmp_path / OWN / "runs" / "plain-2ep-seed0-abc"
    run.mkdir(parents=True)
    (run / "recipe.toml").write_text("")
    write_failure(run, "the disk is full")
    assert cli.main(["report", str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    text = (tmp_path / "out" / "report.md").read_text()
    assert "No run has finished yet" in text
    assert "it failed: the disk is full" in text


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
