"""Write generated text into README.md, CONTRIBUTING.md and docs/: ``python -m tools.pages``.

Text between the marks ``<!-- NAME -->`` and ``<!-- /NAME -->`` is generated from the recipes and
from the committed records under ``results/``.
"""

import argparse
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tools import evidence
from tools.fast_run import write_fast_run
from tools.how_it_works import draw_steps, list_stale_steps, write_steps
from tools.opening import draw_opening, list_stale_opening, read_step, write_opening
from tools.reproduce import write_reproduction
from tools.rivals_page import read_rivals, write_rivals
from tools.robustness_page import write_robustness
from tools.start_times import write_start_times
from tools.units_page import read_units, write_units
from tools.versions import write_versions
from tools.when import write_when
from trainact.errors import TrActValueError
from trainact.lab.cost.bench import (
    JAX_FILE,
    ZOO_FILE,
    describe_medians,
    read_jax_bench,
    read_zoo,
    render_zoo,
)
from trainact.lab.cost.launches import METHODS
from trainact.lab.cost.timing import CONTROL, WIDEST_CONTROL
from trainact.lab.environment import describe_hardware
from trainact.lab.models.networks import NETWORKS
from trainact.lab.recipes.parts import PARTS
from trainact.lab.report.grid import Grid, render_markdown
from trainact.lab.text import describe_unknown

__all__ = ["fill_page", "main", "render_bench", "render_launches"]

ROOT = Path(__file__).parents[1]
PICTURES = "docs/pictures"
PAGES = (
    "CONTRIBUTING.md",
    "README.md",
    "docs/cost.md",
    "docs/data.md",
    "docs/evidence.md",
    "docs/how-it-works.md",
    "docs/index.md",
    "docs/jax.md",
    "docs/lab.md",
    "docs/reproduce.md",
    "docs/rivals.md",
    "docs/when.md",
    "docs/works-with.md",
)


PACKAGES = {"bench": ("torch", "torch_tract"), "bench-jax": ("jax", "flax")}
"""What was measured, by the kind of record."""


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


def make_tables(pages: evidence.Evidence) -> dict[str, str]:
    """Return the text of every marked place, by name."""
    results = ROOT / "results"
    record = json.loads((results / "bench" / "bench.json").read_text())
    return {
        **evidence.write_evidence(pages),
        **write_reproduction(results),
        **write_rivals(read_rivals(results)),
        **write_units(read_units(results)),
        **write_opening(pages, read_step(results)),
        **write_robustness(results),
        **write_when(pages, record),
        **write_steps(),
        "arms": render_arms(),
        "networks": ", ".join(f"`lab:{name}`" for name in NETWORKS) + ".",
        **write_fast_run(results),
        **write_start_times(results),
        **write_versions(results),
        "bench-layer": render_bench(record, "layer"),
        "bench-step": render_bench(record, "step"),
        "bench-step-brief": render_step_costs(record),
        "bench-launches": render_launches(record),
        "bench-made-with": describe_record(record),
        **write_jax_bench(read_jax_bench(results / "bench" / JAX_FILE)),
        "bench-zoo": render_zoo(read_zoo(results / "bench" / ZOO_FILE)),
    }


def render_arms() -> str:
    """Return the parts of arms and what they do as a Markdown table."""
    rows = tuple((f"`{part.name}`", part.text) for part in PARTS)
    return render_markdown(Grid("", ("part", "what it does"), rows, text_columns=2))


def render_bench(record: dict[str, Any], section: str) -> str:
    """Return one section of a benchmark record as a Markdown table."""
    whole = "whole step / plain" if section == "step" else "trainact / plain"
    head = ["", "plain, ms", f"extra work / plain {section}", whole, "torch_tract / plain"]
    head.append("extra memory / input")
    names = ["trainact", "torch_tract"]
    if record.get("kind") == "bench-jax":
        head.remove("torch_tract / plain")
        names.remove("torch_tract")
    has_control = any(f"{CONTROL}_over_plain" in row for row in record[section])
    if has_control:
        head.insert(2, "plain / plain")
    rows = tuple(_render_row(row, names, has_control) for row in record[section])
    return render_markdown(Grid("", tuple(head), rows))


def render_step_costs(record: dict[str, Any]) -> str:
    """Return TrAct's own time and memory in whole training steps as a Markdown table."""
    rows = tuple(_render_row(row, [], has_control=False) for row in record["step"])
    head = ("", "plain step, ms", "extra work / plain step", "extra memory / input")
    return render_markdown(Grid("", head, rows))


def write_jax_bench(record: dict[str, Any] | None) -> dict[str, str]:
    """Return the tables of ``trainact bench --jax``."""
    names = ("bench-jax-layer", "bench-jax-step")
    if record is None:
        command = "trainact bench --jax --out results/bench"
        return dict.fromkeys(names, "-") | {
            "bench-jax-made-with": f"Not measured yet: run `{command}`."
        }
    tables = {name: render_bench(record, name.rsplit("-", 1)[1]) for name in names}
    return tables | {"bench-jax-made-with": describe_record(record)}


