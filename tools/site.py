"""Hooks of mkdocs: files outside ``docs/``, and doctests in the API reference.

Links such as ``../examples/plain_loop.py`` work on a code host as they are. On the site they lead
to copies of the files. A line that only links to an example is followed by its code.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["fence_doctests", "on_config", "on_files", "on_page_markdown", "show_example"]

ROOT = Path(__file__).parents[1]
PLACES = {"examples": "examples", "results/bench": "pictures"}
"""Folders of the repository, and where the site has their files."""
SUFFIXES = {".ipynb", ".png", ".py"}


def on_config(config: Any) -> Any:
    """Let Markdown show the doctests of docstrings as code, not as quotations."""
    from markdown.extensions import Extension

    class Doctests(Extension):  # type: ignore[misc, unused-ignore]
        def extendMarkdown(self, md: Any) -> None:  # noqa: N802
            md.preprocessors.register(self, "doctests", 27)  # before fenced code is read

        def run(self, lines: Sequence[str]) -> list[str]:
            return fence_doctests(lines)

    config.markdown_extensions.append(Doctests())
    return config


def fence_doctests(lines: Sequence[str]) -> list[str]:
    """Return the lines with fences around each doctest, which ends at an empty line.

    >>> fence_doctests(["Add.", "", ">>> 1 + 1", "2", "", "Done."])
    ['Add.', '', '```pycon', '>>> 1 + 1', '2', '```', '', 'Done.']
    """
    fenced: list[str] = []
    inside = False
    for line in [*lines, ""]:
        if not inside and line.startswith(">>> "):
            fenced.append("```pycon")
            inside = True
        elif inside and not line.strip():
            fenced.append("```")
            inside = False
        fenced.append(line)
    return fenced[:-1]


def on_files(files: Any, config: Any) -> Any:
    """Add the files to the site."""
    from mkdocs.structure.files import File

    for folder, place in PLACES.items():
        for path in sorted((ROOT / folder).iterdir()):
            if path.suffix in SUFFIXES:
                uri = f"{place}/{path.name}"
                files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Change the links to these files, and show the code of examples."""
    pattern = r"^\[.*\]\(\.\./(examples/\w+\.(?:py|ipynb))\)$"
    markdown = re.sub(
        pattern,
        lambda link: f"{link[0]}\n\n{show_example(ROOT / link[1])}",
        markdown,
        flags=re.MULTILINE,
    )
    for folder, place in PLACES.items():
        markdown = markdown.replace(f"](../{folder}/", f"]({place}/")
    return markdown


def show_example(path: Path) -> str:
    """Return the code of a script, or the cells of a notebook, as Markdown."""
    if path.suffix == ".py":
        return f"```python\n{path.read_text()}```"
    blocks = []
    for cell in json.loads(path.read_text())["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            blocks.append(re.sub(r"^(#+ )", r"##\1", source, flags=re.MULTILINE))
        else:
            blocks.append(f"```python\n{source}\n```")
    return "\n\n".join(blocks)
