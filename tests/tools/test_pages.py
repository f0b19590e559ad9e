"""The generated parts of README.md and docs/."""

import json

import pytest

pytest.importorskip("matplotlib", reason="pictures need matplotlib")
pytest.importorskip("rich", reason="the lab's tables need rich")

from tools import pages
from trainact.errors import TrActValueError
from trainact.lab.cost.timing import summarise

OLD_KEYS = ("name", "plain_ms", "extra_over_plain", "trainact_over_plain",
            "torch_tract_over_plain", "extra_bytes", "input_bytes")  # fmt: skip
"""What a row had before plain ran against plain."""


def test_the_pages_are_up_to_date_with_the_committed_records():
    assert pages.main(["--check"]) == 0


def test_a_page_with_an_unknown_mark_is_refused():
    with pytest.raises(TrActValueError, match="unknown marked place 'speed'; there are bench"):
        pages.fill_page("<!-- speed --><!-- /speed -->", {"bench": ""})


def test_a_noisy_contest_has_no_ratio_of_whole_times_and_the_control_has_a_column():
    record = json.loads((pages.ROOT / "results" / "bench" / "bench.json").read_text())
    row = {key: record["step"][0][key] for key in OLD_KEYS}
    old = pages.render_bench({"step": [row]}, "step")
    assert "plain / plain" not in old.replace("whole step / plain", "")
    control = {"plain_again_over_plain": summarise([0.98, 1.02]), "noisy": True}
    head, _, noisy = pages.render_bench({"step": [row | control]}, "step").splitlines()
    assert head.split(" | ")[2] == "plain / plain"
    cells = noisy.split(" | ")
    assert (cells[2], cells[4:6]) == ("1.000x [0.980, 1.020]", ["noisy", "noisy"])
    assert cells[3].startswith(f"{100 * row['extra_over_plain']['median']:.2f} % [")


def test_the_load_stands_below_the_table():
    record = json.loads((pages.ROOT / "results" / "bench" / "bench.json").read_text())
    rows = [*record["layer"], *record["step"]]
    for row in rows:
        row.update({"noisy": False, "load": {"cores_of_others": 0.25}})
    rows[0]["noisy"] = True
    shown = pages.describe_record(record)
    assert f"1 of {len(rows)} were noisy" in shown
    assert "Other processes kept up to 0.25 cores busy." in shown


def test_a_record_without_counts_says_how_to_get_them():
    assert pages.render_launches({}).startswith("Not counted yet: run `trainact bench --launches")


def test_the_tables_of_jax_come_from_its_record():
    assert "run `trainact bench --jax" in pages.write_jax_bench(None)["bench-jax-made-with"]
    record = json.loads((pages.ROOT / "results" / "bench" / "bench.json").read_text())
    record["kind"] = "bench-jax"
    record["environment"]["packages"] |= {"jax": "1.2.3", "flax": "4.5.6"}
    tables = pages.write_jax_bench(record)
    assert "torch_tract" not in tables["bench-jax-layer"]
    assert "jax 1.2.3, flax 4.5.6" in tables["bench-jax-made-with"]
