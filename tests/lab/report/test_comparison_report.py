"""The files of a comparison: a self-contained HTML page, Markdown, pictures and JSON."""

import base64
import json
import re
import xml.etree.ElementTree as ElementTree

import pytest

from comparison_records import diverge, make_record, make_study
from html_page import Page
from trainact.errors import TrActValueError

pytest.importorskip("matplotlib", reason="pictures need matplotlib")
pytest.importorskip("rich", reason="terminal tables need rich")

from trainact.lab.analysis.answers import answer
from trainact.lab.report.comparison_report import write_comparison
from trainact.lab.report.tables import print_accuracy
from trainact.lab.report.wording import SMOKE_WARNING

COMMAND = "trainact compare --arms plain,tract-0.1 --budgets 2,4"
EVIL = "<script>alert('1')</script>\"&|$\\nope{$[red]"


@pytest.fixture(scope="module")
def records():
    study = make_study(arms=("plain", "tract-0.1", "lr-10"), budgets=(2, 4), seeds=(0, 1))
    return [*study[:-1], diverge(study[-1], 2)]


@pytest.fixture(scope="module")
def folder(records, tmp_path_factory):
    folder = tmp_path_factory.mktemp("comparison")
    write_comparison(records, folder, COMMAND, jobs=2)
    return folder


@pytest.fixture(scope="module")
def text(folder):
    return (folder / "comparison.html").read_text()


@pytest.fixture(scope="module")
def page(text):
    return Page(text)


def test_every_tag_is_closed(page):
    assert page.faults == []
    assert page.open == []


def test_the_chapters_come_in_order(page):
    assert page.headings == [
        "Summary",
        "Final accuracy",
        "Curves",
        "Speed-up",
        "Crossing epoch within a run",
        "Training time",
        "All runs",
        "Environment",
        "Commands to reproduce this",
    ]
    assert len(page.find("h1")) == 1


def test_nothing_is_loaded_from_other_files(text, page):
    assert not {"script", "link", "iframe", "object", "a"} & {tag for tag, _ in page.tags}
    for _, attributes in page.tags:
        assert not any(name.startswith("on") for name in attributes)
        for name in ("src", "href", "srcset"):
            assert attributes.get(name, "data:").startswith("data:")
    assert not re.search(r"https?:|url\(|@import", text)


def test_the_pictures_are_embedded_and_have_alt_texts(page):
    images = page.find("img")
    assert len(images) == 5  # accuracy and gradients of two budgets, and accuracy over budgets
    for image in images:
        assert len(image["alt"]) > 20
        kind, encoded = image["src"].split(",", 1)
        assert kind == "data:image/svg+xml;base64"
        for element in ElementTree.fromstring(base64.b64decode(encoded)).iter():
            assert not element.tag.endswith(("}image", "}script"))
            for name, value in element.attrib.items():
                assert not name.endswith("href") or value.startswith("#")
    assert "plain ends at" in images[0]["alt"]


def test_tables_are_accessible_and_scroll(page):
    assert all(cell["scope"] in ("col", "row") for cell in page.find("th"))
    assert len(page.find("caption")) == len(page.find("table")) == 6
    boxes = [box for box in page.find("div") if box.get("class") == "scroll"]
    assert len(boxes) == 6
    assert all(box["aria-label"] and box["tabindex"] == "0" for box in boxes)


def test_phones_print_and_dark_mode_are_supported(text, page):
    viewport = {"name": "viewport", "content": "width=device-width, initial-scale=1"}
    assert viewport in page.find("meta")
    assert "@media print" in text
    assert "prefers-color-scheme: dark" in text
    assert page.find("html") == [{"lang": "en"}]


def test_the_page_shows_the_environment_and_the_command(page):
    shown = " ".join(page.text)
    for fact in (
        COMMAND,
        "torch 2.13.0",
        "0123456789abcdef0123456789abcdef01234567 (clean)",
        "f1e2d3c4b5a6",
        "Some Processor @ 2.50GHz, 2 cores, 1 thread",
        "701,466 parameters",
        "diverged: the loss is NaN in epoch 3, step 12",
        "CAUTION: 2 runs shared the machine",
        "This is not the speed-up.",
        "differs from plain's in optimizer.first_layer_lr 10.0 (plain: 1.0)",
    ):
        assert fact in shown


def test_strings_of_records_are_never_markup(tmp_path):
    records = [
        make_record(arm, 2, 0, 60, model__name=EVIL, data__name=EVIL, environment__processor=EVIL)
        for arm in ("plain", f"arm {EVIL}")
    ]
    records.append(diverge(records[1], 1) | {"seed": 1, "failure": EVIL, "recipe_id": EVIL})
    write_comparison(records, tmp_path, f"trainact {EVIL}", title=EVIL)
    text = (tmp_path / "comparison.html").read_text()
    page = Page(text)
    assert page.faults == []
    assert not page.find("script")
    assert "<script" not in text
    assert EVIL in " ".join(page.text)


