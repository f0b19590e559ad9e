"""The site: every page is in the navigation, every public name in the reference, no link is dead."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import trainact
from tools import site
from trainact import lab
from trainact.options import DEFAULT_LAM

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def test_the_reference_has_every_public_name():
    named = re.findall(r"^::: trainact\.(\w+)$", (DOCS / "api.md").read_text(), re.M)
    assert sorted(named) == sorted(trainact.__all__)
    named = re.findall(r"^::: trainact\.lab\.(\w+)$", (DOCS / "api.md").read_text(), re.M)
    assert sorted(named) == sorted(lab.__all__)
    assert f"`DEFAULT_LAM` is {DEFAULT_LAM:g}." in (DOCS / "api.md").read_text()


def test_every_page_is_in_the_navigation():
    listed = re.findall(r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M)
    assert sorted(listed) == sorted(path.name for path in DOCS.glob("*.md"))


def test_a_doctest_becomes_code():
    lines = ["Add.", "", ">>> 1 + 1", "2", "", ">>> quit()"]
    fenced = ["Add.", "", "```pycon", *lines[2:4], "```", "", "```pycon", lines[5], "```"]
    assert site.fence_doctests(lines) == fenced


def test_links_to_files_outside_docs_lead_to_their_copies():
    shown = site.on_page_markdown("see ![time](../results/bench/growth-ms.png)", page=None)
    assert shown == "see ![time](pictures/growth-ms.png)"


def test_a_line_that_links_to_an_example_is_followed_by_its_code():
    script, notebook = (
        site.on_page_markdown(f"[it](../examples/{name})")
        for name in ("plain_loop.py", "own_images.ipynb")
    )
    assert script.startswith("[it](examples/plain_loop.py)\n\n```python\n")
    assert "apply_tract(model)" in script
    assert "### Does TrAct help on my images?" in notebook
    assert "```python\n!{TRAINACT} inspect" in notebook


@pytest.mark.slow
def test_the_site_builds_strictly(tmp_path):
    pytest.importorskip("mkdocs", reason="the site needs mkdocs")
    pytest.importorskip("mkdocstrings", reason="the site needs mkdocstrings")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    reference = (tmp_path / "site" / "api" / "index.html").read_text()
    for name in [*trainact.__all__, *(f"lab.{name}" for name in lab.__all__), "lab.Run.log"]:
        assert f'id="trainact.{name}"' in reference, name
    assert "<blockquote>" not in reference  # doctests are code
    assert (tmp_path / "site" / "examples" / "plain_loop.py").exists()