def render_launches(record: dict[str, Any]) -> str:
    """Return the counted operators of a benchmark record as a Markdown table."""
    launches = record.get("launches")
    if launches is None:
        return "Not counted yet: run `trainact bench --launches --out results/bench`."
    on_cpu = record["environment"]["device"] == "cpu"
    times = {row["name"]: _render_extra_time(row) for row in record["layer"]}
    head = ["", "CPU", "its time, ms", "accelerator", "its time, ms"]
    head += [f"xᵀx {method}" for method in METHODS]
    rows = []
    for row in launches["stems"]:
        cpu, accelerator = (
            f"{row[kind]['operators']} ({row[kind]['method']})" for kind in ("cpu", "accelerator")
        )
        time = times.get(row["name"], "-")
        there = (cpu, time, accelerator, "never run") if on_cpu else (cpu, "-", accelerator, time)
        counts = (row["methods"][method] for method in METHODS)
        rows.append((row["name"], *there, *("-" if c is None else str(c) for c in counts)))
    source = "measured alone"
    if not all("extra_ms" in row for row in record["layer"]):
        source = "the median ratio to the plain layer times the plain layer's median"
    note = (
        f"Counted with torch {launches['torch']} at commit {str(launches['commit'])[:10]}. Times "
        f"are of the record above, at commit {str(record['environment']['commit'])[:10]}: {source}."
    )
    return f"{render_markdown(Grid('', tuple(head), tuple(rows)))}\n\n{note}"


def _render_extra_time(row: dict[str, Any]) -> str:
    """Return the milliseconds of TrAct's own work; older records only have its ratio."""
    if "extra_ms" in row:
        return f"{row['extra_ms']['median']:.1f}"
    return f"{row['extra_over_plain']['median'] * row['plain_ms']['median']:.1f}"


def describe_record(record: dict[str, Any]) -> str:
    """Return one sentence on the environment of a benchmark record."""
    environment = record["environment"]
    packages = ", ".join(
        f"{name} {environment['packages'][name]}"
        for name in PACKAGES[record.get("kind", "bench")]
        if name in environment["packages"]
    )
    state = "" if environment["clean"] else " with uncommitted changes"
    layers, steps = (
        min(row["plain_ms"]["count"] for row in record[section]) for section in ("layer", "step")
    )
    return (
        f"{describe_medians(record)} of {layers:.0f} (layers) and {steps:.0f} (steps) interleaved "
        f"rounds or more; "
        f"{describe_hardware(environment)}, {record['dtype']}, {packages}, trainact "
        f"{environment['trainact']} at commit {environment['commit'][:10]}{state}, "
        f"{environment['date'][:10]}.{_describe_load([*record['layer'], *record['step']])}"
    )


def _describe_load(rows: Sequence[dict[str, Any]]) -> str:
    """Return a sentence on the load by other processes, if the record has it."""
    cores = [row["load"]["cores_of_others"] for row in rows if "load" in row]
    known = [number for number in cores if number is not None]
    noisy = sum(row.get("noisy", False) for row in rows)
    repeats = max((row.get("attempts", 1) for row in rows), default=1) - 1
    if not cores:
        return ""
    load = f"kept up to {max(known):.2g} cores busy" if known else "were not watched"
    return (
        f" Each comparison also ran plain against plain; {noisy} of {len(rows)} were noisy: the "
        f"interval of that ratio was wider than {WIDEST_CONTROL:.0%} after up to {repeats} "
        f"repeats. Other processes {load}."
    )


def _render_row(row: dict[str, Any], names: Sequence[str], has_control: bool) -> tuple[str, ...]:
    cells = [row["name"], f"{row['plain_ms']['median']:.1f}"]
    noisy = row.get("noisy", False)
    if has_control:
        cells.append(_render_ratio(row.get(f"{CONTROL}_over_plain"), digits=3))
    percents = (100 * row["extra_over_plain"][key] for key in ("median", "low", "high"))
    cells.append("{:.2f} % [{:.2f}, {:.2f}]".format(*percents))
    for name in names:
        cells.append(_render_ratio(row.get(f"{name}_over_plain"), noisy=noisy))
    cells.append(f"{row['extra_bytes'] / row['input_bytes']:.2f}")
    return tuple(cells)


def _render_ratio(spread: dict[str, float] | None, *, noisy: bool = False, digits: int = 2) -> str:
    if spread is None:
        return "-"
    if noisy:
        return "noisy"
    median, low, high = (f"{spread[key]:.{digits}f}" for key in ("median", "low", "high"))
    return f"{median}x [{low}, {high}]"


def _update_pictures(pages: evidence.Evidence, folder: Path, *, check: bool) -> list[str]:
    """Return the pictures that were out of date; redraw them unless ``check``."""
    drawings: tuple[tuple[list[str], Callable[[], None]], ...] = (
        (
            evidence.list_stale_pictures(pages, folder),
            lambda: evidence.draw_evidence(pages, folder),
        ),
        (list_stale_opening(pages, folder), lambda: draw_opening(pages, folder)),
        (list_stale_steps(folder), lambda: draw_steps(folder)),
    )
    for stale, draw in drawings:
        if stale and not check:
            draw()
    return [name for stale, _ in drawings for name in stale]


def main(argv: Sequence[str] | None = None) -> int:
    """Update all pages; with ``--check`` only report which are out of date, and return 1 if any."""
    parser = argparse.ArgumentParser("python -m tools.pages", description=__doc__)
    parser.add_argument("--check", action="store_true", help="only report stale pages")
    check = parser.parse_args(argv).check
    pages = evidence.read_evidence(ROOT / "results")
    tables, pictures = make_tables(pages), ROOT / PICTURES
    stale = [f"{PICTURES}/{name}" for name in _update_pictures(pages, pictures, check=check)]
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