def test_strings_of_records_do_not_break_markdown(tmp_path):
    records = [make_record(arm, 2, 0, 60, model__name=EVIL) for arm in ("plain", EVIL)]
    write_comparison(records, tmp_path, "trainact compare")
    markdown = (tmp_path / "comparison.md").read_text()
    assert "<script" not in markdown
    for line in markdown.splitlines():
        if line.startswith("| plain") or line.startswith("| &lt;script"):
            assert len(re.findall(r"(?<!\\)\|", line)) in (5, 7, 8)


def test_all_files_are_written(folder):
    names = {path.name for path in folder.iterdir()}
    pictures = {"accuracy.png", "budgets.png", "gradients.png"}
    assert names == pictures | {"comparison.json", "comparison.md", "comparison.html"}
    for name in pictures:
        content = (folder / name).read_bytes()
        assert content.startswith(b"\x89PNG")
        assert len(content) > 5000
    markdown = (folder / "comparison.md").read_text()
    assert set(re.findall(r"\]\((.*?)\)", markdown)) == pictures


def test_the_json_has_all_statistics(folder, records):
    data = json.loads((folder / "comparison.json").read_text())
    answers = answer(records, jobs=2)
    assert data["runs_are"] == "full"
    assert data["jobs"] == 2
    assert data["command"] == COMMAND
    assert data["differences"][0]["mean"] == answers.differences[0].mean
    assert data["speed_ups"][0]["reach"] == {
        "kind": answers.speed_ups[0].reach.kind,
        "factor": answers.speed_ups[0].reach.factor,
    }
    assert len(data["runs"]) == len(records)
    assert {run["status"] for run in data["runs"]} == {"complete", "diverged"}
    assert data["environments"] == [records[0]["environment"]]


def test_the_environments_of_interrupted_runs_are_listed(tmp_path):
    plain = make_record("plain", 2, 0, [50, 60])
    earlier = {**plain["environment"], "commit": "0" * 40}
    plain["earlier_environments"] = [earlier, {**earlier, "date": "later"}]
    write_comparison([plain], tmp_path, COMMAND)
    data = json.loads((tmp_path / "comparison.json").read_text())
    assert data["environments"] == [earlier, plain["environment"]]
    page = (tmp_path / "comparison.html").read_text()
    assert earlier["commit"] in page
    assert plain["environment"]["commit"] in page


def test_the_same_records_give_the_same_bytes(folder, records, tmp_path):
    write_comparison(records[::-1], tmp_path, COMMAND, jobs=2)
    for path in folder.iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes(), path.name


def test_smoke_runs_have_a_warning_everywhere(tmp_path, capsys):
    records = [make_record(arm, 2, 0, [50, 60], kind="smoke") for arm in ("plain", "tract-0.1")]
    comparison = write_comparison(records, tmp_path, COMMAND)
    assert f'<p class="smoke">{SMOKE_WARNING}</p>' in (tmp_path / "comparison.html").read_text()
    assert f"# {SMOKE_WARNING}" in (tmp_path / "comparison.md").read_text()
    data = json.loads((tmp_path / "comparison.json").read_text())
    assert data["caution"] == SMOKE_WARNING
    assert all(entry["verdict"].startswith("SMOKE RUN") for entry in data["verdicts"])
    print_accuracy(comparison.answers)
    assert SMOKE_WARNING in capsys.readouterr().out


def test_nothing_is_written_for_refused_records(tmp_path):
    records = [make_record("plain", 2, 0, 60), make_record("plain", 2, 1, 60, kind="smoke")]
    with pytest.raises(TrActValueError, match="1 smoke and 1 full"):
        write_comparison(records, tmp_path / "new", COMMAND)
    assert not (tmp_path / "new").exists()


def test_incomplete_input_makes_a_complete_page(tmp_path):
    plain, arm = (make_record(name, 2, 0, [50, 60]) for name in ("plain", "tract-0.1"))
    bare = make_record("plain", 2, 0, [50, 60])
    bare["epochs"][0]["first_layer_grad_norm"] = float("nan")
    bare["epochs"][1]["first_layer_grad_norm"] = None
    bare["environment"] |= {"commit": None, "clean": None}
    cases = {
        "There are no records of runs.": [],
        "No run is of the arm plain": [arm],
        "every run diverged": [diverge(plain, 0), diverge(arm, 1)],
        "with one seed, which gives no interval": [plain, arm],
        "plain was not run with this budget": [plain, make_record("tract-0.1", 4, 0, 66)],
        "not in git": [bare],
    }
    (tmp_path / "budgets.png").write_bytes(b"old")
    for expected, records in cases.items():
        write_comparison(records, tmp_path, COMMAND)
        for name in ("comparison.html", "comparison.md"):
            assert expected in (tmp_path / name).read_text()
        assert Page((tmp_path / "comparison.html").read_text()).faults == []
        several = len({record["budget"] for record in records}) > 1
        assert (tmp_path / "budgets.png").exists() == several
