"""The report in a real browser: phone, desktop and print."""

import html
import json
import re
import shutil
import subprocess

import pytest

from comparison_records import diverge, make_record
from result_folders import PAPER_ARMS, write_record, write_study, write_tuning

pytest.importorskip("matplotlib", reason="pictures need matplotlib")
pytest.importorskip("rich", reason="terminal tables need rich")

from trainact.lab.commands import cli
from trainact.lab.report.wording import SMOKE_WARNING

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next((path for path in map(shutil.which, NAMES) if path), None)
WIDTHS = (390, 1200)
PROBE = """<script>
addEventListener("load", async () => {
  const root = document.documentElement;
  await Promise.all([...document.images].map(image => image.decode()));
  const wide = [...document.querySelectorAll("main *")].filter(
    part => part.getBoundingClientRect().right > root.clientWidth + 1 && !part.closest(".scroll"));
  const found = {
    width: root.clientWidth,
    scrollWidth: root.scrollWidth,
    wide: wide.map(part => part.outerHTML.slice(0, 80)),
    images: [...document.images].map(image => [image.naturalWidth, image.clientWidth]),
    headings: [...document.querySelectorAll("h1, h2, h3")].map(part => part.textContent),
    smallest: Math.min(...[...document.querySelectorAll("p, li, td, th")].map(
      part => parseFloat(getComputedStyle(part).fontSize))),
    dead: [...document.querySelectorAll("nav a")].filter(
      link => !document.querySelector(link.getAttribute("href"))).length,
  };
  document.title = JSON.stringify(found);
});
</script>"""
"""Writes the measured layout into the title of the tested copy."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        CHROMIUM is None, reason=f"needs a browser: none of {', '.join(NAMES)} is on PATH"
    ),
]


def browse(profile, *options):
    """Return the output of headless Chromium."""
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += ["--no-first-run", "--disable-dev-shm-usage", f"--user-data-dir={profile}"]
    done = subprocess.run(
        [*command, *options], capture_output=True, text=True, timeout=600, check=True
    )
    return done.stdout


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The report on three experiments, one of each kind."""
    root = tmp_path_factory.mktemp("browser")
    own = root / "results" / "cifar10-cpu-resnet-sgd"
    write_study(own, arms=(*PAPER_ARMS, "lr-10"), budgets=(2, 4), seeds=(0, 1))
    write_record(own, diverge(make_record("lr-10", 4, 2, 40)))
    write_tuning(own)
    for arm, accuracy in (("plain", 72.0), ("tract-0.1", 73.0)):
        record = make_record(arm, 200, 0, accuracy, model__name="lab:vgg16")
        write_record(root / "results" / "cifar100-table", record)
        smoke = make_record(arm, 1, 0, [20.0], kind="smoke")
        write_record(root / "results" / "photos", smoke)
    assert cli.main(["report", str(root / "results"), "--out", str(root / "report")]) == 0
    return root / "report" / "report.html"


@pytest.fixture(scope="module", params=WIDTHS, ids=[f"{width}px" for width in WIDTHS])
def seen(request, page, tmp_path_factory):
    """The layout of the page at one width."""
    folder = tmp_path_factory.mktemp("probe")
    copy = folder / "report.html"
    # headless Chromium limits the window width; a frame may be narrower
    copy.write_text(page.read_text().replace("</body>", f"{PROBE}</body>"))
    frame = folder / "frame.html"
    frame.write_text(
        f'<!DOCTYPE html><body style="margin:0"><iframe src="report.html" width="{request.param}" '
        'height="3000" style="border:0"></iframe><script>addEventListener("load", () => '
        "setInterval(() => { const inner = frames[0].document.title; "
        'if (inner.startsWith("{")) document.title = inner; }, 50));</script></body>'
    )
    dumped = browse(
        folder / "profile",
        "--allow-file-access-from-files",
        "--virtual-time-budget=20000",
        "--window-size=1400,3200",
        "--dump-dom",
        frame.as_uri(),
    )
    title = re.search(r"<title>(.*?)</title>", dumped, re.DOTALL)
    assert title is not None, dumped[:300]
    return request.param, json.loads(html.unescape(title[1]))


def test_nothing_is_wider_than_the_window(seen):
    width, found = seen
    assert found["width"] == width
    assert found["wide"] == []
    assert found["scrollWidth"] <= width


def test_every_picture_is_decoded_and_fits(seen):
    width, found = seen
    assert len(found["images"]) == 5 + 2 + 2  # of two budgets, of one, and of the smoke runs
    for natural, shown in found["images"]:
        assert natural > 100
        assert 200 < shown <= width


def test_headings_exist_and_links_work(seen):
    found = seen[1]
    headings = found["headings"]
    for heading in ("Contents", "Overview", "Summary", "Learning-rate tuning"):
        assert heading in headings
    assert headings.count("Curves") == 3
    assert found["dead"] == 0


def test_letters_are_large_enough_to_read(seen):
    assert seen[1]["smallest"] >= 13


def test_it_can_be_rendered_and_printed(page, tmp_path):
    shot = tmp_path / "shot.png"
    browse(tmp_path / "one", "--window-size=500,900", f"--screenshot={shot}", page.as_uri())
    assert shot.read_bytes().startswith(b"\x89PNG")
    assert shot.stat().st_size > 20_000
    paper = tmp_path / "report.pdf"
    browse(tmp_path / "two", "--no-pdf-header-footer", f"--print-to-pdf={paper}", page.as_uri())
    content = paper.read_bytes()
    assert content.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", content)) >= 4  # an experiment begins on a new page


def test_the_page_itself_has_no_script_and_warns_of_smoke_runs(page):
    text = page.read_text()
    assert "<script" not in text
    assert SMOKE_WARNING in text
