"""Write generated tables into README.md and docs/: ``python -m tools.pages``.

Text between the marks ``<!-- NAME -->`` and ``<!-- /NAME -->`` is generated from the recipes and
from the committed records under ``results/``.
"""

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools import evidence
from tools.reproduce import write_reproduction
from trainact.errors import TrActValueError
from trainact.lab.cost.bench import ZOO_FILE, read_zoo, render_zoo
from trainact.lab.environment import describe_hardware
from trainact.lab.report.grid import Grid, render_markdown
from trainact.lab.text import describe_unknown

__all__ = ["fill_page", "main", "render_bench"]

ROOT = Path(__file__).parents[1]
PICTURES = "docs/pictures"
PAGES = ("README.md", "docs/cost.md", "docs/evidence.md", "docs/reproduce.md")


def fill_page(text: str, tables: dict[str, str]) -> str:
    r"""Return the page with the text of each marked place replaced.

    >>> fill_page("a <!-- n -->old<!-- /n --> b", {"n": "new"})
    'a <!-- n -->\nnew\n<!-- /n --> b'
    """

    def fill(match: re.Match[str]) -> str:
        name = match[1]
        if name not in tables:
            raise TrActValueError(describe_unknown(name, tables, "marked place"))
        return f"<!-- {name} -->\n{tables[name]}\n<!-- /{name} -->"

    return re.sub(r"<!-- ([\w-]+) -->.*?<!-- /\1 -->", fill, text, flags=re.DOTALL)


def make_tables(pages: evidence.Evidence, root: Path = ROOT) -> dict[str, str]:
    """Return the text of every marked place, by name."""
    record = json.loads((root / "results" / "bench" / "bench.json").read_text())
    return {
        **evidence.write_evidence(pages),
        **write_reproduction(root / "results"),
        "bench-layer": render_bench(record, "layer"),
        "bench-step": render_bench(record, "step"),
        "bench-made-with": describe_record(record),
        "bench-zoo": render_zoo(read_zoo(root / "results" / "bench" / ZOO_FILE)),
    }


def render_bench(record: dict[str, Any], section: str) -> str:
    """Return one section of a benchmark record as a Markdown table."""
    first = "extra work / plain step" if section == "step" else "trainact / plain"
    head = ["", "plain, ms", first, "torch_tract / plain", "extra memory / input"]
    if section == "step":
        head.insert(3, "whole step / plain")
    rows = tuple(_render_row(row, section) for row in record[section])
    return render_markdown(Grid("", tuple(head), rows))


def describe_record(record: dict[str, Any]) -> str:
    """Return one sentence on the environment of a benchmark record."""
    environment = record["environment"]
    packages = ", ".join(
        f"{name} {environment['packages'][name]}"
        for name in ("torch", "torch_tract")
        if name in environment["packages"]
    )
    state = "" if environment["clean"] else " with uncommitted changes"
    layers, steps = (record[section][0]["plain_ms"]["count"] for section in ("layer", "step"))
    return (
        f"Medians [quartiles] of {layers:.0f} (layers) and {steps:.0f} (steps) interleaved rounds; "
        f"{describe_hardware(environment)}, {record['dtype']}, {packages}, trainact "
        f"{environment['trainact']} at commit {environment['commit'][:10]}{state}, "
        f"{environment['date'][:10]}."
    )


def _render_row(row: dict[str, Any], section: str) -> tuple[str, ...]:
    cells = [row["name"], f"{row['plain_ms']['median']:.1f}"]
    if section == "step":
        extra = row["extra_over_plain"]
        percents = (100 * extra[key] for key in ("median", "low", "high"))
        cells.append("{:.2f} % [{:.2f}, {:.2f}]".format(*percents))
    cells.append(_render_ratio(row.get("trainact_over_plain")))
    cells.append(_render_ratio(row.get("torch_tract_over_plain")))
    cells.append(f"{row['extra_bytes'] / row['input_bytes']:.2f}")
    return tuple(cells)


def _render_ratio(spread: dict[str, float] | None) -> str:
    if spread is None:
        return "-"
    return f"{spread['median']:.2f}x [{spread['low']:.2f}, {spread['high']:.2f}]"


def main(argv: Sequence[str] | None = None) -> int:
    """Update all pages; with ``--check`` only report which are out of date, and return 1 if any."""
    parser = argparse.ArgumentParser("python -m tools.pages", description=__doc__)
    parser.add_argument("--check", action="store_true", help="only report stale pages")
    check = parser.parse_args(argv).check
    pages = evidence.read_evidence(ROOT / "results")
    tables, pictures = make_tables(pages), ROOT / PICTURES
    stale = [f"{PICTURES}/{name}" for name in evidence.list_stale_pictures(pages, pictures)]
    if stale and not check:
        evidence.draw_evidence(pages, pictures)
    for name in PAGES:
        page = ROOT / name
        before = page.read_text()
        after = fill_page(before, tables)
        if after != before:
            stale.append(name)
            if not check:
                page.write_text(after)
    print(f"{'out of date' if check else 'updated'}: {', '.join(stale) or 'nothing'}")
    return int(check and bool(stale))


if __name__ == "__main__":
    raise SystemExit(main())
