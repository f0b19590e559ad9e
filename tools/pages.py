"""Write measured numbers into the project's pages: ``python -m tools.pages``.

A page holds pairs of marks, ``<!-- NAME -->`` and ``<!-- /NAME -->``; what stands between them is
made from the committed records under ``results/`` and from nothing else.
"""

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.evidence import (
    Evidence,
    draw_evidence,
    list_stale_pictures,
    read_evidence,
    write_evidence,
)
from tools.reproduce import write_reproduction
from trainact.errors import TrActValueError
from trainact.lab.cost.bench import ZOO_FILE, read_zoo, render_zoo
from trainact.lab.environment import describe_hardware

__all__ = ["fill_page", "main", "render_bench"]

ROOT = Path(__file__).parents[1]
PICTURES = "docs/pictures"
PAGES = ("README.md", "docs/cost.md", "docs/evidence.md", "docs/reproduce.md")


def fill_page(text: str, tables: dict[str, str]) -> str:
    r"""Return the page with each marked place filled.

    >>> fill_page("a <!-- n -->old<!-- /n --> b", {"n": "new"})
    'a <!-- n -->\nnew\n<!-- /n --> b'
    """

    def fill(match: re.Match[str]) -> str:
        name = match[1]
        if name not in tables:
            raise TrActValueError(f"no table is named {name!r}; there are {', '.join(tables)}.")
        return f"<!-- {name} -->\n{tables[name]}\n<!-- /{name} -->"

    return re.sub(r"<!-- ([\w-]+) -->.*?<!-- /\1 -->", fill, text, flags=re.DOTALL)


def make_tables(evidence: Evidence, root: Path = ROOT) -> dict[str, str]:
    """Return every table that pages may hold, by name."""
    record = json.loads((root / "results" / "bench" / "bench.json").read_text())
    return {
        **write_evidence(evidence),
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
    rows = [_render_row(row, section) for row in record[section]]
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def describe_record(record: dict[str, Any]) -> str:
    """Return one sentence on what the record was made with."""
    made = record["environment"]
    packages = ", ".join(
        f"{name} {made['packages'][name]}"
        for name in ("torch", "torch_tract")
        if name in made["packages"]
    )
    state = "" if made["clean"] else " with uncommitted changes"
    count = record["layer"][0]["plain_ms"]["count"]
    return (
        f"Medians [quartiles] of {count:.0f} (layers) and "
        f"{record['step'][0]['plain_ms']['count']:.0f} (steps) interleaved rounds; "
        f"{describe_hardware(made)}, {record['dtype']}, {packages}, trainact {made['trainact']} "
        f"at commit {made['commit'][:10]}{state}, {made['date'][:10]}."
    )


def _render_row(row: dict[str, Any], section: str) -> list[str]:
    cells = [row["name"], f"{row['plain_ms']['median']:.1f}"]
    if section == "step":
        extra = row["extra_over_plain"]
        percents = (100 * extra[key] for key in ("median", "low", "high"))
        cells.append("{:.2f} % [{:.2f}, {:.2f}]".format(*percents))
    cells.append(_render_ratio(row.get("trainact_over_plain")))
    cells.append(_render_ratio(row.get("torch_tract_over_plain")))
    cells.append(f"{row['extra_bytes'] / row['input_bytes']:.2f}")
    return cells


def _render_ratio(spread: dict[str, float] | None) -> str:
    if spread is None:
        return "-"
    return f"{spread['median']:.2f}x [{spread['low']:.2f}, {spread['high']:.2f}]"


def main(argv: Sequence[str] | None = None) -> int:
    """Fill all pages; with ``--check`` change nothing and fail where one is out of date."""
    check = "--check" in (sys.argv[1:] if argv is None else argv)
    evidence = read_evidence(ROOT / "results")
    tables, pictures = make_tables(evidence), ROOT / PICTURES
    stale = [f"{PICTURES}/{name}" for name in list_stale_pictures(evidence, pictures)]
    if stale and not check:
        draw_evidence(evidence, pictures)
    for name in PAGES:
        page = ROOT / name
        before = page.read_text()
        after = fill_page(before, tables)
        if after != before:
            stale.append(name)
            if not check:
                page.write_text(after)
    print(f"{'out of date' if check else 'filled'}: {', '.join(stale) or 'nothing'}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
